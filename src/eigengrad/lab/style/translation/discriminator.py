"""The discriminator between real and generated pictures of a domain, at three scales."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from .blocks import ConvBlock

__all__ = ["Discriminator"]


class Discriminator(nn.Module):
    """Scores of the patches of a picture, and of the picture at a half and a quarter of its size.

    Args:
        width: channels of the first convolution, doubled by each of the following.
        scales: how many sizes are judged.
        layers: convolutions that halve the map, before the one that scores it.
    """

    def __init__(self, width: int = 64, scales: int = 3, layers: int = 4) -> None:
        super().__init__()
        widths = [3, *(width * 2**i for i in range(layers))]
        self.judges = nn.ModuleList(
            nn.Sequential(
                *(ConvBlock(a, b, 4, 2, activation=nn.LeakyReLU(0.01)) for a, b in pairwise(widths)),
                nn.Conv2d(widths[-1], 1, 1),
            )
            for _ in range(scales)
        )
        self.halved = nn.AvgPool2d(3, 2, 1, count_include_pad=False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """One map of scores a scale, the finest first."""
        scores = []
        for number, judge in enumerate(self.judges):
            images = self.halved(images) if number else images
            scores.append(judge(images))
        return scores
