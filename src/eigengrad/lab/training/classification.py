"""Classification of images: a network, cross entropy, stochastic gradient descent."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from ..data import Loader, Split, load, loader
from ..data.augment import ColourJitter
from ..models import build, normalisation
from ..models.normalisation import normalise_more
from .config import Config
from .engine import Engine
from .loop import run
from .reporter import Reporter
from .result import Result
from .synchronise import synchronise
from .task import Task

__all__ = ["Classification", "train"]

#: Guessing has a loss of log(classes). Above so many times that, a network has not just learned badly.
DIVERGED = 100


class Classification(Task):
    """The task that a :class:`Config` describes."""

    def __init__(self, config: Config, engine: Engine) -> None:
        self.config, self.engine = config, engine
        root = None if config.data_root is None else Path(config.data_root)
        self.data = load(config.data, root, subset=config.subset, image_size=config.image_size)
        if config.colour_jitter:
            jitter = ColourJitter(self.data.augmentation, config.colour_jitter)
            self.data = dataclasses.replace(self.data, augmentation=jitter)
        images, _ = next(iter(self._loader(self.data.train, epoch=0)))
        options: dict[str, Any] = {
            "group_size": config.group_size,
            "gradient": config.gradient,
            "degree": config.degree,
            "eps": config.eps,
            "momentum": config.norm_momentum,
            "whitening": config.whitening,
            "average": config.average,
        }
        model = build(
            config.model,
            len(self.data.classes),
            norm=normalisation(config.norm, **options),
            pooling=config.pooling,
            pooling_eps=config.pooling_eps,
            stem_width=config.stem_width,
            width=config.width,
            in_channels=images.shape[1],
            image_size=images.shape[-1],
        )
        if config.whitened != "first" and config.norm not in ("batchnorm", "none"):
            names = None if config.whitened == "all" else [name.strip() for name in config.whitened.split(",")]
            normalise_more(model, names, normalisation(config.norm, **options, divide=True))
        if engine.world > 1:
            model = synchronise(model, engine.device)
        # A quarter faster on CPUs, and what tensor cores want.
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = SGD(
            model.parameters(), config.lr, momentum=config.momentum, weight_decay=config.weight_decay, foreach=True
        )
        self.modules = {"model": model}
        self.optimizers = {"model": optimizer}
        self.schedulers = {"model": StepLR(optimizer, config.lr_step, config.lr_factor)}
        self.epochs = config.epochs
        self.divergence = DIVERGED * math.log(max(len(self.data.classes), 2))

    def epoch_batches(self, epoch: int) -> Loader:
        """The training images, shuffled and augmented."""
        return self._loader(self.data.train, epoch=epoch)

    def step(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Take a step on a batch: its loss and error rate."""
        images, labels = batch
        scores = self._scores(images)
        loss = nn.functional.cross_entropy(scores, labels)
        self.engine.descend(loss)
        return {"loss": loss.detach(), "error": _wrong(scores, labels) / len(labels)}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss, top-1 and top-5 error rates on the test images."""
        model = self.modules["model"].eval()
        totals = self.engine.vector([0.0] * 4)
        guesses = min(5, len(self.data.classes))
        for images, labels in self.engine.batches(self._loader(self.data.test, epoch=None)):
            scores = self._scores(images)
            loss = nn.functional.cross_entropy(scores, labels, reduction="sum")
            missed = _wrong(scores, labels, guesses)
            totals += torch.stack([loss, _wrong(scores, labels), missed, loss.new_tensor(len(labels))])
        model.train()
        loss_sum, wrong, missed_five, count = self.engine.sum(totals).tolist()
        values = {"test_loss": loss_sum / count, "test_error": wrong / count}
        return values | {"test_top5_error": missed_five / count} if len(self.data.classes) > 5 else values

    def _scores(self, images: Tensor) -> Tensor:
        scores: Tensor = self.modules["model"](images.contiguous(memory_format=torch.channels_last))
        return scores

    def _loader(self, split: Split, epoch: int | None) -> Loader:
        data = self.data
        return loader(
            split,
            self.config.batch_size,
            train=epoch is not None,
            augmentation=data.augmentation,
            mean=data.mean,
            std=data.std,
            seed=self.config.seed,
            epoch=epoch or 0,
            rank=self.engine.rank,
            world=self.engine.world,
        )


def _wrong(scores: Tensor, labels: Tensor, guesses: int = 1) -> Tensor:
    """The number of labels that are not among the k highest scores; NaN is never right."""
    scores = scores.detach()
    right = (scores.topk(guesses, 1).indices == labels[:, None]).any(1) & ~scores.isnan().any(1)
    return (~right).sum(dtype=torch.float32)


def train(
    config: Config,
    directory: Path | str,
    *,
    resume: bool = True,
    progress: bool | Reporter = True,
    checkpoint_steps: int | None = None,
) -> Result:
    """Train a classifier; see :func:`~eigengrad.lab.training.run` for the folder, the options and the errors."""
    if not isinstance(config, Config):
        raise TypeError(f"train: config must be a Config; got {config!r}")
    return run(
        config,
        lambda engine: Classification(config, engine),
        directory,
        resume=resume,
        progress=progress,
        checkpoint_steps=checkpoint_steps,
    )
