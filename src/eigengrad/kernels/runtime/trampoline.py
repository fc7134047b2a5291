"""Kernels as OpenMP calls them: C functions of one argument, the address of a work block.

OpenMP hands its threads one pointer, and kernels have many arguments. A trampoline of a few instructions, which LLVM
makes in milliseconds, loads them from the block and calls the kernel, an ordinary C function.

A work block is int64 numbers in memory: where the next chunk begins, the size of a chunk, the status bits of the chunks
done so far (see :mod:`.work`), and then the kernel's own arguments.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import binding, ir

__all__ = ["DONE", "FAILED", "HEADER", "NEXT", "SIZE", "STATUS", "Trampoline", "trampoline"]

NEXT, SIZE, STATUS, HEADER = range(4)

DONE = 1  # what a kernel returns; numba returns 0 from one that raised, which happens where memory runs out
FAILED = 1 << 62  # a status bit: some thread did not return DONE

_INT64 = ir.IntType(64)
_TYPES = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "int64": _INT64}


class Trampoline(NamedTuple):
    """``void f(int64 *block)`` in memory."""

    address: int
    pack: Callable[..., bytes]  #: (next, size, status, *arguments) to the bytes of a work block
    engine: object  #: owns the machine code


def trampoline(kernel: int, types: Sequence[str]) -> Trampoline:
    """The trampoline of a kernel.

    Args:
        kernel: the address of ``int64 kernel(number, ...)``.
        types: the types of its arguments. The first, a number of the type that the kernel is compiled for, gets 0; the
            last gets the address of the block.
    """
    first, *packed, last = (_TYPES[name] for name in types)
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_INT64.as_pointer()]), "trampoline")
    (block,) = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    values = [ir.Constant(first, 0)]
    for index, kind in enumerate(packed, HEADER):
        place = builder.gep(block, [_INT64(index)])
        values.append(builder.load(builder.bitcast(place, kind.as_pointer())))
    values.append(builder.ptrtoint(block, last))
    target = ir.FunctionType(_INT64, [first, *packed, last]).as_pointer()
    result = builder.call(builder.inttoptr(_INT64(kernel), target), values)
    status = builder.select(builder.icmp_signed("==", result, _INT64(DONE)), _INT64(0), _INT64(FAILED))
    builder.atomic_rmw("or", builder.gep(block, [_INT64(STATUS)]), status, "seq_cst")
    builder.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    formats = "".join("d" if kind == _TYPES["float64"] else "q" for kind in packed)
    pack = struct.Struct(f"{HEADER}q{formats}").pack if packed else _pack_integers
    return Trampoline(engine.get_function_address("trampoline"), pack, engine)


def _pack_integers(*numbers: int) -> bytes:
    """Pack the block of a kernel that reads its arguments from there itself (:func:`.work.arguments_at`)."""
    return array("q", numbers).tobytes()
