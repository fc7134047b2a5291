"""A run of a sweep, and the interfaces of what executes runs and of what observes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..training.checkpoint import require_same
from ..training.reporter import Snapshot
from ..training.result import RESULT_FILE, Result
from ..training.settings import Settings

__all__ = ["Backend", "Run", "SweepError", "Watcher"]


@dataclass(frozen=True)
class Run:
    """A configuration and its folder."""

    config: Settings
    directory: Path

    @property
    def key(self) -> str:
        """The name of the run."""
        return self.directory.name

    def result(self) -> Result | None:
        """Its result, if it has ended; ValueError if what is there is another run's."""
        file = self.directory / RESULT_FILE
        if not file.exists():
            return None
        result = Result.load(file, type(self.config))
        require_same(file, self.config, result.config.hash_fields())
        return result


class Watcher(Protocol):
    """The interface of an observer of runs."""

    def started(self, run: Run) -> None:
        """A run began."""

    def progress(self, run: Run, snapshot: Snapshot) -> None:
        """A run has made progress."""

    def busy(self, run: Run, owner: str) -> None:
        """Another process, named in words, executes the run; its result will be taken."""

    def ended(self, run: Run, result: Result) -> None:
        """A run succeeded or failed; either is a result."""

    def crashed(self, run: Run, reason: str) -> None:
        """The process of a run died, or could not begin: there is no result."""


class Backend(Protocol):
    """The interface of what executes runs and reports their ends; the next sweep executes those that have none."""

    def __call__(
        self, runs: Sequence[Run], watcher: Watcher, *, jobs: int | None, threads: int | None, address: str | None
    ) -> None:
        """Execute the runs, and report to the watcher."""


class LostWorkerError(RuntimeError):
    """A worker process has died before it could begin."""


class SweepError(RuntimeError):
    """Some runs have no result because their process died. The others have theirs.

    Attributes:
        reasons: for each of them, by the name of the run.
        results: of the runs that have ended.
    """

    def __init__(self, reasons: dict[str, str], results: list[Result], directory: Any) -> None:
        listed = "\n".join(f"  {key}: {reason}" for key, reason in reasons.items())
        super().__init__(
            f"{len(reasons)} of the runs in {directory} ended without a result:\n{listed}\n"
            "The others are done. Start the sweep again to try these once more"
        )
        self.reasons = reasons
        self.results = results
