"""Run a kernel on one thread, or on several of torch's (:mod:`.openmp`).

A parallel region cannot be left before all of its threads are done, whatever signal arrives, so a kernel never outlives
the memory that it works on.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from .. import costs
from . import openmp
from .trampoline import FAILED, STATUS, Trampoline

__all__ = ["Launcher"]

_CHUNKS = 8  # for each thread: the fewer, the longer the last thread works alone
_NO_MEMORY = "a kernel found no memory to work in"


class Launcher:
    """A compiled kernel, ready to run."""

    def __init__(self, trampoline: Trampoline, code: object) -> None:
        self.address, self._pack, _ = trampoline
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)
        self._owners = trampoline, code

    def __call__(self, *arguments: Any) -> None:
        """Run a kernel that does not work in chunks."""
        block = array("q", self._pack(0, 0, 0, *arguments))
        self._call(block.buffer_info()[0])
        if block[STATUS]:
            raise MemoryError(_NO_MEMORY)

    def launch(self, arguments: Sequence[Any], count: int, unit: int, microseconds: float) -> int:
        """Run the kernel on as many threads as torch has, and return the status bits.

        Args:
            arguments: what the kernel takes, but for its first argument and its last.
            count: the length of the range that threads share.
            unit: chunks begin at multiples of it.
            microseconds: what one thread takes, about.
        """
        threads, size = 1, count
        if microseconds >= costs.THREAD_COST:
            units = -(-count // unit)
            threads = _threads(units, microseconds)
            if threads > 1:
                size = max(1, units // (_CHUNKS * threads)) * unit
        block = array("q", self._pack(0, size, 0, *arguments))
        place = block.buffer_info()[0]
        if threads == 1:
            self._call(place)
        else:
            _run_parallel(self.address, place, threads, microseconds)
        status = block[STATUS]
        if status & FAILED:
            raise MemoryError(_NO_MEMORY)
        return status


# Where other processes occupy the cores, a region lasts until its last thread gets one, which takes milliseconds.
_LATE = 8.0  # a region that takes so many times the estimate for one thread is late,
_LATE_BY = 1e-3  # if that is more than so many seconds longer:
_PAUSE = 0.05  # for so many seconds, calls then stay on one thread
_single_until = 0.0


def _threads(units: int, microseconds: float) -> int:
    """How many threads share so many units of work."""
    threads = min(1 + int(microseconds / costs.THREAD_COST), units, openmp.available_threads())
    return 1 if _single_until and perf_counter() < _single_until else threads


def _run_parallel(function: int, block: int, threads: int, microseconds: float) -> None:
    """Call ``function(block)`` from each of the threads of a parallel region, and note if that takes too long."""
    global _single_until
    runtime = openmp.runtime()
    assert runtime is not None
    begun = perf_counter()
    runtime.parallel(function, block, threads, 0)
    ended, expected = perf_counter(), microseconds * 1e-6
    if ended - begun > max(_LATE * expected, expected + _LATE_BY):
        _single_until = ended + _PAUSE
