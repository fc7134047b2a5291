"""The default rule: the exact gradient at every healthy gap, bounded where eigenvalues meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import require_positive
from .rule import PairRule
from .spectrum import pair_gaps, spectrum_scale, spread


@dataclass(frozen=True)
class Saturate(PairRule):
    r"""(1 − e^(−Δ/τ))/Δ with Δ = a − b and τ = rtol · (λ_max − λ_min): 1/Δ that saturates at 1/τ.

    The default of :func:`eigengrad.eigh` and :func:`eigengrad.svd`. It is the paper's Taylor rule in the variable that
    eigenvectors feel: the share of the exact gradient that is missing, q^(K+1) there, is e^(−Δ/τ) here. So it is exact
    to round-off where Δ is more than 40 τ, does not change when the matrix is multiplied by a number or a multiple of
    the identity is added, and is smooth to every order. At a tie it is 1/τ with the sign of the order of the
    eigenvalues, so an optimiser leaves the tie.

    Bound: 1/τ. The gap is measured against the spread of the spectrum; where that is zero to round-off (A = cI),
    against max|λ|, and for A = 0 against 1. τ is never below finfo.eps · max|λ|, the accuracy of the eigenvalues.

    Args:
        rtol: the gap, relative to the spread of the eigenvalues, below which 1/Δ saturates. The default is the largest
            that leaves random matrices, covariances and features of real networks as they are:
            ``benchmarks/results/rtol.md``.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)                 # every eigenvalue tied
    >>> eg.eigh(A, gradient=eg.Saturate()).eigenvectors.sum().backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """

    rtol: float = 1e-5

    def __post_init__(self) -> None:
        require_positive("Saturate", "rtol", self.rtol)

    @property
    def scale_free(self) -> bool:
        return True

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        gaps, tau = pair_gaps(eigenvalues), self.width(eigenvalues).unsqueeze(-1)
        if torch.is_grad_enabled():
            return _saturated(gaps / tau) / tau
        return torch.where(gaps > 0, torch.expm1(gaps / -tau) / -gaps, 1.0 / tau)

    def width(self, eigenvalues: Tensor) -> Tensor:
        """τ, (..., 1)."""
        limits, scale = torch.finfo(eigenvalues.dtype), spectrum_scale(eigenvalues)
        tau = torch.maximum(self.rtol * spread(eigenvalues, scale), limits.eps * scale)
        return tau.clamp(min=limits.tiny)

    def kernel(self) -> tuple[str, tuple[float, float]]:
        return "saturate", (float(self.rtol), 0.0)


#: Coefficients of (1 − e^(−x))/x = 1 − x/2 + x²/6 − …, the last one first.
_SERIES = (-1 / 5040 / 8, 1 / 5040, -1 / 720, 1 / 120, -1 / 24, 1 / 6, -1 / 2, 1.0)


def _saturated(x: Tensor) -> Tensor:
    """(1 − e^(−x))/x for x ≥ 0, and 1 at 0, where derivatives are recorded.

    Through expm1 it is accurate to round-off; its derivatives, which higher derivatives of ``eigh`` need, are not,
    because they cancel. So eight terms of the series take over for small x: the m-th derivative is then right to about
    eps^(1 − m/8).
    """
    near = x <= torch.finfo(x.dtype).eps ** 0.125
    safe = torch.where(near, torch.ones_like(x), x)
    small = torch.where(near, x, torch.zeros_like(x))
    series = torch.full_like(x, _SERIES[0])
    for coefficient in _SERIES[1:]:
        series = series * small + coefficient
    return torch.where(near, series, torch.expm1(-safe) / -safe)
