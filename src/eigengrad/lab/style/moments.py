"""Mean and covariance of more points than fit in memory, and the map from one pair to another.

An image is seen in pieces. The moments of the pieces are merged in float64 (Chan, Golub and LeVeque, 1983), which is
exact but for round-off: the result does not depend on how the image was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import eigengrad

__all__ = ["Affine", "Moments", "whiten_color_map"]


@dataclass(frozen=True)
class Moments:
    """Mean and covariance of weighted points in g groups of d dimensions.

    Args:
        weight: sum of the weights.
        mean: (g, d), float64.
        scatter: (g, d, d), float64: the weighted sum of (x − mean)(x − mean)ᵀ.
    """

    weight: float
    mean: Tensor
    scatter: Tensor

    @classmethod
    def of(cls, points: Tensor, weights: Tensor | None = None) -> Moments:
        """The moments of points (g, d, M) with weights (M,), all 1 if not given.

        The products are in the points' type: give it pieces of at most some ten thousand points, and merge.
        """
        if weights is None:
            weight = float(points.shape[-1])
            mean = points.mean(-1, keepdim=True)
            centred = points - mean
            scatter = centred @ centred.mT
        else:
            weight = float(weights.sum(dtype=torch.float64))
            if weight <= 0:
                return cls.none(points.shape[0], points.shape[1])
            mean = (points * weights).sum(-1, keepdim=True) / weight
            centred = points - mean
            scatter = (centred * weights) @ centred.mT
        return cls(weight, mean.squeeze(-1).double(), scatter.double())

    @classmethod
    def none(cls, groups: int, dimensions: int) -> Moments:
        """The moments of an empty set of points, to be merged with others."""
        return cls(
            0.0,
            torch.zeros(groups, dimensions, dtype=torch.float64),
            torch.zeros(groups, dimensions, dimensions, dtype=torch.float64),
        )

    @classmethod
    def merge(cls, pieces: Iterable[Moments]) -> Moments:
        """The moments of the union of two sets of points."""
        total: Moments | None = None
        for piece in pieces:
            if total is None or total.weight == 0:
                total = piece
            elif piece.weight > 0:
                weight = total.weight + piece.weight
                step = piece.mean - total.mean
                share = piece.weight / weight
                between = step.unsqueeze(-1) * step.unsqueeze(-2) * (total.weight * share)
                total = cls(weight, total.mean + share * step, total.scatter + piece.scatter + between)
        if total is None:
            raise ValueError("Moments.merge: needs at least one piece")
        return total

    @property
    def covariance(self) -> Tensor:
        """The covariance (g, d, d) of the weighted points as a population."""
        return self.scatter / self.weight


@dataclass(frozen=True)
class Affine:
    """x ↦ matrix · (x − centre) + offset in every group: (g, d, d), (g, d) and (g, d).

    Centred first, as nothing may be left of what does not vary when the matrix amplifies it.
    """

    matrix: Tensor
    centre: Tensor
    offset: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        """Map points (g, d, M), in their type."""
        matrix, centre, offset = (x.to(points) for x in (self.matrix, self.centre, self.offset))
        return torch.baddbmm(offset.unsqueeze(-1), matrix, points - centre.unsqueeze(-1))

    @classmethod
    def mean(cls, maps: Sequence[Affine], shares: Sequence[float]) -> Affine:
        """The weighted mean of maps with the same centre."""
        pairs = list(zip(shares, maps, strict=True))
        matrix = torch.stack([share * each.matrix for share, each in pairs]).sum(0)
        offset = torch.stack([share * each.offset for share, each in pairs]).sum(0)
        return cls(matrix, maps[0].centre, offset)

    def blend(self, strength: float) -> Affine:
        """Interpolate between the identity, at 0, and this map, at 1."""
        identity = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)
        matrix = strength * self.matrix + (1 - strength) * identity
        return Affine(matrix, self.centre, strength * self.offset + (1 - strength) * self.centre)


def whiten_color_map(content: Moments, style: Moments, *, content_eps: float, style_eps: float) -> Affine:
    """Whitening and colouring as a map of points: y = S_s U S_w (x − μ_c) + μ_s with a rotation U in between.

    With any U the covariance becomes the style's. :func:`eigengrad.nn.functional.whiten_color` has U = 1, which is for
    networks that learn what to make of it. For pictures it is the rotation that moves the points least, the polar
    factor of S_s S_w⁻¹: the matrix S_s U S_w is then symmetric, the optimal transport between the two normal
    distributions (Pitié and Kokaram, 2007; for features Lu et al., 2019). Without it, what hardly varies in the
    content, such as noise, gets a share of what varies most in the style, and is seen as blotches of its colours.
    With equal moments and equal eps it is the identity.
    """
    # For a few matrices, LAPACK is done sooner than the kernels are loaded.
    whiten = eigengrad.matrix_inv_sqrt(content.covariance, eps=content_eps, driver="lapack")
    spread = eigengrad.matrix_sqrt(content.covariance, eps=content_eps, driver="lapack")
    color = eigengrad.matrix_sqrt(style.covariance, eps=style_eps, driver="lapack")
    rotation = eigengrad.polar(color @ spread, driver="lapack").U
    return Affine(color @ rotation @ whiten, content.mean, style.mean)
