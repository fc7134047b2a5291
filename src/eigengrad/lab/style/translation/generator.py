"""The generator of pictures from the content of one picture and the style of another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from .blocks import ConvBlock, ResidualBlock
from .wct import Transfer

__all__ = ["Generator"]


class Generator(nn.Module):
    """Whitening and colouring before the first residual block and after each of them, then up to the size of a picture.

    Args:
        width: channels of the last convolution but one; content and style have four times as many.
        blocks: residual blocks; there is one step of whitening and colouring more.
        transfer: makes such a step for a number of channels.
    """

    def __init__(self, width: int, blocks: int, transfer: Callable[[int], Transfer]) -> None:
        super().__init__()
        channels = 4 * width
        self.transfers = nn.ModuleList(transfer(channels) for _ in range(blocks + 1))
        # No norm here: it would undo the colours.
        self.blocks = nn.ModuleList(ResidualBlock(channels) for _ in range(blocks))
        norm = partial(nn.GroupNorm, 1)
        # Not the nearest pixel, as in GD-WCT: that makes blocks of 2×2 and 4×4, which the convolutions have to undo.
        self.upwards = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"),
            ConvBlock(channels, 2 * width, 5, norm=norm, activation=nn.ReLU()),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            ConvBlock(2 * width, width, 5, norm=norm, activation=nn.ReLU()),
            ConvBlock(width, 3, 7, activation=nn.Tanh()),
        )

    def forward(self, content: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """The picture, from −1 to 1, and the mean over the steps of their two penalties (2,)."""
        x, penalty = self.transfers[0](content, style)
        penalties = [penalty]
        for block, transfer in zip(self.blocks, self.transfers[1:], strict=True):
            x, penalty = transfer(block(x), style)
            penalties.append(penalty)
        return self.upwards(x), torch.stack(penalties).mean(0)
