"""Kernels as threads are handed them: functions of C with one argument, the place of a ledger and of all arguments.

Kernels have many arguments, so each gets an adapter of a few instructions, made by LLVM in a few milliseconds, that
loads them from memory. There the ledger (see :mod:`.parts`) comes first, and its address is the last argument.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import binding, ir

from .parts import LEDGER, UNION
from .threads import FAILED

__all__ = ["Adapter", "adapter"]

_INTEGER = ir.IntType(64)
_KINDS = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "int64": _INTEGER, "bool": ir.IntType(8)}


class Adapter(NamedTuple):
    """``void f(int64 *memory)``, which calls a kernel with what it finds there."""

    address: int
    pack: Callable[..., bytes]  # a ledger and the kernel's arguments but the last, as they lie in memory
    owner: object  # of the machine code


def adapter(code: int, signature: tuple[Any, ...]) -> Adapter:
    """The adapter of the kernel at an address, with arguments of these types of numba."""
    kinds = [_KINDS[str(kind)] for kind in signature]
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_INTEGER.as_pointer()]), "adapter")
    (memory,) = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    values = [ir.Constant(kinds[0], 0)]
    for index, kind in enumerate(kinds[1:-1]):
        place = builder.gep(memory, [_INTEGER(LEDGER + index)])
        values.append(builder.load(builder.bitcast(place, kind.as_pointer())))
    values.append(builder.ptrtoint(memory, _INTEGER))
    # numba's functions return whether they failed, and write elsewhere what Python would see: a result, an error.
    result, error = builder.alloca(_INTEGER), builder.alloca(_INTEGER)
    target = ir.FunctionType(ir.IntType(32), [result.type, error.type, *kinds]).as_pointer()
    status = builder.call(builder.inttoptr(_INTEGER(code), target), [result, error, *values])
    failed = builder.select(builder.icmp_unsigned("!=", status, status.type(0)), _INTEGER(FAILED), _INTEGER(0))
    builder.atomic_rmw("or", builder.gep(memory, [_INTEGER(UNION)]), failed, "seq_cst")
    builder.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    formats = "".join("d" if kind == _KINDS["float64"] else "q" for kind in kinds[1:-1])
    return Adapter(engine.get_function_address("adapter"), struct.Struct(f"{LEDGER}q{formats}").pack, engine)
