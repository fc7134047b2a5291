"""The principal square root."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..gradients import GradientRule
from .divided_differences import ScalarFunction
from .spectral import apply, directional

__all__ = ["Sqrt", "matrix_sqrt"]


@dataclass(frozen=True)
class Sqrt(ScalarFunction):
    """√x: f[x, y] = 1/(√x + √y), with no subtraction at all."""

    domain = "non-negative"
    kernel = "sqrt"

    def value(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        return 1.0 / (torch.sqrt(x) + torch.sqrt(y))

    def bilinear(self, A: Tensor, E: Tensor, P: Tensor, L: Tensor, V: Tensor) -> Tensor:
        """The derivative X solves S X + X S = E, a Lyapunov equation, and so does the second: every order follows."""
        X, Y = directional(A, E, L, V, self), directional(A, P, L, V, self)
        return -directional(A, X @ Y + Y @ X, L, V, self)


def matrix_sqrt(
    A: Tensor,
    *,
    eps: float = 0.0,
    gradient: str | GradientRule = "exact",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """Square root A^½ = V λ^½ Vᴴ of a positive semi-definite matrix, with its exact gradient.

    gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with F_ij = 1/(√λ_i + √λ_j): finite at ties, no approximation, differentiable to
    every order.

    Args:
        A: Hermitian, (..., n, n); refused if it is not, to √finfo.eps.
        eps: added to the diagonal, and the spectrum is clamped there (so a negative eigenvalue counts as zero, in the
            gradient too). With 0, the gradient at a singular matrix is infinite or NaN, as that of √x is infinite at 0.
        gradient: "exact", the divided differences above; or a rule (``Taylor()``, "taylor", "clip", ``Exact()``, …) to
            differentiate V f(λ) Vᴴ through :func:`eigengrad.eigh` as the paper does.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> eg.matrix_sqrt(torch.diag(torch.tensor([4.0, 9.0])))
    tensor([[2., 0.],
            [0., 3.]])
    """
    return apply("matrix_sqrt", A, Sqrt(), eps=eps, gradient=gradient, driver=driver, check_finite=check_finite)
