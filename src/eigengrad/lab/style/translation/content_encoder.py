"""The encoder of the content of a picture."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from .blocks import ConvBlock, ResidualBlock

__all__ = ["ContentEncoder"]


class ContentEncoder(nn.Module):
    """(N, 3, H, W) to content (N, 4·width, H/4, W/4): three convolutions and residual blocks, with instance norm.

    Args:
        width: channels of the first convolution; 64 in the paper.
        blocks: residual blocks.
    """

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        # Statistics of the picture at hand, in training and afterwards: a result depends on no other picture.
        norm = partial(nn.InstanceNorm2d, affine=True)
        self.layers = nn.Sequential(
            ConvBlock(3, width, 7, norm=norm, activation=nn.ReLU()),
            ConvBlock(width, 2 * width, 4, 2, norm=norm, activation=nn.ReLU()),
            ConvBlock(2 * width, 4 * width, 4, 2, norm=norm, activation=nn.ReLU()),
            *(ResidualBlock(4 * width, norm=norm) for _ in range(blocks)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """The content of pictures, (N, 4·width, H/4, W/4)."""
        content: Tensor = self.layers(images)
        return content
