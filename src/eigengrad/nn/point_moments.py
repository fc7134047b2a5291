"""Points centred, with their moments, and points mapped linearly: two functions, their derivatives made of each other.

They work at every order of differentiation, in forward mode, under transforms and the compiler; :mod:`.recoloring` is
composed of them where its fused passes do not apply.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._execution import can_read, forward_mode
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..matmul import precise_matmul
from ..precision import full_precision

__all__ = ["affine", "statistics"]


def statistics(x: Tensor, pooled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Centred points (N, g, d, M), their mean (N, g, d, 1) and covariance (N, g, d, d); N is 1 if ``pooled``."""
    centred, mean, covariance = _statistics_op(x, pooled)
    return centred, mean, covariance


def affine(T: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """T x + t for (N, g, d, d), (N, g, d, 1) and (N, g, d, M)."""
    y: Tensor = _affine_op(T, t, x)
    return y


def _count(x: Tensor, pooled: bool) -> int:
    """How many points a statistic is of; one at least, so those of none are zero."""
    return max(x.shape[-1] * (x.shape[-4] if pooled else 1), 1)


def _pool(moment: Tensor, pooled: bool) -> Tensor:
    """The sum over samples, if that is what the statistic is of. (From the end: ``vmap`` adds dimensions in front.)"""
    return moment.sum(-4, keepdim=True) if pooled else moment


class _Statistics(Batched):
    """The points are centred before the product, so nothing cancels when the mean is far from zero.

    Centred points c get the gradient B c with B = (gΣ + gΣᵀ)/m from the covariance. It has mean zero by itself.
    """

    @staticmethod
    def forward(x: Tensor, pooled: bool) -> Any:
        count = _count(x, pooled)
        mean = _pool(x.sum(-1, keepdim=True), pooled) / count
        centred = x - mean
        with full_precision(x):
            return centred, mean, _pool(centred @ centred.mT, pooled) / count

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.pooled = inputs[1]
        ctx.set_materialize_grads(False)  # no map of zeros for the style, whose points are not used again
        save(ctx, output[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_mean: Tensor | None, g_covariance: Tensor | None) -> Any:
        (centred,) = saved(ctx)
        count = _count(centred, ctx.pooled)
        b = centred.new_zeros(()) if g_mean is None else g_mean / count
        if g is not None:
            b = b - _pool(g.sum(-1, keepdim=True), ctx.pooled) / count
        if g_covariance is None:
            return (b.expand_as(centred) if g is None else g + b), None
        B = (g_covariance + g_covariance.mT) / count
        B, b = B.expand(*centred.shape[:-1], -1), b.expand(*centred.shape[:-1], 1)
        if g is None:
            return affine(B, b, centred), None
        if torch.is_grad_enabled() or forward_mode() or not can_read(g) or not g.is_contiguous():
            return g + affine(B, b, centred), None
        # A plain backward pass: g comes from the product in whiten_color and is nobody else's, so it can be added to.
        with full_precision(g):
            g.flatten(0, -3).baddbmm_(B.flatten(0, -3), centred.flatten(0, -3))
            return g.add_(b), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None) -> Any:
        (centred,) = saved(ctx)
        count = _count(centred, ctx.pooled)
        d_mean = _pool(dx.sum(-1, keepdim=True), ctx.pooled) / count
        half = _pool(precise_matmul(centred, dx.mT), ctx.pooled) / count
        return dx - d_mean, d_mean, half + half.mT


_statistics_op = Differentiable(_Statistics)


class _Affine(Batched):
    @staticmethod
    def forward(T: Tensor, t: Tensor, x: Tensor) -> Any:
        with full_precision(x):
            return (T @ x).add_(t)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        T, _, x = inputs
        save(ctx, T, x)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        T, x = saved(ctx)
        needs_T, needs_t, needs_x = ctx.needs_input_grad
        return (
            precise_matmul(G, x.mT) if needs_T else None,
            G.sum(-1, keepdim=True) if needs_t else None,
            precise_matmul(T.mT, G) if needs_x else None,
        )

    @staticmethod
    def jvp(ctx: Any, dT: Tensor | None, dt: Tensor | None, dx: Tensor | None) -> Any:
        T, x = saved(ctx)
        dy = torch.zeros_like(x)
        if dT is not None:
            dy = dy + precise_matmul(dT, x)
        if dx is not None:
            dy = dy + precise_matmul(T, dx)
        return dy if dt is None else dy + dt


_affine_op = Differentiable(_Affine)
