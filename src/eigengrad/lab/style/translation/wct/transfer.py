"""The interface of a step of whitening and colouring."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from .....nn.functional import covariance
from .....precision import full_precision, widen

__all__ = ["Transfer"]

#: How much of the style a step passes on before it has learned how much it should.
_STRENGTH = 0.6


class Transfer(nn.Module, ABC):
    """Content takes the colours of a style: y = α [colours of the style on whitened content] + (1 − α) content.

    α is learned, and stays between 0 and 1 as a sigmoid. (GD-WCT clamps it after every step, to the same effect.)

    Args:
        channels: of content and style.
        group_size: channels that are whitened and coloured together.
    """

    def __init__(self, channels: int, group_size: int) -> None:
        super().__init__()
        if channels % group_size:
            raise ValueError(f"{type(self).__name__}: group_size must divide the {channels} channels; got {group_size}")
        self.channels, self.group_size, self.groups = channels, group_size, channels // group_size
        self.logit = nn.Parameter(torch.tensor(math.log(_STRENGTH / (1 - _STRENGTH))))

    @property
    def strength(self) -> Tensor:
        """The strength α of the transfer, from 0 to 1."""
        return torch.sigmoid(self.logit)

    @abstractmethod
    def forward(self, content: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """The coloured content, and the penalties that training minimises: (whitening, colouring), (2,).

        Args:
            content: (N, C, H, W).
            style: (N, C, H', W'), a style for each.
        """

    @abstractmethod
    def whitened(self, content: Tensor) -> Tensor:
        """The covariance of the content when the colours of a style are put on it, (…, groups, d, d); I if it is white.

        Args:
            content: (N, C, H, W), as :meth:`forward` gets it.
        """

    def statistics(self, style: Tensor) -> list[Tensor]:
        """Mean and covariance of a style over its positions, for comparing two: the same measure for every variant."""
        with full_precision(style):
            return list(covariance(grouped(widen(style), self.group_size)))

    def seen(self, style: Tensor) -> list[Tensor]:
        """What of a style this step can see, which may be less."""
        return self.statistics(style)

    def extra_repr(self) -> str:
        """Channels and groups."""
        return f"{self.channels}, group_size={self.group_size}"


def grouped(x: Tensor, group_size: int) -> Tensor:
    """Feature maps (N, C, H, W) as points (N, groups, d, H·W)."""
    return x.reshape(x.shape[0], -1, group_size, x.shape[-2] * x.shape[-1])
