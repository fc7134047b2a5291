"""Independent pieces of arithmetic over several processes, one thread each."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

__all__ = ["starmap"]

T = TypeVar("T")
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def starmap(function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[T]:
    """``function(*task)`` for every task, in order, by ``jobs`` processes (by this one if jobs is 1)."""
    if jobs <= 1:
        yield from (function(*task) for task in tasks)
        return
    # A library counts its threads when it is first loaded, so the children must find the number in their environment.
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        # A forked child would inherit the locks of torch's threads, but not the threads.
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            futures = [pool.submit(function, *task) for task in tasks]
            try:
                for future in futures:
                    yield future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
