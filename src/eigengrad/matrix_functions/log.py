"""The logarithm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import GradientRule
from .divided_differences import SmoothFunction, where_tied
from .spectral import apply

__all__ = ["Log", "log_ratio", "matrix_log"]


def log_ratio(x: Tensor, y: Tensor) -> Tensor:
    """log(x/y) for positive x and y, accurate to round-off whether they are close or far apart.

    Near each other 2 atanh((x − y)/(x + y)), whose only subtraction is exact; farther apart the logarithm of the
    quotient, and where that would leave the range of the type, the difference of the logarithms.
    """
    w = (x - y) / (x + y)
    near = w.abs() < 0.5
    apart = torch.log(x / y)
    apart = torch.where(apart.abs() < 80, apart, torch.log(x) - torch.log(y))
    return torch.where(near, 2.0 * torch.atanh(torch.where(near, w, torch.zeros_like(w))), apart)


@dataclass(frozen=True)
class Log(SmoothFunction):
    """log x: f[x, y] = log(x/y)/(x − y), with the ratio's logarithm through atanh."""

    domain = "positive"

    def value(self, x: Tensor) -> Tensor:
        return torch.log(x)

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = torch.broadcast_tensors(x, y)
        ratio = log_ratio(x, y)
        return where_tied(x - y, 1.0 / x, lambda gap: ratio / gap)

    def curvature(self, x: Tensor) -> Tensor:
        return -(x**-2.0)


def matrix_log(
    A: Tensor,
    *,
    eps: float = 0.0,
    gradient: str | GradientRule = "exact",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """Logarithm log A = V log(λ) Vᴴ of a positive definite matrix, with its exact gradient.

    gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with F_ij = (log λ_i − log λ_j)/(λ_i − λ_j), computed without those subtractions.
    First and second derivatives.

    Args:
        A: Hermitian, (..., n, n); refused if it is not, to √finfo.eps.
        eps: added to the diagonal, and the spectrum is clamped there.
        gradient: "exact", or a rule to differentiate through :func:`eigengrad.eigh`; see :func:`matrix_sqrt`.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> eg.matrix_log(torch.eye(2))
    tensor([[0., 0.],
            [0., 0.]])
    """
    return apply("matrix_log", A, Log(), eps=eps, gradient=gradient, driver=driver, check_finite=check_finite)
