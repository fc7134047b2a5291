"""The exact gradient with tied pairs left out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..arguments import require_positive
from .rule import PairRule
from .spectrum import pair_gaps, reciprocal_where, round_off, spread


@dataclass(frozen=True)
class Mask(PairRule):
    """1/(a − b), and 0 where the gap is at round-off, or at most rtol · (λ_max − λ_min).

    Bound: 1/(n · finfo.eps · max|λ|), or 1/(rtol · (λ_max − λ_min)). This is the right gradient, not an approximation,
    where the loss does not depend on the choice of basis inside a degenerate eigenspace (projectors, subspace
    distances). An optimiser that starts at a tie stays there.

    Args:
        rtol: what counts as a tie, relative to the spread of the eigenvalues. ``None`` is n · finfo.eps · max|λ|, the
            accuracy of the eigenvalues themselves.

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([1.0, 1.0, 2.0])).requires_grad_()
    >>> V = eg.eigh(A, gradient="mask").eigenvectors
    >>> (V[:, :2] @ V[:, :2].mT)[0, 2].backward()             # the projector on the tied pair
    >>> A.grad[0, 2].item()
    -0.5
    """

    rtol: float | None = None

    def __post_init__(self) -> None:
        if self.rtol is not None:
            require_positive("Mask", "rtol", self.rtol)

    def kernel(self) -> tuple[str, tuple[float, float]]:
        return "mask", (-1.0 if self.rtol is None else float(self.rtol), 0.0)

    @property
    def scale_free(self) -> bool:
        return True

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        gaps = pair_gaps(eigenvalues)
        tie = round_off(eigenvalues) if self.rtol is None else self.rtol * spread(eigenvalues)
        apart = gaps > tie.unsqueeze(-1)
        return reciprocal_where(apart, gaps)
