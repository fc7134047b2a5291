"""Kabsch and Umeyama: the rigid motion or similarity that brings points closest to their counterparts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .. import solvers
from .._execution import can_read
from .._inputs import check_matrix
from ..errors import first_index
from ..matmul import precise_matmul
from ..precision import REAL, full_precision, widen
from .polar import polar_factor

__all__ = ["RigidTransform", "kabsch"]


class RigidTransform(NamedTuple):
    """What :func:`kabsch` returns: q = scale · rotation p + translation, for points p and q as columns."""

    rotation: Tensor
    translation: Tensor
    scale: Tensor


def kabsch(
    P: Tensor,
    Q: Tensor,
    weights: Tensor | None = None,
    *,
    scale: bool = False,
    translation: bool = True,
    driver: str | None = None,
    check_finite: bool | None = None,
) -> RigidTransform:
    """The rotation R, translation t and scale s that bring points P closest to Q: argmin Σ_i w_i ‖s R p_i + t − q_i‖².

    R is the nearest rotation to the covariance Σ_i w_i (q_i − q̄)(p_i − p̄)ᵀ, with the exact derivatives of
    :func:`eigengrad.polar` with ``special=True``: they need no approximation, and reach P, Q and the weights. The scale
    is Umeyama's. For points as rows, as they come here, Q ≈ s P Rᵀ + t.

    Points that lie in a line, or in one place, leave some rotations undetermined: R is one of the best, and what is not
    determined, to round-off, gets no gradient. Where all points of P are in one place, the scale is one.

    Args:
        P, Q: points as rows, (..., m, d), of the same real type; batches broadcast.
        weights: non-negative, (..., m), not all of them zero; ``None`` weighs all points alike.
        scale: find the scale, too; otherwise it is one.
        translation: find the translation; otherwise it is zero, and the points are not centred.
        driver, check_finite: as in :func:`eigengrad.svd`; ``check_finite`` also has the weights looked at.

    Returns:
        ``RigidTransform(rotation, translation, scale)``: (..., d, d) with determinant one, (..., d) and (...).

    >>> import torch, eigengrad as eg
    >>> P = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> Q = 3.0 * P @ quarter_turn.T + torch.tensor([5.0, 7.0])
    >>> R, t, s = eg.kabsch(P, Q, scale=True)
    >>> torch.allclose(R, quarter_turn, atol=1e-6), torch.allclose(s * P @ R.T + t, Q, atol=1e-5)
    (True, True)
    """
    _check_points(P, Q)
    batch = _batch_shape(P, Q, weights)
    for argument, points in (("P", P), ("Q", Q)):
        solvers.require_finite("kabsch", widen(points), check_finite, argument=argument)
    if weights is not None:
        _check_weights(weights, check_finite)
    m, d = P.shape[-2:]
    with full_precision(P):
        X, Y = widen(P).expand(*batch, m, d), widen(Q).expand(*batch, m, d)
        share = torch.full_like(X[..., :1], 1.0 / m) if weights is None else _shares(widen(weights).expand(*batch, m))
        mean_x, mean_y = (share * X).sum(-2, keepdim=True), (share * Y).sum(-2, keepdim=True)
        offset_x, offset_y = (X - mean_x, Y - mean_y) if translation else (X, Y)
        x, size_x, loss_x = _unit_scale(offset_x, X)
        y, size_y, loss_y = _unit_scale(offset_y, Y)
        covariance = precise_matmul((share * y).mT, x)
        # The second singular value of 2 to 10 000 points in a line is a sixth of this at most (measured).
        rtol = torch.maximum(loss_x, loss_y).squeeze(-1) * (d + m**0.5)
        R = polar_factor("kabsch", covariance, True, driver, check_finite, rtol)
        s = torch.ones_like(covariance[..., 0, 0])
        if scale:
            spread = (share * x * x).sum((-2, -1))
            known = spread > 0
            found = (R * covariance).sum((-2, -1)) / torch.where(known, spread, 1.0)
            s = torch.where(known, found * (size_y / size_x)[..., 0, 0], s)
        t = torch.zeros_like(mean_x)
        if translation:
            t = mean_y - s[..., None, None] * precise_matmul(mean_x, R.mT)
        return RigidTransform(R.to(P.dtype), t.squeeze(-2).to(P.dtype), s.to(P.dtype))


def _check_points(P: Tensor, Q: Tensor) -> None:
    for argument, points in (("P", P), ("Q", Q)):
        check_matrix("kabsch", points, square=False, argument=argument)
        if points.dtype not in REAL:
            raise TypeError(f"kabsch: {argument} must be of a real type; got {points.dtype}")
    if P.dtype != Q.dtype:
        raise TypeError(f"kabsch: P and Q must have the same type; got {P.dtype} and {Q.dtype}")
    if P.shape[-2:] != Q.shape[-2:]:
        raise ValueError(f"kabsch: P and Q must have the same (m, d); got {tuple(P.shape)} and {tuple(Q.shape)}")
    if 0 in P.shape[-2:]:
        raise ValueError(
            f"kabsch: P and Q must have at least one point of at least one dimension, (..., m, d) with m, d ≥ 1; "
            f"got {tuple(P.shape)}"
        )


def _batch_shape(P: Tensor, Q: Tensor, weights: Tensor | None) -> torch.Size:
    """The batch shape of the result, after the weights' type and shape have been checked."""
    batches, came = [P.shape[:-2], Q.shape[:-2]], f"{tuple(P.shape)} and {tuple(Q.shape)}"
    names = "P and Q"
    if weights is not None:
        if not isinstance(weights, Tensor):
            raise TypeError(f"kabsch: weights must be a torch.Tensor; got {type(weights).__name__}")
        if weights.dtype != P.dtype:
            raise TypeError(f"kabsch: weights must have the type of P, {P.dtype}; got {weights.dtype}")
        if weights.ndim < 1 or weights.shape[-1] != P.shape[-2]:
            raise ValueError(
                f"kabsch: weights must have shape (..., m), one for each of the m = {P.shape[-2]} points; "
                f"got {tuple(weights.shape)}"
            )
        batches.append(weights.shape[:-1])
        names, came = "P, Q and weights", f"{tuple(P.shape)}, {tuple(Q.shape)} and {tuple(weights.shape)}"
    try:
        return torch.Size(torch.broadcast_shapes(*batches))
    except RuntimeError as error:
        raise ValueError(f"kabsch: the batches of {names} must broadcast; got {came}") from error


