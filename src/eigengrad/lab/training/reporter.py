"""Reporters of the progress of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["Reporter", "Silent", "Snapshot", "Terminal", "describe"]


@dataclass(frozen=True)
class Snapshot:
    """The progress of a run at some step.

    Attributes:
        epoch, epochs: the epoch at work, counted from 1, and how many there are.
        batch, batches: done in this epoch, and how many it has.
        values: means over the epoch so far, among them "loss".
        gradient_norm: mean over the epoch so far.
        samples_per_second: in this epoch and session.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int
    values: dict[str, float]
    gradient_norm: float
    samples_per_second: float

    @property
    def share(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return (self.epoch - 1 + self.batch / max(self.batches, 1)) / self.epochs


class Reporter(Protocol):
    """The interface of a reporter."""

    def step(self, snapshot: Snapshot) -> None:
        """Report a step; called at most a few times a second."""

    def epoch(self, epoch: int, epochs: int, values: dict[str, float]) -> None:
        """Report the end of an epoch (counted from 1), with its values of the curves."""

    def message(self, text: str) -> None:
        """Report a message."""

    def close(self) -> None:
        """End the report."""


class Silent:
    """A reporter that discards everything."""

    def step(self, snapshot: Snapshot) -> None:
        """Discard the step."""

    def epoch(self, epoch: int, epochs: int, values: dict[str, float]) -> None:
        """Discard the epoch."""

    def message(self, text: str) -> None:
        """Discard the message."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Terminal:
    """A progress bar on standard error, and a line for every epoch; where there is no terminal, the lines only."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.fields[epoch]}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
        )
        self._bar = self._progress.add_task(
            "", total=1.0, epoch="preparing", state="", visible=self.console.is_terminal
        )
        if self.console.is_terminal:
            self._progress.start()

    def step(self, snapshot: Snapshot) -> None:
        """Update the progress bar."""
        self._progress.update(
            self._bar,
            completed=snapshot.share,
            epoch=f"epoch {snapshot.epoch}/{snapshot.epochs}",
            state=describe(snapshot),
        )

    def epoch(self, epoch: int, epochs: int, values: dict[str, float]) -> None:
        """Print the values of the epoch in a line."""
        shown = [f"{name.replace('_', ' ')} {_quantity(name, values[name])}" for name in _IN_LINE if name in values]
        line = f"epoch {epoch}/{epochs}  {'  '.join(shown)}  {values['seconds']:.1f} s"
        self.console.print(line, highlight=False, soft_wrap=True)

    def message(self, text: str) -> None:
        """Print the text."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Remove the progress bar."""
        if self.console.is_terminal:
            self._progress.stop()


_IN_LINE = ("train_loss", "train_error", "test_error", "gradient_norm", "lr")


def _quantity(name: str, value: float) -> str:
    """A value of a curve; errors, which are shares, in per cent as everywhere."""
    return f"{100 * value:.2f} %" if name.endswith("error") else f"{value:.4g}"


def describe(snapshot: Snapshot) -> str:
    """Loss, error, speed and gradient of a run, in a few words."""
    parts = [f"loss {snapshot.values['loss']:.3f}"]
    if "error" in snapshot.values:
        parts.append(f"error {100 * snapshot.values['error']:.1f} %")
    parts.append(f"|g| {snapshot.gradient_norm:.2g}")
    parts.append(f"{snapshot.samples_per_second:,.0f} images/s")
    return "  ".join(parts)


class Pace:
    """A rate limit: at most one report in so many seconds."""

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds = seconds
        self._last = 0.0

    def due(self) -> bool:
        """Whether a report is due; if so, the next is due after the interval."""
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True
