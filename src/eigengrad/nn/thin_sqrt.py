"""The square root of a second moment of fewer points than dimensions, through the smaller Gram matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._inputs import add_to_diagonal
from ..matmul import precise_matmul
from ..matrix_functions.divided_differences import SmoothFunction
from ..matrix_functions.spectral import apply
from .covariance import second_moment

__all__ = ["thin_sqrt"]


@dataclass(frozen=True)
class _ThinRoot(SmoothFunction):
    """k(t) = (√(t + ε) + √ε)^(−½) for t ≥ 0, so that √(t + ε) = √ε + t k(t)².

    With p = √(x + ε), q = √(y + ε), a = √(p + √ε), b = √(q + √ε): k[x, y] = −1/(a b (a + b)(p + q)), with no
    subtraction at all.
    """

    eps: float

    def _root(self, x: Tensor) -> Tensor:
        return torch.sqrt(x.clamp(min=0) + self.eps)  # below zero there is only round-off

    def value(self, x: Tensor) -> Tensor:
        return torch.rsqrt(self._root(x) + self.eps**0.5)

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        p, q = self._root(x), self._root(y)
        a, b = torch.sqrt(p + self.eps**0.5), torch.sqrt(q + self.eps**0.5)
        return -1.0 / ((a * b) * ((a + b) * (p + q)))

    def curvature(self, x: Tensor) -> Tensor:
        p = self._root(x)
        u = p + self.eps**0.5
        curvature: Tensor = (0.1875 / u + 0.125 / p) / (p * p * u * torch.sqrt(u))
        return curvature


def thin_sqrt(points: Tensor, eps: float) -> Tensor:
    """(X Xᵀ/M + ε I)^½ = √ε I + Y Yᵀ with Y = X k(Xᵀ X/M)/√M, for fewer points M than dimensions: an M×M problem.

    k is :class:`_ThinRoot`. The conditioning is that of the square root itself, so nothing is lost, and the d − M
    eigenvalues that are tied at ε never appear.
    """
    count = max(points.shape[-1], 1)
    k = apply(
        "second_order_pool",
        second_moment(points.mT, count),
        _ThinRoot(eps),
        eps=0.0,
        gradient="exact",
        driver=None,
        check_finite=None,
        known_hermitian=True,
    )
    return add_to_diagonal(second_moment(precise_matmul(points, k / count**0.5), 1), eps**0.5)
