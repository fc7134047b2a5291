"""The paper's rule: the gradient's Taylor expansion, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import require_integer, require_positive
from .rule import PairRule, spectrum_scale


@dataclass(frozen=True)
class Taylor(PairRule):
    """(1 + q + … + q^K) / a with q = b/a, for eigenvalues a ≥ b ≥ ε: the paper's SVD-Taylor.

    Equal to (1 − q^(K+1)) / (a − b): the exact value less the share q^(K+1) of it. That closed form is what is
    computed, so the cost does not depend on K.

    Bound: (K+1)/a ≤ (K+1)/ε, so ‖gA‖ ≤ n (K+1)/ε ‖gV‖ for every spectrum. Use it wherever a loss depends on
    the eigenvectors themselves; it is the default of :func:`eigengrad.eigh`.

    The expansion needs positive eigenvalues. A spectrum that is negative by more than round-off is shifted to
    λ − λ_min + ε, which leaves the eigenvectors as they are; otherwise eigenvalues are clamped at ε, as in the paper.

    Args:
        degree: K, at least 0. The paper's choice is 9.
        eps: ε, the floor of a. ``None`` is round-off, n · finfo.eps · max|λ|, which makes the rule scale-free; a
            number is absolute, as in the paper.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)                 # every eigenvalue tied
    >>> eg.eigh(A, gradient=eg.Taylor(degree=9)).eigenvectors.sum().backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """

    degree: int = 9
    eps: float | None = None

    def __post_init__(self) -> None:
        require_integer("Taylor", "degree", self.degree, minimum=0)
        if self.eps is not None:
            require_positive("Taylor", "eps", self.eps)

    def reciprocal(self, eigenvalues: Tensor, gaps: Tensor) -> Tensor:
        terms = self.degree + 1
        a, floor = self.positive(eigenvalues)
        larger = torch.maximum(a.unsqueeze(-2), a.unsqueeze(-1))
        # Clamping b at the floor shortens the gap to at most a − ε; the shift does not change it.
        ratio = torch.minimum(gaps, larger - floor.unsqueeze(-1)) / larger  # 1 − q
        return _geometric_sum(ratio, terms) / larger

    def positive(self, eigenvalues: Tensor) -> tuple[Tensor, Tensor]:
        """The eigenvalues shifted or clamped to at least ε, (..., n), and ε itself, (..., 1)."""
        info = torch.finfo(eigenvalues.dtype)
        roundoff = spectrum_scale(eigenvalues) * (eigenvalues.shape[-1] * info.eps)
        # Below terms·tiny the bound terms/ε would overflow.
        floor = (
            roundoff.clamp(min=(self.degree + 1) * info.tiny)
            if self.eps is None
            else torch.full_like(roundoff, self.eps)
        )
        lowest = eigenvalues.amin(-1, keepdim=True)
        shift = torch.where(lowest < -roundoff, floor - lowest, torch.zeros_like(floor))
        return torch.maximum(eigenvalues + shift, floor), floor


def _geometric_sum(ratio: Tensor, terms: int) -> Tensor:
    """1 + q + … + q^(terms−1) with q = 1 − ratio, in a fixed number of operations.

    Near q = 1 the closed form −expm1(terms · log1p(−ratio)) / ratio is accurate, but its derivative, which second
    derivatives of ``eigh`` need, cancels; the first two terms of the series take over where they are exact to
    round-off.
    """
    info = torch.finfo(ratio.dtype)
    near = ratio < math.sqrt(info.eps) / terms
    safe = torch.where(near, torch.full_like(ratio, 0.5), ratio).clamp(max=1 - info.eps / 2)
    closed = torch.expm1(torch.log1p(-safe) * terms) / -safe
    return torch.where(near, terms - (0.5 * terms * (terms - 1)) * ratio, closed)
