"""Augmentation of whole batches, as a function of the images and of uniform random numbers.

An augmentation draws nothing itself: it says how many uniform numbers it wants for an image and is given them. So what
happens to an image does not depend on how a batch is divided between processes, nor on any global state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["Augmentation", "RandomShift"]


class Augmentation(Protocol):
    """How images are changed for training, and which view of them is tested."""

    @property
    def draws(self) -> int:
        """How many uniform numbers in [0, 1) an image takes."""

    def train(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Changed images, for uniform numbers (N, draws)."""

    def test(self, images: Tensor) -> Tensor:
        """The view of the images that is tested."""


@dataclass(frozen=True)
class RandomShift:
    """A crop of the original size at a random place of the image with a black border, and a random mirror image.

    The paper's augmentation of CIFAR, with a border of 4 pixels.
    """

    padding: int = 4
    flip: bool = True

    @property
    def draws(self) -> int:
        """Down, right, mirror."""
        return 3

    def train(self, images: Tensor, uniform: Tensor) -> Tensor:
        """Shifted and mirrored images, (N, C, H, W) as they came."""
        count, _, height, width = images.shape
        down, right = (uniform[:, :2] * (2 * self.padding + 1)).long().unbind(1)
        columns = torch.arange(width).expand(count, width)
        if self.flip:
            columns = torch.where(uniform[:, 2:] < 0.5, columns.flip(1), columns)
        rows = torch.arange(height) + down[:, None]
        columns = columns + right[:, None]
        padded = pad(images, (self.padding,) * 4)
        # Channels last, so that one index moves all channels of a pixel.
        pixels = padded.permute(0, 2, 3, 1).contiguous()
        return pixels[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)

    def test(self, images: Tensor) -> Tensor:
        """The images as they are."""
        return images
