"""Powers: real ones of positive matrices, whole ones of all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import require_number
from ..gradients import GradientRule
from .divided_differences import SmoothFunction, where_tied
from .log import log_ratio
from .spectral import apply

__all__ = ["Power", "WholePower", "matrix_power", "power"]


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


@dataclass(frozen=True)
class WholePower(Power):
    """x^p for a whole number p and x of any sign, through the absolute values a ≥ b of the points.

    Where the signs agree, f[x, y] is that of a and b, up to a sign. Where they differ, x^p − y^p is a^p + b^p for odd
    p, and a^p − b^p for even p, divided by a + b: f[a, b] times (a − b)/(a + b). Nothing cancels.
    """

    @property
    def domain(self) -> str:  # type: ignore[override]
        return "non-zero" if self.exponent < 0 else "real"

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        p, odd = self.exponent, self.exponent % 2 == 1
        a, b = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
        same = super().first(a, b)
        if p == 0:
            return same
        negative = torch.where(a == x.abs(), x, y) < 0  # the sign of the larger
        total = torch.where(a > 0, a + b, torch.ones_like(a))
        if odd and p > 0:
            larger = torch.where(a > 0, a, torch.ones_like(a))
            mixed = a ** (p - 1) * (1 + (b / larger) ** p) / (1 + b / larger)
        elif odd:
            mixed = (a**p + b**p) / total
        else:
            mixed = torch.where(a == b, 0.0, same * ((a - b) / total))  # even where a^p has overflowed
            same, mixed = (torch.where(negative, -f, f) for f in (same, mixed))
        return torch.where((x < 0) == (y < 0), same, mixed)


def power(exponent: float) -> Power:
    """x^p: of positive numbers, or of all if p is whole."""
    return WholePower(float(exponent)) if float(exponent).is_integer() else Power(float(exponent))


def matrix_power(
    A: Tensor,
    exponent: float,
    *,
    eps: float = 0.0,
    gradient: str | GradientRule = "exact",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """Power A^p = V λ^p Vᴴ of a Hermitian matrix, with its exact gradient.

    For a whole number p the matrix may have eigenvalues of any sign (but none that is zero, to round-off, for p < 0),
    as in :func:`torch.linalg.matrix_power`; for other p they must not be negative.
    gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with F_ij = (λ_i^p − λ_j^p)/(λ_i − λ_j), computed without that subtraction, at a cost
    that does not depend on p. First and second derivatives; :func:`matrix_sqrt` and :func:`matrix_inv_sqrt` are faster
    for p = ±½.

    Args:
        A: Hermitian, (..., n, n); refused if it is not, to √finfo.eps.
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
    >>> eg.matrix_power(torch.diag(torch.tensor([-2.0, 4.0])), -1)
    tensor([[-0.5000,  0.0000],
            [ 0.0000,  0.2500]])
    """
    require_number("matrix_power", "exponent", exponent)
    f = power(exponent)
    return apply("matrix_power", A, f, eps=eps, gradient=gradient, driver=driver, check_finite=check_finite)
