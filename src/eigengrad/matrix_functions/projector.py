"""The orthogonal projector on an eigenspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from .._inputs import check_matrix
from ..arguments import require_integer
from ..eigh import decompose
from ..gradients.spectrum import round_off
from ..precision import full_precision, widen
from .cut import Step, distances
from .hermitian import require_hermitian
from .spectral import spectral

__all__ = ["spectral_projector"]

_NAME = "spectral_projector"


def spectral_projector(
    A: Tensor,
    k: int | None = None,
    *,
    interval: Sequence[float | None] | None = None,
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """Orthogonal projector V_K V_Kᴴ on the space of some eigenvectors of a Hermitian matrix, with its exact gradient.

    The space is determined where single eigenvectors are not: gA = V [ F ∘ (Vᴴ G V) ] Vᴴ with F_ij = ±1/(λ_i − λ_j) for
    pairs of a chosen and another eigenvalue, and 0 for all other pairs. So gaps among the chosen eigenvalues, or
    among the others, do not matter. First and second derivatives.

    Where the cut itself goes through a tie, the projector is one of many, of the right rank, and has no gradient. A
    :class:`~eigengrad.errors.GradientWarning` says so on the CPU where the gap is below (n + 16) · finfo.eps · max|λ|,
    and may be nothing but round-off. It counts as n · finfo.eps · max|λ| at least, so that the gradient stays finite.

    Args:
        A: Hermitian, (..., n, n); refused if it is not, to √finfo.eps.
        k: choose the k largest eigenvalues, or the |k| smallest if k is negative.
        interval: choose the eigenvalues in the closed interval (low, high) instead, whose ends count as inside to
            round-off; ``None`` or an infinity leaves an end open. The rank may differ from matrix to matrix.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([3.0, 1.0, 3.0])).requires_grad_()      # no single vector is determined
    >>> P = eg.spectral_projector(A, 2)
    >>> P.diagonal()
    tensor([1., 0., 1.], grad_fn=<DiagonalBackward0>)
    >>> P[0, 1].backward()
    >>> A.grad
    tensor([[0.0000, 0.2500, 0.0000],
            [0.2500, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    check_matrix(_NAME, A, square=True)
    n = A.shape[-1]
    low, high = _check_choice(k, interval, n)
    require_hermitian(_NAME, A, check_finite)
    with full_precision(A):
        M = widen(A)
        L, V = decompose(_NAME, M, driver, check_finite)
        if n == 0:
            return spectral(M, L, V, Step()).to(A.dtype)
        floor = round_off(L).clamp(min=torch.finfo(L.dtype).tiny)

        def part(below: Tensor, falling: bool) -> Tensor:
            return spectral(M, distances(_NAME, "eigenvalue", L, below, floor)[0], V, Step(falling))

        if k is not None:
            below = torch.full_like(L[..., :1], -k if k < 0 else n - k, dtype=torch.int64)
            P = part(below, falling=k < 0)
        elif high == math.inf:
            P = part((low - floor > L).sum(-1, keepdim=True), falling=False)
        else:
            P = part((high + floor >= L).sum(-1, keepdim=True), falling=True)
            if low > -math.inf:
                P = P - part((low - floor > L).sum(-1, keepdim=True), falling=True)
        return P if M is A else P.to(A.dtype)


def _check_choice(k: int | None, interval: Sequence[float | None] | None, n: int) -> tuple[float, float]:
    """Refuse what does not choose eigenvalues; the ends of the interval."""
    if (k is None) == (interval is None):
        raise ValueError(f"{_NAME}: expected either k or interval; got k={k!r} and interval={interval!r}")
    if k is not None:
        require_integer(_NAME, "k", k, minimum=-n)
        if k > n:
            raise ValueError(f"{_NAME}: k must be at most n = {n}; got {k}")
        return -math.inf, math.inf
    if not isinstance(interval, Sequence) or isinstance(interval, str) or len(interval) != 2:
        raise TypeError(f"{_NAME}: interval must be a pair (low, high); got {interval!r}")
    for end in interval:
        if end is not None and (isinstance(end, bool) or not isinstance(end, Real) or math.isnan(end)):
            raise TypeError(f"{_NAME}: interval must have numbers or None as its ends; got {interval!r}")
    low = -math.inf if interval[0] is None else float(interval[0])
    high = math.inf if interval[1] is None else float(interval[1])
    if low > high:
        raise ValueError(f"{_NAME}: interval must be (low, high) with low ≤ high; got {interval!r}")
    return low, high
