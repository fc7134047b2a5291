"""Mean, second moment and covariance of points, the statistics that the layers start from."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._inputs import check_matrix
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..matmul import precise_matmul
from ..precision import full_precision, widen

__all__ = ["covariance", "second_moment"]


def covariance(points: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of points: μ = Σ x_i / m and Σ (x_i − μ)(x_i − μ)ᴴ / m.

    Centring comes first, so nothing cancels when the mean is far from zero. Half precision is computed in float32.

    Args:
        points: (..., d, m), one point a column.

    Returns:
        The mean (..., d, 1) and the covariance (..., d, d), both differentiable; of no points they are zero.

    >>> import torch
    >>> from eigengrad.nn.functional import covariance
    >>> mean, matrix = covariance(torch.tensor([[1.0, 3.0], [2.0, 2.0]]))
    >>> mean.flatten(), matrix
    (tensor([2., 2.]), tensor([[1., 0.],
            [0., 0.]]))
    """
    check_matrix("covariance", points, square=False, argument="points")
    with full_precision(points):
        X, count = widen(points), max(points.shape[-1], 1)
        mean = X.sum(-1, keepdim=True) / count
        return mean.to(points.dtype), second_moment(X - mean, count).to(points.dtype)


def second_moment(X: Tensor, count: int) -> Tensor:
    """X Xᴴ/count, (..., d, m) to (..., d, d)."""
    moment: Tensor = _moment_op(X, count)
    return moment


class _Moment(Batched):
    """Its own function, because the gradient (G + Gᴴ) X/count is one product where two factors would take two."""

    @staticmethod
    def forward(X: Tensor, count: int) -> Any:
        product = X @ X.mH
        return product if count == 1 else product / count

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        X, ctx.count = inputs
        save(ctx, X)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        (X,) = saved(ctx)
        with full_precision(X):
            G = G + G.mH
            return precise_matmul(G if ctx.count == 1 else G / ctx.count, X), None

    @staticmethod
    def jvp(ctx: Any, dX: Tensor, _: None) -> Any:
        (X,) = saved(ctx)
        with full_precision(X):
            half = precise_matmul(dX, X.mH) / ctx.count
            return half + half.mH


_moment_op = Differentiable(_Moment)
