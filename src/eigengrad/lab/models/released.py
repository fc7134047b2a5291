"""The gradient of the code that the paper's authors released, with its sign at a tie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...arguments import require_integer
from ...gradients import GradientRule, Taylor
from ...gradients.observation import observe_pass, observers
from ...gradients.rule import exact_and_missing

__all__ = ["ReleasedTaylor"]

#: What the released code clamps eigenvalues at, whatever its ε.
_FLOOR = 1e-10


@dataclass(frozen=True)
class ReleasedTaylor(GradientRule):
    """SVD-Taylor as released: K̃ has the same sign in both entries of a tied pair.

    The released code takes +1/λ_i where λ_i ≥ λ_j and −1/λ_j elsewhere; at λ_i = λ_j that is + in both entries, so K̃ is
    symmetric there instead of antisymmetric, and the backward pass scales the *Hermitian* part of Vᵀ gV, which does not
    belong in the gradient, by (K + 1)/λ. Clamped spectra have many ties. Elsewhere it is :class:`eigengrad.Taylor`.
    (Of the code's other peculiarities, γ that starts at random numbers is left out.)

    It is here to tell what is due to the method from what is due to this sign. Real matrices only.

    Args:
        degree: K.
    """

    degree: int = 9

    def __post_init__(self) -> None:
        require_integer("ReleasedTaylor", "degree", self.degree, minimum=0)

    def pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
        """gA (..., n, n): the symmetric part of V [R ∘ Vᵀ gV + diag(gλ)] Vᵀ."""
        bracket = torch.zeros_like(V)
        if gV is not None:
            bracket = self._reciprocals(L) * (V.mT @ gV)
            if observers:
                of_vectors = V @ ((bracket + bracket.mT) * 0.5) @ V.mT
                observe_pass(*exact_and_missing(L, V, gV, of_vectors))
        if gL is not None:
            bracket = bracket + torch.diag_embed(gL)
        G = V @ bracket @ V.mT
        return (G + G.mT) * 0.5

    def pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        """(dλ, dV): the adjoint of :meth:`pullback`."""
        Y = V.mT @ ((dA + dA.mT) * 0.5) @ V
        return torch.diagonal(Y, dim1=-2, dim2=-1).clone(), V @ (self._reciprocals(L) * Y)

    def _reciprocals(self, L: Tensor) -> Tensor:
        """R in place of 1/(λ_j − λ_i), (..., n, n), zero on the diagonal."""
        clamped = L.clamp(min=_FLOOR)
        size = Taylor(degree=self.degree, eps=_FLOOR).reciprocal(clamped)
        sign = torch.where(clamped.unsqueeze(-2) >= clamped.unsqueeze(-1), 1.0, -1.0)  # [i, j]: λ_j ≥ λ_i
        off_diagonal = ~torch.eye(L.shape[-1], dtype=torch.bool, device=L.device)
        return size * sign * off_diagonal
