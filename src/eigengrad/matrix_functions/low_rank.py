"""The best approximation of a given rank."""

from __future__ import annotations

import torch
from torch import Tensor

from .._inputs import check_matrix
from ..arguments import require_integer
from ..gradients.spectrum import spectrum_scale
from ..matmul import precise_matmul
from ..precision import full_precision, widen
from ..svd import decompose
from .cut import Step, distances
from .spectral import spectral

__all__ = ["low_rank"]


def low_rank(A: Tensor, k: int, *, driver: str | None = None, check_finite: bool | None = None) -> Tensor:
    """Best approximation U_k Σ_k V_kᴴ of rank k, in every unitarily invariant norm, with its exact gradient.

    It is A P with the projector P on the right singular vectors of the k largest singular values, whose derivative has
    1/(σ_i² − σ_j²) for pairs of a kept and a dropped singular value, and nothing else: ties among the kept, or
    among the dropped, do not matter, nor does rank deficiency. First and second derivatives.

    Where the cut goes through a tie, there is no gradient. A :class:`~eigengrad.errors.GradientWarning` says so on the
    CPU where the gap is below (max(m, n) + 16) · finfo.eps · σ_max, and may be nothing but round-off. It counts as
    max(m, n) · finfo.eps · σ_max at least, so that the gradient stays finite.

    Args:
        A: (..., m, n).
        k: the rank, from 0 to min(m, n).
        driver, check_finite: as in :func:`eigengrad.svd`.

    Returns:
        (..., m, n).

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([2.0, 2.0, 1.0])).requires_grad_()
    >>> B = eg.low_rank(A, 2)
    >>> torch.linalg.matrix_rank(B).item()
    2
    >>> B[0, 2].backward()                                   # σ_i²/(σ_i² − σ_j²) and σ_i σ_j/(σ_i² − σ_j²)
    >>> A.grad
    tensor([[0.0000, 0.0000, 1.3333],
            [0.0000, 0.0000, 0.0000],
            [0.6667, 0.0000, 0.0000]])
    """
    check_matrix("low_rank", A, square=False)
    require_integer("low_rank", "k", k, minimum=0)
    if k > min(A.shape[-2:]):
        raise ValueError(f"low_rank: k must be at most min(m, n); got {k} for a matrix of shape {tuple(A.shape)}")
    with full_precision(A):
        M = widen(A)
        wide = M.shape[-1] > M.shape[-2]
        tall = M.mH if wide else M
        _, sigma, Vh = decompose("low_rank", tall, driver, check_finite)
        if sigma.shape[-1] == 0:
            return A.clone()
        # Of A divided by its scale, so that no square leaves the range. The scale is a constant, and cancels.
        scale = spectrum_scale(sigma)
        B = tall / scale.unsqueeze(-1)
        s, V = (sigma / scale).flip(-1), Vh.mH.flip(-1)
        floor = torch.full_like(s[..., :1], max(M.shape[-2:]) * torch.finfo(s.dtype).eps)
        below = torch.full_like(floor, s.shape[-1] - k, dtype=torch.int64)
        distance, cut = distances("low_rank", "singular value", s, below, floor)
        squares = distance * torch.maximum(s + cut, floor)  # σ² − cut², with no subtraction of squares
        P = spectral(precise_matmul(B.mH, B), squares, V, Step())
        result = precise_matmul(B, P) * scale.unsqueeze(-1)
        return (result.mH.resolve_conj() if wide else result).to(A.dtype)
