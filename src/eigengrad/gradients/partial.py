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

    def __repr__(self) -> str:
        return f"{self.rule!r} with k={self.k}"  # what a user has written

    @property
    def scale_free(self) -> bool:
        return self.rule.scale_free

    def kept(self, n: int) -> slice:
        """Which of n ascending eigenvalues are kept."""
        return slice(n - self.k, n) if self.k > 0 else slice(0, -self.k)

    def padding(self, n: int) -> tuple[int, int]:
        """How many of n ascending eigenvalues are dropped before and after the kept."""
        part = self.kept(n)
        return part.start, n - part.stop

    def opposite(self, n: int) -> Partial:
        """The rule that keeps what this one drops of n eigenvalues."""
        return Partial(self.rule, self.k - n if self.k > 0 else n + self.k)

    def joined(self, eigenvalues: Tensor, kept: Tensor) -> Tensor:
        """The ascending eigenvalues, (..., n), with others in place of those that are kept, (..., |k|)."""
        part = self.kept(eigenvalues.shape[-1])
        return torch.cat([eigenvalues[..., : part.start], kept, eigenvalues[..., part.stop :]], -1)

    def across(self, R: Tensor) -> Tensor:
        """1/(λ_j − λ_i) for kept j and dropped i, and 0 for kept i, (..., n, |k|).

        Args:
            R: in place of 1/|λ_i − λ_j|, (..., n, n).
        """
        part = self.kept(R.shape[-1])
        signed = R[..., part] if self.k > 0 else -R[..., part]
        return torch.where(self._above(R) == (self.k > 0), 0.0, signed.mT).mT

    def _above(self, like: Tensor) -> Tensor:
        """Which of n ascending eigenvalues are above the cut: boolean (n)."""
        n = like.shape[-1]
        return torch.arange(n, device=like.device) >= (n - self.k if self.k > 0 else -self.k)

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        above = self._above(eigenvalues)
        across = above.unsqueeze(-1) != above
        gaps = pair_gaps(eigenvalues)
        apart = gaps > torch.finfo(gaps.dtype).eps * spectrum_scale(eigenvalues).unsqueeze(-1)
        return torch.where(across, reciprocal_where(apart, gaps), self.rule.reciprocal(eigenvalues))
