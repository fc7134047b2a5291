"""From the moments of two maps to the matrix and the offset that recolour one of them, and back: T (x − μ) + t.

Any differentiable function of the moments will do, and is recorded as a small graph. The roots of
:func:`.whiten_color.whiten_color` have kernels (:mod:`eigengrad.kernels.feature_maps.transfers`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..eigh import decompose
from ..kernels import Transfers
from .inner_graph import inner_graph

__all__ = ["Fold", "FoldGradients", "Moments", "fold_by_graph", "fold_by_roots"]


class Moments(Protocol):
    """Mean (N, groups, d, 1) and covariance (N, groups, d, d) of a map; N is 1 if they are of the whole batch."""

    mean: Tensor
    covariance: Tensor


class FoldGradients(NamedTuple):
    """Gradients of the moments, symmetric for covariances, and of α, where it is a tensor."""

    content_mean: Tensor | None
    content_covariance: Tensor
    style_mean: Tensor
    style_covariance: Tensor
    alpha: Tensor | None


class Fold(NamedTuple):
    """T (N, groups, d, d), t (N, groups, d, 1), and the way from their gradients to those of the moments."""

    T: Tensor
    t: Tensor
    gradients: Callable[[Tensor, Tensor], FoldGradients]


def fold_by_graph(
    content: Moments, style: Moments, alpha: float | Tensor, fold: Callable[..., Any], wanted: bool
) -> Fold:
    """By a function of mean and covariance of content and of style, and of α."""
    leaves = [content.mean, content.covariance, style.mean, style.covariance]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    blend = alpha.detach().requires_grad_(alpha.requires_grad) if isinstance(alpha, Tensor) else alpha
    with torch.set_grad_enabled(wanted), inner_graph():
        T, t = fold(*leaves, blend)
    if isinstance(blend, Tensor) and blend.requires_grad:
        leaves.append(blend)

    def gradients(gT: Tensor, gt: Tensor) -> FoldGradients:
        gx_mean, gx, gs_mean, gs, *g_alpha = torch.autograd.grad((T, t), leaves, (gT, gt), retain_graph=True)
        # None at full strength, where the offset is the style's mean alone. A look would wait for another device.
        full = gx_mean.device.type == "cpu" and not gx_mean.any() if isinstance(alpha, Tensor) else alpha == 1
        shifts = None if full else gx_mean
        return FoldGradients(shifts, (gx + gx.mT) / 2, gs_mean, (gs + gs.mT) / 2, g_alpha[0] if g_alpha else None)

    return Fold(T.detach(), t.detach(), gradients)


def fold_by_roots(content: Moments, style: Moments, covariances: Tensor, alpha: float | Tensor, eps: float) -> Fold:
    """T = α (Σ_s + εI)^½ (Σ_c + εI)^(−½) + (1 − α) I and t = α μ_s + (1 − α) μ_c, by kernels.

    Args:
        covariances: those of content and after them those of style, (matrices, d, d).
        alpha: a number, or a tensor ().
        eps: ε > 0.
    """
    L, V = decompose("whiten_color, covariances of content and style", covariances, None, None)
    contents, strength = content.covariance.numel() // covariances[0].numel(), float(alpha)
    pairs = Transfers(L, V, contents, strength, eps)

    def gradients(gT: Tensor, gt: Tensor) -> FoldGradients:
        gM = pairs.gradients(gT)
        gx, gs = gM[:contents].view_as(content.covariance), gM[contents:].view_as(style.covariance)
        gs_mean = (strength * gt).sum_to_size(style.mean.shape)
        shifts, g_alpha = None if strength == 1 else (1 - strength) * gt, None
        if isinstance(alpha, Tensor) and alpha.requires_grad:
            S = pairs.S
            change = S[contents:].view_as(style.covariance) @ S[:contents].view_as(content.covariance)
            change.diagonal(dim1=-2, dim2=-1).sub_(1)
            g_alpha = ((gT * change).sum() + (gt * (style.mean - content.mean)).sum()).to(alpha.dtype)
        return FoldGradients(shifts, gx, gs_mean, gs, g_alpha)

    T = pairs.transfers().view_as(content.covariance)
    return Fold(T, torch.lerp(content.mean, style.mean, strength), gradients)
