"""The encoder of the style of a picture."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from .blocks import ConvBlock

__all__ = ["StyleEncoder"]


class StyleEncoder(nn.Module):
    """(N, 3, H, W) to style (N, 4·width, H/2^(2+reductions), …): convolutions with group norm.

    The style stays a map. Its colours are the covariance of its channels over the positions, so a style that was pooled
    to 1×1, as for learned colouring, would have none.

    Args:
        width: channels of the first convolution; 64 in the paper.
        groups: of the group norm.
        reductions: how often the map is halved after it has all its channels. The paper's 2 leave 13×13 positions of a
            picture of 216 pixels; small pictures need fewer, to have more positions than a group has channels.
    """

    def __init__(self, width: int = 64, groups: int = 8, reductions: int = 2) -> None:
        super().__init__()
        norm = partial(nn.GroupNorm, groups)
        self.layers = nn.Sequential(
            ConvBlock(3, width, 7, activation=nn.ReLU()),
            ConvBlock(width, 2 * width, 4, 2, norm=norm, activation=nn.ReLU()),
            ConvBlock(2 * width, 4 * width, 4, 2, norm=norm, activation=nn.ReLU()),
            *(ConvBlock(4 * width, 4 * width, 4, 2, norm=norm, activation=nn.ReLU()) for _ in range(reductions)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The style, as a map."""
        style: Tensor = self.layers(images)
        return style
