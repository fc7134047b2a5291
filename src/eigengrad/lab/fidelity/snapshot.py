"""What a whitening layer was given in one step: enough to compute the gradient of every method again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Snapshot", "take_snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """The inputs of one backward pass through the whitening matrices S of a layer, in float64.

    With points x of a group, their mean μ and covariance M over m points, and y = Γ S (x − μ) + β:

    Attributes:
        layer: the name of the layer in the model.
        step: the training steps that the layer had seen before this one.
        eps: ε, which the layer adds to M.
        points: m.
        covariance: M, (groups, d, d).
        gradient: gS = Γ Σ dy (x − μ)ᵀ, (groups, d, d).
        moments: Γ Σ (dy − mean of dy)(dy − mean of dy)ᵀ Γ, (groups, d, d): with it the norm of what reaches x is known.
    """

    layer: str
    step: int
    eps: float
    points: int
    covariance: Tensor
    gradient: Tensor
    moments: Tensor


@torch.no_grad()
def take_snapshot(
    layer: str, step: int, eps: float, groups: int, x: Tensor, gy: Tensor, weight: Tensor | None
) -> Snapshot:
    """The snapshot of a layer from its input ``x`` and the gradient ``gy`` of its output, both (N, C, *spatial).

    Args:
        layer, step, eps: see :class:`Snapshot`.
        groups: into which the C channels are divided.
        x, gy: as the layer had them, in any floating-point type.
        weight: the diagonal of Γ, (C,), or None.
    """
    points = x.shape[0] * math.prod(x.shape[2:])
    shape = (groups, x.shape[1] // groups, points)
    values, slopes = (t.detach().double().transpose(0, 1).reshape(shape) for t in (x, gy))
    values = values - values.mean(-1, keepdim=True)
    slopes = slopes - slopes.mean(-1, keepdim=True)
    if weight is not None:
        slopes = slopes * weight.detach().double().view(groups, -1, 1)
    return Snapshot(layer, step, eps, points, values @ values.mT / points, slopes @ values.mT, slopes @ slopes.mT)
