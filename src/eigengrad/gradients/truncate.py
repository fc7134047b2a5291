"""The exact gradient among the leading eigenvalues only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import require_integer, require_positive
from .observation import observe_kept, observers
from .rule import PairRule
from .spectrum import pair_gaps, reciprocal_where, round_off, spectrum_scale


@dataclass(frozen=True)
class Truncate(PairRule):
    """1/(a − b) where both eigenvalues are kept, 0 elsewhere: TopN, SVD-Trunc.

    Kept are the ``rank`` largest eigenvalues, or the fewest whose sum reaches the share ``energy`` of the whole
    (negative eigenvalues count as zero). Ties among the kept, where the gap is at round-off, get 0 as in
    :class:`Mask`, so the rule stays finite. Bound: 1/(n · finfo.eps · max|λ|). Use it where only the leading
    eigenvectors enter the loss and the rest of the spectrum is noise.

    Args:
        rank: how many to keep, at least 1 (all of them if there are fewer).
        energy: share to keep, in (0, 1]. Give one of the two; with neither, energy = 0.9999.

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([0.0, 0.0, 1.0, 3.0])).requires_grad_()
    >>> eg.eigh(A, gradient=eg.Truncate(rank=2)).eigenvectors.sum().backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """

    rank: int | None = None
    energy: float | None = None

    def __post_init__(self) -> None:
        if self.rank is not None and self.energy is not None:
            raise ValueError(f"Truncate: give rank or energy, not both; got rank={self.rank}, energy={self.energy}")
        if self.rank is not None:
            require_integer("Truncate", "rank", self.rank, minimum=1)
        if self.energy is not None:
            require_positive("Truncate", "energy", self.energy)
            if self.energy > 1:
                raise ValueError(f"Truncate: energy must be in (0, 1]; got {self.energy!r}")

    def kept(self, eigenvalues: Tensor) -> Tensor:
        """Which of the ascending eigenvalues are kept: (..., n) to a boolean (..., n)."""
        n = eigenvalues.shape[-1]
        if self.rank is not None:
            return (torch.arange(n, device=eigenvalues.device) >= n - self.rank).expand(eigenvalues.shape)
        energy = 0.9999 if self.energy is None else self.energy
        weight = eigenvalues.clamp(min=0) / spectrum_scale(eigenvalues)
        larger_ones = weight.flip(-1).cumsum(-1).flip(-1) - weight
        return larger_ones < energy * weight.sum(-1, keepdim=True)

    @property
    def scale_free(self) -> bool:
        return True

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        gaps = pair_gaps(eigenvalues)
        kept = self.kept(eigenvalues)
        if observers:
            observe_kept(kept)
        apart = gaps > round_off(eigenvalues).unsqueeze(-1)
        return reciprocal_where(apart & kept.unsqueeze(-1) & kept.unsqueeze(-2), gaps)
