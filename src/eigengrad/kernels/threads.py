"""A kernel on as many threads as torch has: on torch's own where they can be joined, else on a pool of ours.

Not numba's ``parallel=True``: its OpenMP layer brings a second runtime beside torch's and kills forked children
(DataLoader workers), and its workqueue refuses concurrent callers. Here any thread may call at any time,
``torch.set_num_threads`` is respected, and a forked child, in which torch's threads are gone, has fresh ones.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import pool

__all__ = ["share"]

_PARTS = 8  # for each thread: the fewer, the longer the last one is waited for
_forked = False


def _remember_the_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember_the_fork)


def share(
    kernel: Callable[..., int], arguments: Sequence[Any], count: int, unit: int, options: Sequence[Any] = ()
) -> int:
    """``kernel(*arguments, 0, count, *options, 0)`` by as many threads as torch has, the caller among them.

    Args:
        kernel: takes parts of the range from its last argument, the address of a ledger: see :mod:`.parts`.
        arguments, options: what it gets before and after the range.
        count: the length of the range.
        unit: parts begin at multiples of it.

    Returns:
        The union of the results of all parts, as bits.
    """
    units = -(-count // unit)
    others = min(torch.get_num_threads(), units) - 1
    call = (*arguments, 0, count, *options)
    if others < 1:
        return kernel(*call, 0)
    size = max(1, units // (_PARTS * (others + 1))) * unit
    run = None if _forked else _by_the_team()
    return pool.run(kernel, call, count, size, others) if run is None else run(kernel, call, count, size)


@functools.cache
def _by_the_team() -> Callable[..., int] | None:
    """:func:`.openmp.run`, where torch has such threads."""
    from . import openmp

    return openmp.run if openmp.team() is not None else None
