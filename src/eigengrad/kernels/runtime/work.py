"""Dynamic scheduling: threads take chunks of a range from a shared counter until none is left.

The counter stands at the head of a call's work block (:mod:`.trampoline`).

    begin, end = next_chunk(work, count)
    while begin < end:
        add_status(work, ...)                                            # the bits of begin … end
        begin, end = next_chunk(work, count)
    return DONE

A thread that starts late takes fewer chunks, or none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .compile import device_function
from .trampoline import DONE, HEADER, NEXT, SIZE, STATUS

__all__ = ["DONE", "add_status", "arguments_at", "block_type", "next_chunk", "pointer"]


def _atomic(operation: str) -> Any:
    """An atomic read–modify–write operation of LLVM: (address, index, value) to what was there before."""

    def change(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, index, value = arguments
            place = builder.gep(builder.inttoptr(address, ir.IntType(64).as_pointer()), [index])
            return builder.atomic_rmw(operation, place, value, "seq_cst")

        return types.int64(types.int64, types.int64, types.int64), generate

    return intrinsic(change)


_add = _atomic("add")
_or = _atomic("or")


@device_function
def next_chunk(work: int, count: int) -> Any:
    """(begin, end) of the next chunk of ``range(count)``; empty if there is none left."""
    size = _or(work, SIZE, 0)
    begin = min(_add(work, NEXT, size), count)
    return begin, min(begin + size, count)


@device_function
def add_status(work: int, status: int) -> None:
    """Add the status bits of a chunk to those of the call."""
    if status:
        _or(work, STATUS, status)


def block_type(arguments: type[Any]) -> np.dtype[Any]:
    """The layout of a work block whose arguments are the fields of a named tuple of integers."""
    fields = [f"head_{k}" for k in range(HEADER)] + list(arguments._fields)
    return np.dtype([(field, np.int64) for field in fields])


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """The integer ``address`` as a pointer, for ``numba.carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.intp), generate


@device_function
def arguments_at(work: int, block: Any) -> Any:
    """The work block at an address, of a type from :func:`block_type`, as a record."""
    return carray(pointer(work), (1,), block)[0]
