"""The rule of ``eigh(A, k=…)`` and ``svd(A, k=…)``: exact between what is kept and what is dropped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .mask import Mask
from .rule import PairRule, pair_gaps


@dataclass(frozen=True)
class Partial(PairRule):
    """Another rule among the kept eigenvectors, and 1/(a − b) between a kept and a dropped one.

    The subspace of the kept eigenvectors is determined by the gap at the cut alone, so its gradient is exact there,
    and bounded by 1/(n · finfo.eps · max|λ|), as that of :class:`Mask`, where that gap vanishes. Pairs of dropped
    eigenvectors have no part in it.

    Args:
        rule: for pairs of kept eigenvectors.
        k: how many are kept: the largest if positive, the smallest if negative.
    """

    rule: PairRule
    k: int

    def reciprocal(self, eigenvalues: Tensor, gaps: Tensor | None = None) -> Tensor:
        gaps = pair_gaps(eigenvalues) if gaps is None else gaps
        n = eigenvalues.shape[-1]
        cut = n - self.k if self.k > 0 else -self.k
        above = torch.arange(n, device=eigenvalues.device) >= cut
        across = above.unsqueeze(-1) != above
        return torch.where(across, Mask().reciprocal(eigenvalues, gaps), self.rule.reciprocal(eigenvalues, gaps))
