"""The rule of ``eigh(A, k=…)`` and ``svd(A, k=…)``: exact between what is kept and what is dropped."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .rule import PairRule
from .spectrum import pair_gaps, reciprocal_where, spectrum_scale


@dataclass(frozen=True)
class Partial(PairRule):
    """Another rule among the kept eigenvectors, and 1/(a − b) between a kept and a dropped one.

    The subspace of the kept eigenvectors is determined by the gap at the cut alone, so its gradient is exact there. It
    is bounded by 1/(finfo.eps · max|λ|): eigenvalues that are closer than that are tied, and get 0 as in :class:`Mask`.
    Pairs of dropped eigenvectors have no part in it.

    Args:
        rule: for pairs of kept eigenvectors.
        k: how many are kept: the largest if positive, the smallest if negative.
    """

    rule: PairRule
    k: int

    @property
    def scale_free(self) -> bool:
        return self.rule.scale_free

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        n = eigenvalues.shape[-1]
        cut = n - self.k if self.k > 0 else -self.k
        above = torch.arange(n, device=eigenvalues.device) >= cut
        across = above.unsqueeze(-1) != above
        gaps = pair_gaps(eigenvalues)
        apart = gaps > torch.finfo(gaps.dtype).eps * spectrum_scale(eigenvalues).unsqueeze(-1)
        return torch.where(across, reciprocal_where(apart, gaps), self.rule.reciprocal(eigenvalues))
