"""Pieces of a picture on several threads, with results that do not depend on how many there are.

Torch's own threads divide one operation among them. How they do so decides in which order sums are taken, hence the
last bits; and they wait for each other after every operation by spinning, which on a busy machine takes many times as
long as the work itself. Here every piece is computed by one thread from beginning to end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

__all__ = ["ordered_map", "undivided"]

T = TypeVar("T")
R = TypeVar("R")


#: The threads that the outermost of nested contexts has found.
_found: ContextVar[int | None] = ContextVar("threads", default=None)


@contextmanager
def undivided() -> Iterator[int]:
    """Context in which torch does not divide operations among threads; gives the number of threads that it had."""
    found = _found.get()
    if found is not None:
        yield found
        return
    threads = torch.get_num_threads()
    token = _found.set(threads)
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
        _found.reset(token)


def ordered_map(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """``function(item)`` for every item, in their order, on so many threads. Items are drawn as they are needed.

    To be called inside :func:`undivided`, where operations of torch are not divided any further.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:  # what is left when the caller has had enough, or a piece has failed
                future.cancel()
