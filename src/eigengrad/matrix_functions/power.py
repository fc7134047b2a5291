"""Real powers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import require_number
from ..gradients import GradientRule
from .divided_differences import SmoothFunction, where_tied
from .log import log_ratio
from .spectral import apply

__all__ = ["Power", "matrix_power"]


@dataclass(frozen=True)
class Power(SmoothFunction):
    """x^p for x ≥ 0, through the ratio of the points.

    With a ≥ b and t = log(a/b): f[a, b] = a^(p−1) (1 − e^(−pt)) a/(a − b), and for p < 0, to keep the exponential from
    overflowing, b^p (e^(pt) − 1)/(a − b). Both through expm1; the difference a − b is exact where it is small.
    """

    exponent: float

    @property
    def domain(self) -> str:  # type: ignore[override]
        return "positive" if self.exponent < 0 else "non-negative"

    def value(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.exponent
        a, b = torch.maximum(x, y), torch.minimum(x, y)
        if p == 0:
            return torch.zeros_like(a)
        t = log_ratio(a, b)
        return where_tied(
            a - b,
            p * a ** (p - 1),
            lambda gap: a ** (p - 1) * (torch.expm1(-p * t) / (-gap / a)) if p > 0 else b**p * torch.expm1(p * t) / gap,
        )

    def curvature(self, x: Tensor) -> Tensor:
        p = self.exponent
        if p in (0, 1):
            return torch.zeros_like(x)  # and not 0 · ∞ at zero
        return p * (p - 1) * x ** (p - 2)


def matrix_power(
    A: Tensor,
    exponent: float,
    *,
    eps: float = 0.0,
    gradient: str | GradientRule = "exact",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """Real power A^p = V λ^p Vᴴ of a positive semi-definite matrix (definite for p < 0), with its exact gradient.

    gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with F_ij = (λ_i^p − λ_j^p)/(λ_i − λ_j), computed without that subtraction.
    First and second derivatives; :func:`matrix_sqrt` and :func:`matrix_inv_sqrt` are faster for p = ±½.

    Args:
        A: Hermitian, (..., n, n); the lower triangle is read.
        exponent: p, any real number.
        eps: added to the diagonal, and the spectrum is clamped there.
        gradient: "exact", or a rule to differentiate through :func:`eigengrad.eigh`; see :func:`matrix_sqrt`.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> eg.matrix_power(torch.diag(torch.tensor([8.0, 27.0])), 1 / 3)
    tensor([[2., 0.],
            [0., 3.]])
    """
    require_number("matrix_power", "exponent", exponent)
    f = Power(float(exponent))
    return apply("matrix_power", A, f, eps=eps, gradient=gradient, driver=driver, check_finite=check_finite)
