"""Mean and covariance of points, the statistic that every layer here starts from."""

from __future__ import annotations

from torch import Tensor

from .._matmul import precise_matmul

__all__ = ["covariance"]


def covariance(points: Tensor) -> tuple[Tensor, Tensor]:
    """Centred points and their covariance, divided by the number of points.

    Centring comes first, so nothing cancels when the mean is far from zero.

    Args:
        points: (..., d, m), one point a column.

    Returns:
        The mean (..., d, 1) and the covariance (..., d, d), both differentiable; of no points they are zero.
    """
    count = max(points.shape[-1], 1)
    mean = points.sum(-1, keepdim=True) / count
    centred = points - mean
    return mean, precise_matmul(centred, centred.mT) / count
