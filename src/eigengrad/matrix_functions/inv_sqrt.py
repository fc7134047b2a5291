"""The inverse of the principal square root: ZCA whitening."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import GradientRule
from .divided_differences import ScalarFunction
from .spectral import apply, directional, spectral
from .sqrt import Sqrt

__all__ = ["InvSqrt", "matrix_inv_sqrt"]


@dataclass(frozen=True)
class InvSqrt(ScalarFunction):
    """1/√x: f[x, y] = −1/(p q (p + q)) with p = √x, q = √y, with no subtraction at all."""

    domain = "positive"
    kernel = "inv_sqrt"

    def value(self, x: Tensor) -> Tensor:
        return torch.rsqrt(x)

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        p, q = torch.sqrt(x), torch.sqrt(y)
        return -1.0 / ((p * q) * (p + q))

    def weigh(self, x: Tensor, y: Tensor, E: Tensor) -> Tensor:
        p, q = torch.sqrt(x), torch.sqrt(y)
        return (E / (p + q)) * -(1 / p * (1 / q))

    def bilinear(self, A: Tensor, E: Tensor, P: Tensor, L: Tensor, V: Tensor) -> Tensor:
        """From W A W = I differentiated twice: Z S + S Z = Q with S = A^½, solved by the first derivative again."""
        X, Y = directional(A, E, L, V, self), directional(A, P, L, V, self)
        W, S = spectral(A, L, V, self), spectral(A, L, V, Sqrt())
        SX, SY = S @ X, S @ Y
        Q = X @ P @ W + W @ P @ X + Y @ E @ W + W @ E @ Y + X @ S @ SY + Y @ S @ SX
        return directional(A, S @ Q @ S, L, V, self)


def matrix_inv_sqrt(
    A: Tensor,
    *,
    eps: float = 0.0,
    gradient: str | GradientRule = "exact",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """Inverse square root A^(−½) = V λ^(−½) Vᴴ of a positive definite matrix, with its exact gradient.

    The ZCA whitening matrix of a covariance A. gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with
    F_ij = −1/(√λ_i √λ_j (√λ_i + √λ_j)): finite at ties, no approximation, derivatives of every order.

    Args:
        A: Hermitian, (..., n, n); refused if it is not, to √finfo.eps.
        eps: added to the diagonal, and the spectrum is clamped there: λ ← max(λ + eps, eps), as in the paper.
        gradient: "exact", or a rule to differentiate through :func:`eigengrad.eigh`; see :func:`matrix_sqrt`.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> eg.matrix_inv_sqrt(torch.diag(torch.tensor([4.0, 16.0])))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    return apply("matrix_inv_sqrt", A, InvSqrt(), eps=eps, gradient=gradient, driver=driver, check_finite=check_finite)
