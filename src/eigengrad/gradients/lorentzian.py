"""Lorentzian broadening, the remedy of tensor-network physics and of TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import require_positive
from .rule import PairRule
from .spectrum import pair_gaps, spread


@dataclass(frozen=True)
class Lorentzian(PairRule):
    """Δ / (Δ² + ε) with Δ = (a − b)/s in units of 1/s, where s = λ_max − λ_min is the spread of the eigenvalues.

    Bound: 1/(2 √ε s), reached at Δ = √ε; a pair that is tied exactly gets 0. Use it where tied eigenvectors
    should receive no gradient from each other and the change to exact values should be smooth.

    Args:
        broadening: ε, relative to the squared spread.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)
    >>> eg.eigh(A, gradient=eg.Lorentzian(broadening=1e-12)).eigenvectors.sum().backward()
    >>> A.grad.abs().max().item()
    0.0
    """

    broadening: float = 1e-12

    def __post_init__(self) -> None:
        require_positive("Lorentzian", "broadening", self.broadening)

    def kernel(self) -> tuple[str, tuple[float, float]]:
        return "lorentzian", (math.sqrt(self.broadening), 0.0)

    @property
    def scale_free(self) -> bool:
        return True

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        gaps = pair_gaps(eigenvalues)
        # In units of √ε, so that a small ε does not underflow where Δ² + ε would.
        width = spread(eigenvalues).unsqueeze(-1) * math.sqrt(self.broadening)
        width = width.clamp(min=torch.finfo(gaps.dtype).tiny)
        x = gaps / width
        return x / (x * x + 1.0) / width
