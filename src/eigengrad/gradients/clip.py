"""Gradient clipping, the paper's SVD-Clip."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import require_positive
from .rule import PairRule
from .spectrum import pair_gaps


@dataclass(frozen=True)
class Clip(PairRule):
    """min(1/(a − b), t): the paper's SVD-Clip.

    Bound: t. The threshold is absolute, as in the paper, so this rule is never scale-free: rescale the matrix and t
    means something else. It keeps small entries of R and cuts large ones, which can turn a column of R by up to
    45°; prefer :class:`Saturate` unless you reproduce a result that clips.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)
    >>> eg.eigh(A, gradient=eg.Clip(threshold=100.0)).eigenvectors.sum().backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """

    threshold: float = 100.0

    def __post_init__(self) -> None:
        require_positive("Clip", "threshold", self.threshold)

    def kernel(self) -> tuple[str, tuple[float, float]]:
        return "clip", (float(self.threshold), 0.0)

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        gaps = pair_gaps(eigenvalues)
        return 1.0 / gaps.clamp(min=max(1.0 / self.threshold, torch.finfo(gaps.dtype).tiny))
