"""A few threads of our own for kernels that release the interpreter's lock.

Not numba's ``parallel=True``: its OpenMP layer brings a second runtime beside torch's and kills forked children
(DataLoader workers), and its workqueue refuses concurrent callers. Here any thread may call at any time, a forked
child starts with fresh threads, and ``torch.set_num_threads`` is respected.

A sleeping thread takes some 50 µs to wake. So work is not dealt out but taken, part by part (:mod:`.parts`): the caller
begins at once, and a worker that comes late finds the less to do.

On a machine of few cores Linux often wakes a thread on the core of the one that woke it, although another is idle. That
core is busy with the caller's own part, so the worker would come milliseconds late. Workers are therefore kept off the
core that the caller is on.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import torch

__all__ = ["share"]

_PARTS = 8  # for each thread: the fewer, the longer the last one is waited for
_FEW = 7  # workers, at most, that are kept off the caller's core
_PATIENCE = 3000  # looks at what is missing before falling asleep, some 100 µs


class _Task:
    """One call for a worker, unless the caller is done before one comes to it."""

    __slots__ = ("arguments", "done", "error", "finished", "kernel", "ledger", "taker")

    def __init__(self, kernel: Callable[..., int], arguments: tuple[Any, ...], ledger: array[int]) -> None:
        self.kernel, self.arguments = kernel, arguments
        self.ledger = ledger  # whose address is among the arguments: a late worker still looks into it
        self.taker: dict[None, int] = {}
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
            self.kernel(*self.arguments)
        except BaseException as error:  # reaches the caller, not the worker's end
            self.error = error
        self.finished = True
        self.done.release()


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


class _Worker(threading.Thread):
    """A thread that waits for tasks."""

    def __init__(self, tasks: SimpleQueue[_Task]) -> None:
        super().__init__(name="eigengrad", daemon=True)
        self.tasks = tasks
        self.cores: set[int] = set()  # that it may be on,
        self.others: set[int] | None = None  # and what it was last confined to

    def run(self) -> None:
        while True:
            self.tasks.get().run()

    def keep_off(self, core: int) -> None:
        """Run on another core than this one, among those that it may be on."""
        assert self.native_id is not None
        now = os.sched_getaffinity(self.native_id)
        if now != self.others:  # new, or somebody else has changed it: that is the choice then
            self.cores = now
        self.others = self.cores - {core} or self.cores
        if self.others != now:
            os.sched_setaffinity(self.native_id, self.others)


class _Pool:
    """Threads that wait for tasks; as many as were ever needed at once by one caller."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[_Task] = SimpleQueue()
        self.workers: list[_Worker] = []
        self.growing = threading.Lock()
        self.core = -1  # that the workers were last kept off

    def grow(self, size: int) -> None:
        with self.growing, contextlib.suppress(RuntimeError):  # no more threads to be had: the caller works alone
            while len(self.workers) < size:
                worker = _Worker(self.tasks)
                worker.start()
                self.workers.append(worker)
                self.core = -1

    def make_way(self) -> None:
        """Keep the workers off the core that the caller is on. Of many cores there is always another one idle."""
        here = _core()
        if here != self.core and len(self.workers) <= _FEW:
            self.core = here
            with contextlib.suppress(OSError):  # it is not allowed here
                for worker in self.workers:
                    worker.keep_off(here)


def _find_core() -> Callable[[], int]:
    """What tells the core that a thread is on, or else always the same."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            core: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
            return core
    return lambda: -1


_core = _find_core()
_pool = _Pool()


def _forget_threads() -> None:
    """After a fork the child has none of the parent's threads."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


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
    if others < 1:
        return kernel(*arguments, 0, count, *options, 0)
    ledger = array("q", (0, 0, 0, max(1, units // (_PARTS * (others + 1))) * unit))
    address, _ = ledger.buffer_info()
    pool = _pool
    if len(pool.workers) < others:
        pool.grow(others)
    pool.make_way()
    call = (*arguments, 0, count, *options, address)
    tasks = [_Task(kernel, call, ledger) for _ in range(others)]
    try:
        for task in tasks:
            pool.tasks.put(task)
        kernel(*call)
        if not _finished()(address, count, _PATIENCE):
            _wait(tasks)
    except BaseException:
        ledger[0] = count  # nobody takes any more
        _wait(tasks)
        raise
    for task in tasks:
        task.take()  # what no worker has come to yet is off
        if task.error is not None:
            raise task.error
    return ledger[2]


@functools.cache
def _finished() -> Callable[[int, int, int], bool]:
    from .parts import finished

    return finished
