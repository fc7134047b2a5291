"""A few threads of our own for kernels that release the interpreter's lock.

Not numba's ``parallel=True``: its OpenMP layer brings a second runtime beside torch's and kills forked children
(DataLoader workers), and its workqueue refuses concurrent callers. Here any thread may call at any time, a forked
child starts with fresh threads, and ``torch.set_num_threads`` is respected. Handing over work costs some 20 µs, so
callers stay on one thread below ten times that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch

__all__ = ["parallel", "shares"]


class _Task:
    """One call, done by whichever thread takes it first: a worker, or the caller if they are all busy."""

    __slots__ = ("arguments", "done", "error", "finished", "kernel", "result", "taker")

    def __init__(self, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.kernel, self.arguments = kernel, arguments
        self.taker: dict[None, int] = {}
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.done = threading.Lock()
        self.done.acquire()

    def take(self) -> bool:
        """Whether it belongs to this thread, which it does from now on if it was nobody's."""
        me = threading.get_ident()
        return self.taker.setdefault(None, me) == me  # one step, which no interruption can cut in two

    def run(self) -> None:
        if not self.take():
            return
        try:
            self.result = self.kernel(*self.arguments)
        except BaseException as error:  # reaches the caller, not the worker's end
            self.error = error
        self.finished = True
        self.done.release()

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def _wait(tasks: Sequence[_Task]) -> None:
    """Until no other thread works on any of them, or will: they use the caller's memory. Interruptions come after."""
    interruption: BaseException | None = None
    waiting = True
    while waiting:
        try:
            for task in tasks:
                while not task.finished and not task.take():
                    task.done.acquire()
            waiting = False
        except BaseException as error:  # Ctrl-C
            interruption = error
    if interruption is not None:
        raise interruption


class _Pool:
    """Threads that wait for tasks; as many as were ever needed at once by one caller."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[_Task] = SimpleQueue()
        self.size = 0
        self.growing = threading.Lock()

    def grow(self, size: int) -> None:
        with self.growing, contextlib.suppress(RuntimeError):  # no more threads to be had: the caller works alone
            while self.size < size:
                threading.Thread(target=self._work, name="eigengrad", daemon=True).start()
                self.size += 1

    def _work(self) -> None:
        while True:
            self.tasks.get().run()


_pool = _Pool()


def _forget_threads() -> None:
    """After a fork the child has none of the parent's threads."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def parallel(kernel: Callable[..., Any], parts: Sequence[tuple[Any, ...]]) -> list[Any]:
    """``[kernel(*part) for part in parts]``, each in a thread; the first in the calling one."""
    if len(parts) == 1:
        return [kernel(*parts[0])]
    pool = _pool
    if pool.size < len(parts) - 1:
        pool.grow(len(parts) - 1)
    tasks = [_Task(kernel, part) for part in parts[1:]]
    try:
        for task in tasks:
            pool.tasks.put(task)
        first = kernel(*parts[0])
        for task in tasks:
            task.run()
    finally:
        _wait(tasks)
    return [first, *(task.outcome() for task in tasks)]


def shares(count: int, unit: int) -> list[tuple[int, int]]:
    """Cut ``range(count)`` for torch's number of threads, at multiples of ``unit``."""
    units = -(-count // unit)
    threads = max(1, min(torch.get_num_threads(), units))
    cuts = [min(count, units * t // threads * unit) for t in range(threads + 1)]
    return list(itertools.pairwise(cuts))
