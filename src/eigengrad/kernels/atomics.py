"""What threads change and read in common memory: integers, each step of which no other thread can cut in two.

Steps are sequentially consistent: all threads see all of them in one order.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vectors import X86

__all__ = ["add", "exchange_if", "give_way", "pause", "read", "unite", "write"]

_WORD = types.int64
_POSIX = os.name == "posix"


def _place(builder: Any, address: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(address, index.type.as_pointer()), [index])


def _change(operation: str) -> Any:
    def change(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, index, value = arguments
            return builder.atomic_rmw(operation, _place(builder, address, index), value, "seq_cst")

        return _WORD(_WORD, _WORD, _WORD), generate

    return intrinsic(change)


add = _change("add")  # (address, index, value) to what was there before, as the two below
unite = _change("or")
write = _change("xchg")


@intrinsic
def read(typing_context: Any, address: Any, index: Any) -> Any:
    """What another thread may be changing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_place(builder, *arguments), "seq_cst", 8)

    return _WORD(_WORD, _WORD), generate


@intrinsic
def exchange_if(typing_context: Any, address: Any, index: Any, expected: Any, value: Any) -> Any:
    """Write ``value`` if ``expected`` is there; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, index, expected, value = arguments
        found = builder.cmpxchg(_place(builder, address, index), expected, value, "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(_WORD, _WORD, _WORD, _WORD), generate


@intrinsic
def pause(typing_context: Any) -> Any:
    """Tell the CPU that this is a loop of waiting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(typing_context: Any) -> Any:
    """Let another thread that wants to run on this core do so."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _POSIX:
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate
