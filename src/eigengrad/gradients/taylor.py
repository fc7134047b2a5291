"""The paper's rule: the gradient's Taylor expansion, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import require_integer, require_positive
from .rule import PairRule
from .spectrum import round_off

_MOST = 2**53  # beyond it K + 1 is K in float64


@dataclass(frozen=True)
class Taylor(PairRule):
    """(1 + q + … + q^K) / a with q = b/a, for eigenvalues a ≥ b ≥ ε: the paper's SVD-Taylor.

    Equal to (1 − q^(K+1)) / (a − b): the exact value less the share q^(K+1) of it. That closed form is what is
    computed, so the cost does not depend on K.

    Bound: (K+1)/a ≤ (K+1)/ε, so ‖gA‖ ≤ n (K+1)/ε ‖gV‖ for every spectrum.

    What it costs: the share q^(K+1) is missing at healthy gaps too, wherever eigenvalues are large against their
    distance: 39 % of the gradient for eigenvalues 10, 11, 12, 13 and K = 9. And it changes when a multiple of the
    identity is added, which eigenvectors do not feel. It is the rule of the paper, for reproducing it;
    :class:`Saturate`, the default, has neither cost.

    The expansion needs positive eigenvalues. A spectrum that is negative by more than round-off is shifted to
    λ − λ_min + ε, which leaves the eigenvectors as they are; otherwise eigenvalues are clamped at ε, as in the paper.

    Args:
        degree: K, from 0 to 2**53. The paper's choice is 9.
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
        if self.degree > _MOST:
            raise ValueError(f"Taylor: degree must be at most 2**53; got {self.degree}. Exact() is the limit")
        if self.eps is not None:
            require_positive("Taylor", "eps", self.eps)

    @property
    def scale_free(self) -> bool:
        return self.eps is None

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        # The sum is a smooth function of q, so q is all it needs: the gap need not be known accurately.
        p, _ = self.positive(eigenvalues)
        larger = torch.maximum(p.unsqueeze(-2), p.unsqueeze(-1))
        smaller = torch.minimum(p.unsqueeze(-2), p.unsqueeze(-1))
        return _geometric_sum(smaller / larger, self.degree + 1) / larger

    def positive(self, eigenvalues: Tensor) -> tuple[Tensor, Tensor]:
        """The eigenvalues shifted or clamped to at least ε, (..., n), and ε itself, (..., 1)."""
        roundoff = round_off(eigenvalues)
        # Below terms·tiny the bound terms/ε would overflow.
        floor = roundoff if self.eps is None else torch.full_like(roundoff, self.eps)
        floor = floor.clamp(min=(self.degree + 1) * torch.finfo(eigenvalues.dtype).tiny)
        lowest = eigenvalues.amin(-1, keepdim=True)
        shifted = torch.where(lowest < -roundoff, (eigenvalues - lowest) + floor, eigenvalues)
        return torch.maximum(shifted, floor), floor

    def kernel(self) -> tuple[str, tuple[float, float]]:
        return "taylor", (self.degree + 1.0, -1.0 if self.eps is None else float(self.eps))


def _geometric_sum(q: Tensor, terms: int) -> Tensor:
    """1 + q + … + q^(terms−1) for q in [0, 1], in a fixed number of operations.

    The closed form −expm1(terms · log q)/(1 − q) is accurate to round-off for every q < 1. Its derivatives, which
    higher derivatives of ``eigh`` need, are not, because they cancel; so where derivatives are recorded, four terms of
    the series in 1 − q take over where they are exact to round-off. The m-th derivative is then right to eps^(1 − m/4).
    """
    eps = torch.finfo(q.dtype).eps
    if not torch.is_grad_enabled():
        return torch.where(q < 1, torch.expm1(torch.log(q) * terms) / (q - 1), terms)
    ratio = 1 - q
    near = ratio < eps**0.25 / terms
    safe = torch.where(near, torch.full_like(q, 0.5), q).clamp(min=torch.finfo(q.dtype).tiny)
    closed = torch.expm1(torch.log(safe) * terms) / (safe - 1)
    # Σ_k (−1)^k C(terms, k + 1) ratio^k, in powers of terms · ratio, which overflow for no number of terms.
    u = torch.where(near, ratio, torch.zeros_like(ratio)) * terms
    first, second, third = ((1 - k / terms) / (k + 1) for k in (1, 2, 3))
    return torch.where(near, terms * (1 - first * u * (1 - second * u * (1 - third * u))), closed)