def _check_weights(weights: Tensor, wanted: bool | None) -> None:
    """Name the first weights that are not finite, negative or all zero, where they can be looked at."""
    solvers.require_finite("kabsch", widen(weights).unsqueeze(-1), wanted, argument="weights")
    if not (weights.device.type == "cpu" if wanted is None else wanted) or not can_read(weights):
        return
    negative, empty = weights < 0, (weights == 0).all(-1)
    if negative.any():
        index = first_index(negative)
        raise ValueError(f"kabsch: weights must be non-negative; got {weights[index].item()} at index {index}")
    if empty.any():
        batch = first_index(empty)
        where = f" of batch element {batch[0] if len(batch) == 1 else batch}" if batch else ""
        raise ValueError(f"kabsch: weights must have a positive sum; all {weights.shape[-1]}{where} are zero")


def _shares(weights: Tensor) -> Tensor:
    """Weights divided by their sum, (..., m) to (..., m, 1)."""
    # The largest, a constant, goes first: the sum of large weights leaves the range.
    relative = (weights / weights.detach().amax(-1, keepdim=True)).unsqueeze(-1)
    return relative / relative.sum(-2, keepdim=True)


def _unit_scale(offsets: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Offsets divided by their largest entry, that entry, and the round-off that the points had relative to it.

    The offsets, (..., m, d), are what remains of the points after their mean has been subtracted. Where that is only
    round-off they count as zero. The other two, (..., 1, 1), are constants.
    """
    largest, before = (A.detach().abs().amax((-2, -1), keepdim=True) for A in (offsets, points))
    known = largest > before * (4 * torch.finfo(points.dtype).eps)
    size = torch.where(known, largest, torch.ones_like(largest))
    loss = torch.finfo(points.dtype).eps * torch.where(known, torch.maximum(before, largest) / size, 1.0)
    return torch.where(known, offsets / size, 0.0), size, loss
