"""Image translation as the training loop sees it."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import l1_loss
from torch.optim import Adam
from torch.optim.lr_scheduler import LambdaLR

from ...training import Engine, Result, Task, run
from ...training.reporter import Reporter
from .config import TranslationConfig
from .domains import Pairs, centres, load_domains
from .losses import Scores, adversarial_loss, critic_loss, generator_losses
from .translator import Critics, Passes, Translator

__all__ = ["Translation", "train"]

#: Pictures to evaluate with, and to show.
_EVALUATED, _SHOWN = 16, 4

#: Of the weighted loss. At the beginning it is about 40; with this, the pictures are no longer anything.
DIVERGED = 1e4


class Translation(Task):
    """Optimisers for the networks and for their discriminators; an epoch is the steps between two evaluations."""

    #: Mean absolute error of test pictures that went there and back, as a share of the range from black to white.
    criterion = "test_error"
    divergence = DIVERGED

    def __init__(self, config: TranslationConfig, engine: Engine) -> None:
        self.config, self.engine = config, engine
        if config.batch_size % engine.world:
            raise ValueError(
                f"batch_size: got {config.batch_size}, which {engine.world} processes cannot share equally"
            )
        self.a, self.b = load_domains(config)
        self.modules = {"translator": Translator(config), "critics": Critics(config)}
        self.optimizers = {
            name: Adam(network.parameters(), config.lr, (0.5, 0.999), weight_decay=config.weight_decay)
            for name, network in self.modules.items()
        }
        self.schedulers = {name: LambdaLR(optimizer, self._share) for name, optimizer in self.optimizers.items()}
        self.epochs = config.iterations // config.evaluate_every
        count = min(_EVALUATED, len(self.a.test), len(self.b.test))
        self._test = tuple(
            engine.placed(centres(domain.test[:count], config.image_size)) for domain in (self.a, self.b)
        )

    def _share(self, epoch: int) -> float:
        """The share of the learning rate that is left after so many epochs."""
        config = self.config
        halvings = max(0, epoch * config.evaluate_every - config.decay_from) // config.decay_every
        return math.ldexp(1.0, -halvings)

    def epoch_batches(self, epoch: int) -> Pairs:
        """Unpaired pictures of both domains."""
        config = self.config
        return Pairs(
            self.a,
            self.b,
            config.image_size,
            config.batch_size,
            config.evaluate_every,
            epoch * config.evaluate_every,
            config.seed,
            self.engine.rank,
            self.engine.world,
        )

    def step(self, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Take a step of the discriminators, then one of the networks on the same pictures."""
        a, b = batch
        passes: Passes = self.modules["translator"](a, b)
        critics = self.modules["critics"]
        # One call for made and real: with several processes, a module is to be called once before its backward pass.
        scores = critics(torch.cat([passes.ba.detach(), a]), torch.cat([passes.ab.detach(), b]))
        judged = critic_loss(_part(scores, slice(len(a))), _part(scores, slice(len(a), None)))
        self.engine.descend(judged, "critics")
        parts = generator_losses(passes, a, b, self.config)
        parts["adversarial"] = adversarial_loss(self._opinion(passes.ba, passes.ab))
        loss = torch.stack(list(parts.values())).sum()
        self.engine.descend(loss, "translator")
        values = {"loss": loss, "critic": judged, **parts}
        return {name: value.detach() for name, value in values.items()}

    def _opinion(self, a: Tensor, b: Tensor) -> Scores:
        """Scores of the discriminators as constants: the gradient is for the pictures only."""
        critics = self.engine.unwrap(self.modules["critics"])
        fixed = {name: parameter.detach() for name, parameter in critics.named_parameters()}
        scores: Scores = functional_call(critics, fixed, (a, b))
        return scores

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Errors of test pictures there and back, and of those from their own content and style."""
        a, b = self._test
        totals: dict[str, float] = {"test_error": 0.0, "test_reconstruction_error": 0.0}
        for x, y in zip(a.split(4), b.split(4), strict=True):
            passes = self._translator(x, y)
            weight = len(x) / len(a) / 4  # two domains, and a range from −1 to 1
            totals["test_error"] += float(l1_loss(passes.aba, x) + l1_loss(passes.bab, y)) * weight
            totals["test_reconstruction_error"] += float(l1_loss(passes.aa, x) + l1_loss(passes.bb, y)) * weight
        return totals

    @torch.no_grad()
    def images(self) -> dict[str, Tensor]:
        """A few test pictures, translated there and back, for TensorBoard."""
        a, b = (part[:_SHOWN] for part in self._test)
        passes = self._translator(a, b)
        shown = {
            "a": a,
            "a_as_b": passes.ab,
            "a_and_back": passes.aba,
            "a_itself": passes.aa,
            "b": b,
            "b_as_a": passes.ba,
            "b_and_back": passes.bab,
            "b_itself": passes.bb,
        }
        return {name: value.float().add(1).div(2).clamp(0, 1).cpu() for name, value in shown.items()}

    def _translator(self, a: Tensor, b: Tensor) -> Passes:
        passes: Passes = self.engine.unwrap(self.modules["translator"])(a, b)
        return passes


def _part(scores: Scores, part: slice) -> Scores:
    """The scores of some of the pictures."""
    a, b = ([score[part] for score in domain] for domain in scores)
    return a, b


def train(
    config: TranslationConfig,
    directory: Path | str,
    *,
    resume: bool = True,
    progress: bool | Reporter = True,
    checkpoint_steps: int | None = None,
) -> Result:
    """Train a translation; see :func:`eigengrad.lab.training.train`.

    The weights in ``last.pt`` are ``torch.load(path)["modules"]["translator"]``.
    """
    if not isinstance(config, TranslationConfig):
        raise TypeError(f"train: config must be a TranslationConfig; got {config!r}")
    return run(
        config,
        lambda engine: Translation(config, engine),
        directory,
        resume=resume,
        progress=progress,
        checkpoint_steps=checkpoint_steps,
    )
