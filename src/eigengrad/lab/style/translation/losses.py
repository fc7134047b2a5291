"""The losses of the networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import l1_loss

from .config import TranslationConfig
from .translator import Passes

__all__ = ["Scores", "adversarial_loss", "critic_loss", "generator_losses"]

#: The scores of the judges of A and of B, scale by scale.
Scores = tuple[list[Tensor], list[Tensor]]


def generator_losses(passes: Passes, a: Tensor, b: Tensor, config: TranslationConfig) -> dict[str, Tensor]:
    """The parts of the generators' loss that need no discriminator, each with its weight, by name."""
    content_a, content_b, content_ab, content_ba = passes.content
    style_a, style_b, style_ba, style_ab = passes.style
    parts = {
        "reconstruction": l1_loss(passes.aa, a) + l1_loss(passes.bb, b),
        "cycle": l1_loss(passes.aba, a) + l1_loss(passes.bab, b),
        "content": l1_loss(content_ab, content_a) + l1_loss(content_ba, content_b),
        "style": _distance(style_ab, style_b) + _distance(style_ba, style_a),
    }
    if config.wct == "gd":
        parts |= {"whitening": passes.penalties[0], "coloring": passes.penalties[1]}
    return {name: getattr(config, f"{name}_weight") * part for name, part in parts.items()}


def adversarial_loss(made: Scores) -> Tensor:
    """The least-squares loss of generated pictures that should be classified as real, summed over the scales."""
    return torch.stack([(scores - 1).square().mean() for domain in made for scores in domain]).sum()


def critic_loss(made: Scores, real: Scores) -> Tensor:
    """The least-squares loss of the discriminators: 0 for generated pictures and 1 for real ones."""
    wrong = [scores.square().mean() for domain in made for scores in domain]
    return torch.stack(wrong).sum() + adversarial_loss(real)


def _distance(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    return torch.stack([l1_loss(one, other) for one, other in zip(first, second, strict=True)]).sum()
