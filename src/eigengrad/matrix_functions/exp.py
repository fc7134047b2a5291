"""The exponential."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import GradientRule
from .divided_differences import SmoothFunction, where_tied
from .spectral import apply

__all__ = ["Exp", "matrix_exp"]


@dataclass(frozen=True)
class Exp(SmoothFunction):
    """e^x: f[a, b] = e^a (1 − e^(−g))/g for a ≥ b with g = a − b, through expm1."""

    def value(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        gap = (x - y).abs()
        factor = where_tied(gap, torch.ones_like(gap), lambda gap: torch.expm1(-gap) / -gap)
        return torch.exp(torch.maximum(x, y)) * factor

    def curvature(self, x: Tensor) -> Tensor:
        return torch.exp(x)


def matrix_exp(
    A: Tensor,
    *,
    gradient: str | GradientRule = "exact",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """Exponential e^A = V e^λ Vᴴ of a Hermitian matrix, with its exact gradient.

    gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with F_ij = (e^λ_i − e^λ_j)/(λ_i − λ_j), computed without those subtractions.
    First and second derivatives. (For matrices that are not Hermitian there is ``torch.linalg.matrix_exp``.)

    Args:
        A: Hermitian, (..., n, n), of any sign; refused if it is not Hermitian to √finfo.eps.
        gradient: "exact", or a rule to differentiate through :func:`eigengrad.eigh`; see :func:`matrix_sqrt`.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> eg.matrix_exp(torch.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    return apply("matrix_exp", A, Exp(), eps=0.0, gradient=gradient, driver=driver, check_finite=check_finite)
