"""Orthogonal Procrustes: the orthogonal matrix or the rotation that brings one matrix closest to another."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import solvers
from .._inputs import check_matrix
from ..matmul import precise_matmul
from ..precision import full_precision, widen
from .polar import check_special, polar_factor

__all__ = ["procrustes"]


def procrustes(
    A: Tensor,
    B: Tensor,
    *,
    special: bool = False,
    driver: str | None = None,
    check_finite: bool | None = None,
) -> Tensor:
    """The orthogonal matrix Q that brings A closest to B: argmin ‖A Q − B‖ over Qᴴ Q = I, the polar factor of Aᴴ B.

    Args:
        A, B: points as rows, (..., m, n); batches broadcast. Centre the points first if they may be translated, or
            see :func:`eigengrad.kabsch`.
        special: choose among the rotations, with determinant one; A and B must be real. Otherwise reflections are
            allowed.
        driver, check_finite: as in :func:`eigengrad.svd`.

    Returns:
        (..., n, n), with the exact gradient of :func:`polar`.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> Q = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    >>> torch.allclose(eg.procrustes(A, A @ Q), Q, atol=1e-6)
    True
    """
    check_matrix("procrustes", A, square=False)
    check_matrix("procrustes", B, square=False, argument="B")
    if A.dtype != B.dtype:
        raise TypeError(f"procrustes: A and B must have the same type; got {A.dtype} and {B.dtype}")
    if A.shape[-2:] != B.shape[-2:]:
        raise ValueError(f"procrustes: A and B must have the same (m, n); got {tuple(A.shape)} and {tuple(B.shape)}")
    try:
        torch.broadcast_shapes(A.shape, B.shape)
    except RuntimeError as error:
        raise ValueError(
            f"procrustes: the batches of A and B must broadcast; got {tuple(A.shape)} and {tuple(B.shape)}"
        ) from error
    if special:
        check_special("procrustes", A)
    for argument, points in (("A", A), ("B", B)):
        solvers.require_finite("procrustes", widen(points), check_finite, argument=argument)
    with full_precision(A):
        # Q does not depend on the scale of either, but the product of two small or large ones leaves the range.
        X, Y = torch.broadcast_tensors(_unit_scale(widen(A)), _unit_scale(widen(B)))
        product = precise_matmul(X.mH, Y)
        return polar_factor("procrustes", product, special, driver, check_finite).to(A.dtype)


def _unit_scale(A: Tensor) -> Tensor:
    """A divided by its largest entry (a constant), per matrix."""
    if A.numel() == 0:
        return A
    largest = A.detach().abs().amax((-2, -1), keepdim=True)
    return A / torch.where(largest > 0, largest, torch.ones_like(largest))
