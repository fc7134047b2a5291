"""What a person sees of a run while it goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["Reporter", "Silent", "Snapshot", "Terminal", "describe"]


@dataclass(frozen=True)
class Snapshot:
    """A run at some step.

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
    """Somebody who is told how a run goes."""

    def step(self, snapshot: Snapshot) -> None:
        """After some of the steps, a few times a second at most."""

    def epoch(self, epoch: int, epochs: int, values: dict[str, float]) -> None:
        """After an epoch (counted from 1), with what was added to the curves."""

    def message(self, text: str) -> None:
        """Something worth saying once."""

    def close(self) -> None:
        """Nothing more will come."""


class Silent:
    """Says nothing."""

    def step(self, snapshot: Snapshot) -> None:
        """Nothing."""

    def epoch(self, epoch: int, epochs: int, values: dict[str, float]) -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


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
        """Move the bar."""
        self._progress.update(
            self._bar,
            completed=snapshot.share,
            epoch=f"epoch {snapshot.epoch}/{snapshot.epochs}",
            state=describe(snapshot),
        )

    def epoch(self, epoch: int, epochs: int, values: dict[str, float]) -> None:
        """One line."""
        shown = [f"{name.replace('_', ' ')} {values[name]:.4g}" for name in _IN_LINE if name in values]
        line = f"epoch {epoch}/{epochs}  {'  '.join(shown)}  {values['seconds']:.1f} s"
        self.console.print(line, highlight=False, soft_wrap=True)

    def message(self, text: str) -> None:
        """Print it."""
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Remove the bar."""
        if self.console.is_terminal:
            self._progress.stop()


_IN_LINE = ("train_loss", "train_error", "test_error", "gradient_norm", "lr")


def describe(snapshot: Snapshot) -> str:
    """Loss, accuracy, speed and gradient of a run, in a few words."""
    parts = [f"loss {snapshot.values['loss']:.3f}"]
    if "error" in snapshot.values:
        parts.append(f"accuracy {100 * (1 - snapshot.values['error']):.1f} %")
    parts.append(f"|g| {snapshot.gradient_norm:.2g}")
    parts.append(f"{snapshot.samples_per_second:,.0f} images/s")
    return "  ".join(parts)


class Pace:
    """Says when it is time to report again."""

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds = seconds
        self._last = 0.0

    def due(self) -> bool:
        """Whether the last time this was true is long enough ago."""
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True
