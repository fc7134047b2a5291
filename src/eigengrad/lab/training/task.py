"""What the training loop trains: anything with modules, optimisers and a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sized
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .engine import Engine

__all__ = ["Batches", "Task"]


class Batches(Sized, Protocol):
    """Batches of known number."""

    def __iter__(self) -> Any: ...


class Task(ABC):
    """One kind of training, as the loop sees it.

    A task is built with the engine, fills the attributes below in its constructor, and the loop has the engine prepare
    them for the device. In :meth:`step` it goes forward as it likes and calls ``self.engine.descend(loss, name)`` once
    for every optimiser it wants to move, so adversarial training is one task with two optimisers. An epoch is the
    stretch between two evaluations; a task that counts iterations makes it as many as it wants.

    Attributes:
        engine: device, precision and processes.
        modules: by name; what is trained and saved.
        optimizers: by name.
        schedulers: by name; stepped after every epoch.
        epochs: how many there are.
        criterion: the entry of :meth:`evaluate` by which the best epoch is chosen: smaller is better.
        divergence: the mean "loss" of an epoch from which on the run has diverged.
    """

    engine: Engine
    modules: dict[str, nn.Module]
    optimizers: dict[str, Optimizer]
    schedulers: dict[str, LRScheduler]
    epochs: int
    criterion: str = "test_error"
    divergence: float = math.inf

    @abstractmethod
    def epoch_batches(self, epoch: int) -> Batches:
        """The batches of an epoch (counted from 0) for this process: always the same ones for the same epoch."""

    @abstractmethod
    def step(self, batch: Any) -> dict[str, Tensor]:
        """Take one step. Scalars on the device, means over the batch; one of them is "loss"."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Numbers about the modules as they are now, the same in every process; each becomes a curve."""

    def size(self, batch: Any) -> int:
        """The samples of a batch: what means are weighted by, and speed is counted in."""
        return len(batch[0])

    def images(self) -> dict[str, Tensor]:
        """Images to look at after an epoch, for TensorBoard: (N, 3, H, W) between 0 and 1, by name."""
        return {}
