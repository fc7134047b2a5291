"""Runs of a sweep that other processes are executing, such as another sweep in the same folder."""

from __future__ import annotations

from ..training.lock import is_held
from .run import Run, Watcher

__all__ = ["BusyRuns"]


class BusyRuns:
    """The runs that other processes hold, until they have a result or their lock is released.

    Args:
        watcher: is told of them, and of their results.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._runs: dict[str, Run] = {}
        self._named: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: Run, owner: str) -> None:
        """Add a run that the owner, a process described in words, holds."""
        self._runs[run.key] = run
        if run.key not in self._named:
            self._named.add(run.key)
            self._watcher.busy(run, owner)

    def collect(self) -> list[Run]:
        """Report the runs that have ended, and return those that were left without a result, to be executed here."""
        left = []
        for run in list(self._runs.values()):
            if is_held(run.directory):
                continue
            del self._runs[run.key]
            result = run.result()
            if result is None:
                left.append(run)
            else:
                self._watcher.ended(run, result)
        return left
