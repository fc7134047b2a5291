"""Kernels on torch's own threads: those of the OpenMP runtime that runs torch's operations.

Its threads stay awake for a while after each operation, so that a kernel which joins them begins within two
microseconds, where a sleeping thread takes fifty; and the two do not compete for the cores. ``GOMP_parallel(function,
data, threads, flags)`` is what a compiler makes of ``#pragma omp parallel``: every thread of the team calls
``function(data)``, and the caller waits for all of them. As torch does, we always call the whole team (0 threads): for
teams of changing size the runtime would end threads and start others.

The function has to be one of C with one argument. Kernels have many, so each gets an adapter of a few instructions,
made by LLVM in a few milliseconds, that loads them from memory.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from llvmlite import binding, ir

from .compiled import Entry

__all__ = ["run", "team"]

_LEDGER = 4  # integers: see :mod:`.parts`
_KINDS = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "int64": ir.IntType(64),
    "bool": ir.IntType(8),
}


@functools.cache
def team() -> Callable[[int, int, int, int], None] | None:
    """GOMP_parallel of the runtime that torch is linked to, where there is one."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        parallel = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    call: Callable[[int, int, int, int], None] = parallel
    return call


def run(kernel: Entry, arguments: Sequence[Any], count: int, size: int) -> int:
    """The kernel by the whole team, on ``count`` things in parts of ``size``.

    Args:
        kernel: takes its parts from a ledger, whose address is its last argument: see :mod:`.parts`.
        arguments: all but the ledger.

    Returns:
        The union of the results of all parts.
    """
    parallel = team()
    assert parallel is not None
    adapter = _adapter(kernel)
    memory = array("q", adapter.pack(0, 0, 0, size, *arguments, 0))
    ledger, _ = memory.buffer_info()
    memory[-1] = ledger
    parallel(adapter.address, ledger, 0, 0)
    if memory[1] != count:
        raise MemoryError("a kernel found no memory to work in")
    return memory[2]


class _Adapter(NamedTuple):
    """``void f(int64 *memory)``, which calls a kernel with what it finds there."""

    address: int
    pack: Callable[..., bytes]  # a ledger and the kernel's arguments, as they lie in memory
    owner: object  # of the machine code


@functools.cache
def _adapter(kernel: Entry) -> _Adapter:
    kinds = [_KINDS[str(kind)] for kind in kernel.signature]
    number, place = _KINDS["int64"], _KINDS["int64"].as_pointer()
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [place]), "adapter")
    builder = ir.IRBuilder(function.append_basic_block())
    values = [ir.Constant(kinds[0], 0)]
    for index, kind in enumerate(kinds[1:]):
        slot = builder.gep(function.args[0], [number(_LEDGER + index)])
        values.append(builder.load(builder.bitcast(slot, kind.as_pointer())))
    target = ir.FunctionType(number, kinds).as_pointer()
    builder.call(builder.inttoptr(number(kernel.address), target), values)
    builder.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    formats = "".join("d" if kind == _KINDS["float64"] else "q" for kind in kinds[1:])
    return _Adapter(engine.get_function_address("adapter"), struct.Struct(f"{_LEDGER}q{formats}").pack, engine)
