"""A few threads of our own for kernels that release the interpreter's lock.

Not numba's ``parallel=True``: its OpenMP layer brings a second runtime beside torch's and kills forked children
(DataLoader workers), and its workqueue refuses concurrent callers. Here any thread may call at any time, a forked
child starts with fresh threads, and ``torch.set_num_threads`` is respected.

A sleeping thread takes some 50 µs to wake. So a worker that has finished stays awake at its desk for a while
(:mod:`.desks`), and work is not dealt out but taken, part by part (:mod:`.parts`): the caller begins at once, and a
worker that comes late finds the less to do.

On a machine of few cores Linux often wakes a thread on the core of the one that woke it, although another is idle. That
core is busy with the caller's own part, so the worker would come milliseconds late. Workers are therefore kept off the
core that the caller is on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .compiled import Entry

__all__ = ["FAILED", "LONG", "SHORT", "share"]

FAILED = 1 << 62  # in the union of results: a kernel stopped, which it does where there is no memory to work in

SHORT = 20.0  # microseconds of work for each thread but the first: for less it does not pay, even if it is awake
LONG = 120.0  # microseconds of work from which one is woken, or waited for where it has lost its core
_PARTS = 8  # for each thread: the fewer, the longer the last one is waited for
_FEW = 7  # workers, at most, that are kept off the caller's core
_PATIENCE = 3000  # looks at a desk, some 80 µs,
_MORE = 350  # and as many that make way for others, some 170 µs, before falling asleep
_LATER = 1e-3  # seconds after which a worker that had lost its core is asked again for short work
_NAP = 5e-5  # seconds between looks at who was interrupted at work
_SOON = 2e-4  # seconds: calls that follow each other within it find a worker awake that was woken for the first


class _Worker(threading.Thread):
    """A thread that does what is posted on its desk, and sleeps when nothing has been for a while."""

    def __init__(self) -> None:
        super().__init__(name="eigengrad", daemon=True)
        from . import desks  # needs numba, which is loaded when there is something to do

        self.post, self.serve, self.take_back = desks.post, desks.serve, desks.take_back
        self.bell: SimpleQueue[None] = SimpleQueue()
        self.memory = array("q", [0, desks.GONE] * 8)  # there is a whole cache line in it
        place, _ = self.memory.buffer_info()
        self.desk = place + 63 & -64
        self.cores: set[int] = set()  # that it may be on,
        self.others: set[int] | None = None  # and what it was last confined to

    def run(self) -> None:
        while True:
            self.bell.get()
            self.serve(self.desk, _PATIENCE, _MORE)

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
    """Workers; as many as were ever needed at once by one caller."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.growing = threading.Lock()
        self.core = -1  # that the workers were last kept off
        self.used = 0.0  # when it last was,
        self.busy = 0.0  # and until when nobody is to be had for short work

    def grow(self, size: int) -> None:
        with self.growing, contextlib.suppress(RuntimeError):  # no more threads to be had: the caller works alone
            while len(self.workers) < size:
                worker = _Worker()
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

    def post(self, function: int, memory: int, wanted: int, wake: bool, late: bool) -> int:
        """Ask so many workers to call ``function(memory)``; how many were asked."""
        asked = 0
        for worker in self.workers:
            posted = worker.post(worker.desk, function, memory, wake, late)
            if posted == 2:
                worker.bell.put(None)
            asked += posted > 0
            if asked == wanted:
                break
        return asked

    def take_back(self, memory: int) -> None:
        """Until no worker is at a call, or will be: they use the caller's memory. Interruptions come after."""
        interruption: BaseException | None = None
        waiting = True
        while waiting:
            try:
                for worker in self.workers:
                    while not worker.take_back(worker.desk, memory, _PATIENCE):
                        time.sleep(_NAP)
                waiting = False
            except BaseException as error:  # Ctrl-C
                interruption = error
        if interruption is not None:
            raise interruption


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
    kernel: Entry, arguments: Sequence[Any], count: int, unit: int, options: Sequence[Any], microseconds: float
) -> int:
    """``kernel(*arguments, 0, count, *options, 0)`` by as many threads as torch has, the caller among them.

    Args:
        kernel: takes parts of the range from its last argument, the address of a ledger: see :mod:`.parts`.
        arguments, options: what it gets before and after the range.
        count: the length of the range.
        unit: parts begin at multiples of it.
        microseconds: what it takes alone, about: whether others are asked, and woken if they sleep.

    Returns:
        The union of the results of all parts, as bits.
    """
    units = -(-count // unit)
    others = min(torch.get_num_threads() - 1, units - 1, int(microseconds / SHORT))
    pool, now, late = _pool, time.perf_counter(), microseconds >= LONG
    if others < 1 or (now < pool.busy and not late):
        return kernel(*arguments, 0, count, *options, 0)
    if len(pool.workers) < others:
        pool.grow(others)
    pool.make_way()
    adapter = kernel.adapter
    size = max(1, units // (_PARTS * (others + 1))) * unit
    memory = array("q", adapter.pack(0, size, 0, *arguments, 0, count, *options))
    place, _ = memory.buffer_info()
    try:
        wake = late or now - pool.used < _SOON
        if not pool.post(adapter.address, place, others, wake, late) and wake:
            pool.busy = now + _LATER
        kernel(*arguments, 0, count, *options, place)
        pool.take_back(place)
    except BaseException:
        memory[0] = count  # nobody takes any more
        pool.take_back(place)
        for worker in pool.workers:  # one may have been called whose bell was not rung yet
            worker.bell.put(None)
        raise
    pool.used = time.perf_counter()
    if memory[2] & FAILED:
        raise MemoryError("a kernel found no memory to work in")
    return memory[2]
