"""Brush strokes: patches of a style's features that take the place of those of a picture.

Mean and covariance give a picture the colours and contrasts of a style, but not its drawing. Here each patch of 3×3
feature vectors of the picture, after these two have been transferred, is compared with all patches of the style, and
the nearest takes its place; where patches overlap they are averaged (Chen and Schmidt, 2016). Distances are those of
whitened features, so that no channel counts more for being larger (Sheng et al., 2018).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import eigengrad

from .moments import Moments

__all__ = ["Patches"]

SIDE = 3  # positions along a side of a patch
LENGTH = 96  # numbers that describe a patch: its leading principal components
MOST = 4096  # patches of a style, spread evenly over it
EPS = 1e-4  # of the average variance: what varies less hardly counts in a distance
OPAQUE = 0.99  # of what a patch shows, for it to be used
PIECE = 1 << 12  # patches that are compared at once: their distances take PIECE × MOST numbers


@dataclass(frozen=True)
class Patches:
    """The patches of a style at one level.

    Args:
        features: (C, h, w), of the style.
        corners: (N,), the flat positions of the patches' upper left corners in (h, w).
        filters: (LENGTH, C, 3, 3), and offsets (LENGTH,): the convolution that describes patches.
        descriptions: (N, LENGTH) of the patches.
    """

    features: Tensor
    corners: Tensor
    filters: Tensor
    offsets: Tensor
    descriptions: Tensor

    @classmethod
    def of(cls, features: Tensor, opacity: Tensor | None = None) -> Patches | None:
        """The patches of feature maps (C, h, w), of what is opaque by (h, w); None if there is not one."""
        channels, height, width = features.shape
        if min(height, width) < SIDE:
            return None
        rows, columns = height - SIDE + 1, width - SIDE + 1
        found = (torch.arange(rows).unsqueeze(1) * width + torch.arange(columns)).flatten()
        if opacity is not None:
            found = found[functional.avg_pool2d(opacity[None], SIDE, stride=1).flatten() >= OPAQUE]
        if not len(found):
            return None
        corners = found[torch.linspace(0, len(found) - 1, min(MOST, len(found))).round().long()]
        moments = Moments.of(features.flatten(1).unsqueeze(0))
        covariance = moments.covariance[0]
        eps = EPS * float(covariance.diagonal().mean()) + 1e-30
        whiten = eigengrad.matrix_inv_sqrt(covariance, eps=eps, driver="lapack").float()
        white = whiten @ (features.flatten(1) - moments.mean[0].float().unsqueeze(1))
        vectors = _gather(white.view_as(features), corners).flatten(0, 1)
        centre = vectors.mean(1)
        centred = vectors - centre.unsqueeze(1)
        spread = (centred @ centred.mT).double() / len(corners)
        basis = torch.linalg.eigh(spread).eigenvectors[:, -LENGTH:].float()
        filters = torch.einsum("dck,ce->dek", basis.mT.reshape(-1, channels, SIDE * SIDE), whiten)
        offsets = -filters.sum(-1) @ moments.mean[0].float() - basis.mT @ centre
        return cls(features, corners, filters.unflatten(-1, (SIDE, SIDE)), offsets, (basis.mT @ centred).mT)

    def replace(self, features: Tensor) -> Tensor:
        """Feature maps (C, h, w) of the style's patches, each the nearest to what was there."""
        height, width = features.shape[1:]
        padded = functional.pad(features.unsqueeze(0), (1, 1, 1, 1), mode="replicate")
        asked = functional.conv2d(padded, self.filters, self.offsets)[0].flatten(1)
        lengths = 0.5 * self.descriptions.square().sum(1, keepdim=True)
        pieces = [torch.addmm(lengths, self.descriptions, part, beta=-1) for part in asked.split(PIECE, 1)]
        nearest = self.corners[torch.cat([piece.argmax(0) for piece in pieces])]
        patches = _gather(self.features, nearest).unflatten(-1, (height, width))
        made = torch.zeros(features.shape[0], height + 2, width + 2)
        count = torch.zeros(height + 2, width + 2)
        for index in range(SIDE * SIDE):
            row, column = divmod(index, SIDE)
            made[:, row : row + height, column : column + width] += patches[:, index]
            count[row : row + height, column : column + width] += 1
        return (made / count)[:, 1:-1, 1:-1]


def _gather(features: Tensor, corners: Tensor) -> Tensor:
    """The patches of (C, h, w) at corners (N,): (C, 9, N)."""
    width = features.shape[-1]
    steps = (torch.arange(SIDE).unsqueeze(1) * width + torch.arange(SIDE)).flatten()
    return features.flatten(1)[:, corners + steps.unsqueeze(1)]
