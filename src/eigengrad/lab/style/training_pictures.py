"""Freely licensed pictures to train a codec on: those that come inside the packages scikit-image and scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from .images import read_picture

__all__ = ["Crops", "pictures"]

# In the public domain or CC0; but for the two of scikit-learn, which are CC BY 2.0. See shipped_codec/README.md.
SCIKIT_IMAGE = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png",
    "grass.png", "gravel.png", "hubble_deep_field.jpg", "retina.jpg", "rocket.jpg",
)  # fmt: skip
SCIKIT_LEARN = ("china.jpg", "flower.jpg")
LARGEST = 640  # pixels: what is larger is scaled down, since detail at the size of a crop is wanted
SMALLER = 0.6  # every picture is there twice, the second time so much smaller


def pictures() -> list[Tensor]:
    """The pictures, (3, H, W) each, from 0 to 1. Nothing is downloaded."""
    paths = [files("skimage") / "data" / name for name in SCIKIT_IMAGE]
    paths += [files("sklearn") / "datasets" / "images" / name for name in SCIKIT_LEARN]
    found = []
    for path in paths:
        picture = read_picture(Path(str(path)))
        picture = picture.scaled(min(LARGEST, max(picture.size)))
        found += [picture.pixels, picture.scaled(round(SMALLER * max(picture.size))).pixels]
    return found


@dataclass(frozen=True)
class Crops:
    """Random crops of pictures, turned and mirrored, half of them in other colours."""

    pictures: list[Tensor]
    generator: torch.Generator

    def batch(self, count: int, side: int) -> Tensor:
        """Random crops (count, 3, side, side), from 0 to 1."""
        return torch.stack([self._crop(side) for _ in range(count)])

    def _crop(self, side: int) -> Tensor:
        picture = self.pictures[self._below(len(self.pictures))]
        top, left = (self._below(length - side + 1) for length in picture.shape[1:])
        crop = picture[:, top : top + side, left : left + side]
        crop = crop.mT if self._below(2) else crop
        crop = crop.flip([axis for axis in (1, 2) if self._below(2)])
        return self._recoloured(crop) if self._below(2) else crop

    def _recoloured(self, crop: Tensor) -> Tensor:
        """Crops in other colours: a random linear map, and a tint that also gives grey pictures some."""
        brightness = crop.mean(0, keepdim=True)
        detail = crop - crop.mean((1, 2), keepdim=True)
        mixed = torch.einsum("ij,jhw->ihw", 0.4 * self._normal(3, 3), detail)
        tint = self._normal(3, 1, 1)
        mixed = mixed + 0.8 * (brightness - brightness.mean()) + tint * (0.1 + 0.3 * (brightness - 0.5).square())
        middle = 0.3 + 0.4 * torch.rand(3, 1, 1, generator=self.generator)
        return (mixed + middle).clamp(0, 1)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator)

    def _below(self, limit: int) -> int:
        return int(torch.randint(limit, (), generator=self.generator))
