"""The gradient scaled by its own norm, which the paper discusses and rejects."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .rule import PairRule
from .spectrum import pair_gaps


@dataclass(frozen=True)
class UnitNormOrNaN(PairRule):
    """1/(a − b) divided by the Frobenius norm of R: the paper's "scaling by its own norm" (its section 3.5).

    It keeps the direction of every column of R, and forgets the length of the gradient: R has norm 1 whatever the
    spectrum, so a matrix 10 A moves its eigenvectors as much as A does. Where two eigenvalues are equal, R is ∞/∞: NaN
    in **every** entry. It is here so that the paper's argument against it can be tested. Use :class:`Saturate`.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)
    >>> eg.eigh(A, gradient=eg.UnitNormOrNaN()).eigenvectors[0].sum().backward()
    >>> bool(torch.isnan(A.grad).any())
    True
    """

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        gaps = pair_gaps(eigenvalues)
        off_diagonal = ~torch.eye(gaps.shape[-1], dtype=torch.bool, device=gaps.device)
        K = off_diagonal / torch.where(off_diagonal, gaps, 1.0)
        # Scaled first: the squares of very large entries leave the range of the type.
        if gaps.shape[-1] < 2:
            return K
        K = K / K.amax((-2, -1), keepdim=True)
        unit: Tensor = K / torch.linalg.vector_norm(K, dim=(-2, -1), keepdim=True)
        return unit
