"""What a process may take: limits on memory and time, for tests of files that ask for much."""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path


def peak_memory() -> int:
    """The most bytes that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def limited_memory(more: int):
    """This process cannot allocate more than so many bytes beyond what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    have = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (have + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class TooSlowError(BaseException):
    """No kind of error that anything catches."""


@contextlib.contextmanager
def time_limit(seconds: int):
    def late(*_: object) -> None:
        raise TooSlowError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
