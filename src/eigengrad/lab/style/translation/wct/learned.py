"""Whitening and colouring that is learned instead of computed: GD-WCT (Cho et al. 2019)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from .....nn.covariance import covariance
from .....precision import full_precision, widen
from .transfer import Transfer, grouped

__all__ = ["LearnedTransfer"]

#: Hidden units for each channel of a group: 256 for groups of 32, as published.
_HIDDEN = 8


class LearnedTransfer(Transfer):
    """y = α [ U D Uᵀ (x − μ_c) + m ] + (1 − α) x, where perceptrons read U D and m off the mean of the style.

    Content is only centred: a penalty on the distance of its covariance from I asks the encoder to whiten it. A second
    one asks U, whose columns have norm 1, to be orthogonal. The norms of the columns of U D are D.

    Args:
        channels, group_size: see :class:`Transfer`.
    """

    def __init__(self, channels: int, group_size: int) -> None:
        super().__init__(channels, group_size)
        hidden = _HIDDEN * group_size
        self.coloring = _perceptron([group_size, hidden, hidden, hidden, hidden, group_size**2])
        self.mean = _perceptron([channels, channels, channels, channels])

    def forward(self, content: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """The coloured content, and how far from white it was and from orthogonal U is: means of absolute values."""
        samples, d = content.shape[0], self.group_size
        pooled = style.mean((-2, -1))
        columns = self.coloring(pooled.reshape(samples * self.groups, d)).reshape(samples, self.groups, d, d)
        mean = self.mean(pooled).reshape(samples, self.groups, d, 1)
        with full_precision(content):
            columns, x = widen(columns), grouped(widen(content), d)
            norms = torch.linalg.vector_norm(columns, dim=-2, keepdim=True).clamp(min=1e-8)
            U = columns / norms
            x_mean, x_covariance = covariance(x)
            a = self.strength
            y = a * (columns @ U.mT @ (x - x_mean) + widen(mean)) + (1 - a) * x
            identity = torch.eye(d, dtype=x.dtype, device=x.device)
            penalties = torch.stack([(x_covariance - identity).abs().mean(), (U.mT @ U - identity).abs().mean()])
        return y.reshape(content.shape).to(content.dtype), penalties

    def whitened(self, content: Tensor) -> Tensor:
        """The covariance of each sample as the encoder makes it: this step only centres."""
        with full_precision(content):
            return covariance(grouped(widen(content), self.group_size))[1]

    def seen(self, style: Tensor) -> list[Tensor]:
        """The mean over the positions: all that the perceptrons are given."""
        return [widen(style).mean((-2, -1))]


def _perceptron(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers[:-1])
