"""The progress of a sweep on the terminal: a table of the running runs, and how many are done."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..training.reporter import Snapshot
from ..training.result import Result
from .run import Run

__all__ = ["ProgressTable"]


class ProgressTable:
    """A table that is kept up to date, and a line for every run that ends; without a terminal, the lines only.

    Args:
        total: runs of the sweep.
        done: how many of them had ended before.
        visible: whether to show anything.

    Attributes:
        crashes: why runs ended without a result, by name.
    """

    def __init__(self, total: int, done: int, *, visible: bool, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, quiet=not visible)
        self.total, self.done, self.failed = total, done, 0
        self.crashes: dict[str, str] = {}
        self._before = done
        self._began = time.monotonic()
        self._running: dict[str, Snapshot | None] = {}
        self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> ProgressTable:
        if self._before:
            self.say(f"{self._before} of {self.total} runs are already done")
        if self.console.is_terminal and not self.console.quiet:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def started(self, run: Run) -> None:
        """Add a row for a run."""
        self._running[run.key] = None

    def progress(self, run: Run, snapshot: Snapshot) -> None:
        """Update the row of a run."""
        self._running[run.key] = snapshot

    def busy(self, run: Run, owner: str) -> None:
        """Replace the row by a line: another process holds the run."""
        self._running.pop(run.key, None)
        self.say(f"{run.key}  is being done by {owner}; its result will be taken when it is there")

    def ended(self, run: Run, result: Result) -> None:
        """Replace the row by a line with the outcome."""
        self._running.pop(run.key, None)
        self.done += 1
        if result.failure is not None:
            self.failed += 1
            outcome = f"failed: {result.failure.message}"
        else:
            outcome = f"best error {100 * (result.best_error or 0):.2f} % in epoch {result.best_epoch}"
        self.say(f"{self.done}/{self.total}  {run.key}  {outcome}  {result.seconds:.0f} s")
        for change in result.changes:
            what, before, after = change["what"], change["before"], change["after"]
            text = f"{what} was {before} up to step {change['step']} and {after} after it"
            self.say(f"{run.key}  {text}: the last bits differ from those of an uninterrupted run")

    def crashed(self, run: Run, reason: str) -> None:
        """Replace the row by a line with the reason, and keep it."""
        self._running.pop(run.key, None)
        self.crashes[run.key] = reason
        self.say(f"{run.key}  ended without a result: {reason}")

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        table.add_column("run")
        for column in ("epoch", "done", "loss", "accuracy", "|g|", "images/s"):
            table.add_column(column, justify="right")
        for key, snapshot in self._running.items():
            table.add_row(key, *(_cells(snapshot) if snapshot else ("…",)))
        failed = f" ({self.failed} failed)" if self.failed else ""
        summary = f"{self.done} of {self.total} done{failed}, {len(self._running)} at work"
        return Group(table, Text(summary + self._remaining(), style="bold"))

    def _remaining(self) -> str:
        """The estimated time that is left, in words."""
        shares = sum(snapshot.share for snapshot in self._running.values() if snapshot)
        advanced = self.done - self._before + shares + len(self.crashes)
        if advanced < 0.05:
            return ""
        left = (self.total - self._before - advanced) * (time.monotonic() - self._began) / advanced
        minutes, seconds = divmod(round(left), 60)
        return f", about {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"


def _cells(snapshot: Snapshot) -> tuple[str, ...]:
    error = snapshot.values.get("error")
    return (
        f"{snapshot.epoch}/{snapshot.epochs}",
        f"{100 * snapshot.share:.0f} %",
        f"{snapshot.values['loss']:.3f}",
        "" if error is None else f"{100 * (1 - error):.1f} %",
        f"{snapshot.gradient_norm:.2g}",
        f"{snapshot.samples_per_second:,.0f}",
    )
