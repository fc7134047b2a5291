"""Work that threads share: parts of a range, which whoever is free takes.

A range has a *ledger* in memory, four integers: where the next part begins, how much is finished, the union of the
parts' results, and the size of a part. Kernels take from it and enter what they finished by themselves, in single steps
that no other thread can cut in two. So a thread that wakes late takes less, or nothing, and the one that called never
waits for it to wake, only for parts that it really took.

    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = ...                                                     # of begin … end
        begin, end = next_part(ledger, begin, end, last, status)

A ledger at address 0 is none: the whole range is one part.

Who has no part must not look at what the kernel was given: all parts may be finished and the caller gone, with its
memory. So the first part is taken before anything is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from .addresses import pointer
from .compiled import compiled, inner
from .vectors import X86

__all__ = ["finished", "first_part", "next_part"]

_NEXT, _FINISHED, _UNION, _SIZE = range(4)


def _in_one_step(operation: str) -> Any:
    def change(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            integer = arguments[2].type
            place = builder.gep(builder.inttoptr(arguments[0], integer.as_pointer()), [arguments[1]])
            return builder.atomic_rmw(operation, place, arguments[2], "seq_cst")

        return types.int64(types.int64, types.int64, types.int64), generate

    return intrinsic(change)


_add = _in_one_step("add")
_unite = _in_one_step("or")


@intrinsic
def _read(typing_context: Any, address: Any, index: Any) -> Any:
    """What another thread may be changing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.gep(builder.inttoptr(arguments[0], arguments[1].type.as_pointer()), [arguments[1]])
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _pause(typing_context: Any) -> Any:
    """Tell the CPU that this is a loop of waiting."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@inner
def _take(ledger: int, last: int) -> Any:
    size = carray(pointer(ledger), (4,), np.int64)[_SIZE]
    begin = min(_add(ledger, _NEXT, size), last)
    return begin, min(begin + size, last)


@compiled
def first_part(ledger: int, first: int, last: int) -> Any:
    """(begin, end) of a part nobody has taken, which is empty if there is none."""
    return (first, last) if ledger == 0 else _take(ledger, last)


@compiled
def next_part(ledger: int, begin: int, end: int, last: int, status: int) -> Any:
    """Enter a part as finished, with its result, and take another."""
    if ledger == 0:
        return last, last
    if status:
        _unite(ledger, _UNION, status)
    _add(ledger, _FINISHED, end - begin)
    return _take(ledger, last)


@compiled
def finished(ledger: int, count: int, patience: int) -> bool:
    """Whether ``count`` is finished, after looking ``patience`` times at most."""
    for _ in range(patience):
        if _read(ledger, _FINISHED) == count:
            return True
        _pause()
    return False
