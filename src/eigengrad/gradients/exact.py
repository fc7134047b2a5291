"""The analytic gradient, as ``torch.linalg.eigh`` has it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .rule import PairRule
from .spectrum import pair_gaps


@dataclass(frozen=True)
class Exact(PairRule):
    """1/(a − b), as it is.

    Bound: none; infinity or NaN at a tie. Use it where the spectrum is known to be well separated, or as the
    reference that other rules are measured against.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 3.0]], requires_grad=True)
    >>> eg.eigh(A, gradient=eg.Exact()).eigenvectors[0, 0].backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """

    def kernel(self) -> tuple[str, tuple[float, float]]:
        return "exact", (0.0, 0.0)

    @property
    def scale_free(self) -> bool:
        return True

    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        gaps = pair_gaps(eigenvalues)
        n = gaps.shape[-1]
        return 1.0 / (gaps + torch.eye(n, dtype=gaps.dtype, device=gaps.device))
