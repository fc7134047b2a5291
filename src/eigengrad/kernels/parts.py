"""Work that threads share: parts of a range, which whoever is free takes.

A range has a *ledger* in memory, three integers: where the next part begins, the size of a part, and the union of the
parts' results. Kernels take from it by themselves, in single steps that no other thread can cut in two. So a thread
that wakes late takes less, or nothing.

    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = ...                                                     # of begin … end
        begin, end = next_part(ledger, last, status)

A ledger at address 0 is none: the whole range is one part.
"""

from __future__ import annotations

from typing import Any

from .atomics import add, read, unite
from .compiled import compiled, inner

__all__ = ["LEDGER", "UNION", "first_part", "next_part"]

LEDGER = 3  # integers
_NEXT, _SIZE, UNION = range(LEDGER)


@inner
def _take(ledger: int, last: int) -> Any:
    size = read(ledger, _SIZE)
    begin = min(add(ledger, _NEXT, size), last)
    return begin, min(begin + size, last)


@compiled
def first_part(ledger: int, first: int, last: int) -> Any:
    """(begin, end) of a part nobody has taken, which is empty if there is none."""
    return (first, last) if ledger == 0 else _take(ledger, last)


@compiled
def next_part(ledger: int, last: int, status: int) -> Any:
    """Enter the result of a part, and take another."""
    if ledger == 0:
        return last, last
    if status:
        unite(ledger, UNION, status)
    return _take(ledger, last)
