"""Moments of two maps, folded into a matrix and an offset that are applied to one of them, with the gradient.

The maps are passed over as whitening does it (:mod:`.passes`): twice in each direction for the content, once for the
style. What is kept for the backward pass is content, style, and the way from their moments to T and t
(:mod:`.folding`). Where more than a first derivative is asked for (:mod:`.fused`), the same is composed of two
differentiable functions of maps (:mod:`.point_moments`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from .._saved import save
from ..errors import LinAlgError
from ..matmul import precise_matmul
from ..precision import widen
from .folding import Fold, fold_by_graph, fold_by_roots
from .fused import FusedFunction
from .layout import channels_fast, dense, in_layout_of, with_strides
from .passes import passes_over
from .point_moments import statistics

__all__ = ["recolor"]


def recolor(
    content: Tensor,
    style: Tensor,
    alpha: float | Tensor,
    groups: int,
    per_sample: bool,
    fold: Callable[..., Any],
    root_eps: float | None = None,
) -> Tensor:
    """T (x − μ) + t for the content x: (N, C, *spatial) to the same.

    Args:
        content, style: maps, checked by the caller.
        alpha: a number or a tensor () or (N,), handed to ``fold``.
        groups: of channels; moments are taken within each.
        per_sample: moments of each sample, or of the batch.
        fold: from mean and covariance of content and of style and α to T (N, groups, d, d) and t (N, groups, d, 1),
            where N is 1 if moments are of the batch; differentiable.
        root_eps: ε, if ``fold`` is that of :func:`.whiten_color.whiten_color` with exact gradients; None if it is not.
    """
    arguments = content, style, alpha, groups, per_sample, fold, root_eps
    # One α for each sample makes a T for each, and a pass over a whole batch knows one.
    several = isinstance(alpha, Tensor) and alpha.ndim == 1 and not per_sample
    if content.numel() == 0 or several:
        y: Tensor = _Recolor.composed(*arguments)
    else:
        y = _Recolor.run(arguments, (content, style, alpha if isinstance(alpha, Tensor) else None))
    return y


def _points(x: Tensor, groups: int) -> Tensor:
    """(N, C, *spatial) as (N, groups, d, M), of an empty batch too."""
    samples, channels, *spatial = x.shape
    return x.reshape(samples, groups, channels // groups, math.prod(spatial))


class _Moments:
    """A map as whitening passes over it, and its moments.

    Statistics of each sample by itself are those of one sample with as many times the groups: in memory it is the same.
    """

    mean: Tensor
    covariance: Tensor

    def __init__(self, map_: Tensor, dtype: torch.dtype, groups: int, per_sample: bool) -> None:
        self.shape, self.dtype, self.channels_fast = map_.shape, map_.dtype, channels_fast(map_)
        samples, channels = map_.shape[:2]
        positions = math.prod(map_.shape[2:])
        self.own, self.per_sample = (samples if per_sample else 1), per_sample
        self.groups, self.d = groups, channels // groups
        self.matrices = self.own * groups
        self.count = positions * (1 if per_sample else samples)
        self.stride: tuple[int, ...] | None = None
        self.points = self.view(map_, dtype)
        self.stride = self.points.stride()
        self.passes = passes_over(self.points, self.matrices)

    def take(self, covariance: Tensor | None = None) -> None:
        """Pass over the map; the covariance comes to a place that is given."""
        self.centre, mean, covariance = self.passes.statistics(self.points, covariance)
        self.mean = mean.view(self.own, self.groups, self.d, 1)
        self.covariance = covariance.view(self.own, self.groups, self.d, self.d)

    def view(self, map_: Tensor, dtype: torch.dtype) -> Tensor:
        """The map, or one of its shape, as it is passed over."""
        samples, channels, *spatial = map_.shape
        if not self.per_sample:
            points = dense(map_.to(dtype))
            return points if self.stride is None else with_strides(points, self.stride)
        return map_.to(dtype).reshape(1, samples * channels, math.prod(spatial)).contiguous().resolve_neg()

    def restore(self, points: Tensor) -> Tensor:
        """Back in the shape and type of the map."""
        map_ = points.reshape(self.shape).to(self.dtype)
        if not self.channels_fast or map_.ndim == 2 or channels_fast(map_):
            return map_
        return map_.contiguous(memory_format=torch.channels_last if map_.ndim == 4 else torch.channels_last_3d)


def _folded(
    x: _Moments, s: _Moments, alpha: float | Tensor, fold: Callable[..., Any], root_eps: float | None, wanted: bool
) -> Fold:
    """Take the moments, and fold them in the quickest way there is."""
    by_kernels = root_eps and kernels.usable(x.points, s.points) and s.points.numel() > 0
    several = isinstance(alpha, Tensor) and alpha.ndim > 0
    if not by_kernels or several:
        x.take()
        s.take()
        return fold_by_graph(x, s, alpha, fold, wanted)
    covariances = x.points.new_empty(x.matrices + s.matrices, x.d, x.d)
    x.take(covariances[: x.matrices])
    s.take(covariances[x.matrices :])
    try:
        return fold_by_roots(x, s, covariances, alpha, root_eps or 0.0)
    except LinAlgError:  # which the graph meets again, and knows whether it was content or style
        return fold_by_graph(x, s, alpha, fold, wanted)


class _Recolor(FusedFunction):
    @staticmethod
    def composed(
        content: Tensor,
        style: Tensor,
        alpha: float | Tensor,
        groups: int,
        per_sample: bool,
        fold: Callable[..., Any],
        root_eps: float | None,
    ) -> Tensor:
        dtype = torch.promote_types(widen(content).dtype, widen(style).dtype)
        x, s = (_points(map_.to(dtype), groups) for map_ in (content, style))
        centred, x_mean, x_covariance = statistics(x, not per_sample)
        _, s_mean, s_covariance = statistics(s, not per_sample)
        T, t = fold(x_mean, x_covariance, s_mean, s_covariance, alpha)
        samples, channels, *spatial = content.shape
        y = precise_matmul(T.expand(samples, *T.shape[1:]), centred).reshape(content.shape)
        # Last, because Inductor cannot order the symbolic strides of a view that a convolution comes after.
        y = y + t.reshape(t.shape[0], channels, *[1] * len(spatial))
        return in_layout_of(y.to(content.dtype), content)

    @staticmethod
    def fused_forward(
        ctx: Any,
        content: Tensor,
        style: Tensor,
        alpha: float | Tensor,
        groups: int,
        per_sample: bool,
        fold: Callable[..., Any],
        root_eps: float | None,
    ) -> Tensor:
        dtype = torch.promote_types(widen(content).dtype, widen(style).dtype)
        x, s = (_Moments(map_.detach(), dtype, groups, per_sample) for map_ in (content, style))
        wanted = any(ctx.needs_input_grad)
        folded = _folded(x, s, alpha, fold, root_eps, wanted)
        y = x.passes.whiten(x.points, folded.T.flatten(0, 1), None, folded.t.flatten(), x.centre)
        result = x.restore(y)
        if wanted:
            save(ctx, content, style, *([alpha] if isinstance(alpha, Tensor) else []))
            x.points = s.points = content.new_empty(0)  # seen again by way of what is saved
            ctx.x, ctx.s, ctx.folded, ctx.alpha = x, s, folded, None if isinstance(alpha, Tensor) else alpha
            ctx.groups, ctx.per_sample, ctx.fold, ctx.root_eps = groups, per_sample, fold, root_eps
        return result.data  # the same memory, but no view, which nobody could write to

    @staticmethod
    def leading(ctx: Any, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        given = tensors if ctx.alpha is None else (*tensors, ctx.alpha)
        return given, (ctx.groups, ctx.per_sample, ctx.fold, ctx.root_eps)

    @staticmethod
    def fused_gradients(ctx: Any, tensors: tuple[Any, ...], gy: Tensor) -> tuple[Tensor | None, ...]:
        content, style = tensors[:2]
        x: _Moments = ctx.x
        s: _Moments = ctx.s
        folded: Fold = ctx.folded
        dtype, T = folded.T.dtype, folded.T.flatten(0, 1)
        needs_content, needs_style, _ = ctx.needs_input_grad[:3]
        points, dy = x.view(content, dtype), x.view(gy, dtype)
        G, sums, _ = x.passes.sums(dy, points, T, x.centre)
        found = folded.gradients(G.view_as(folded.T), sums.view_as(folded.t))
        g_content = g_style = None
        if needs_content:
            gM, shift = found.content_covariance.flatten(0, 1), found.content_mean
            shift = None if shift is None else shift.flatten() / x.count
            g_content = x.restore(x.passes.gradient(dy, points, T, gM, None, sums, x.centre, x.count, shift))
        if needs_style:
            gM, twice = found.style_covariance.flatten(0, 1), sums.new_full((s.matrices * s.d,), 2 / s.count)
            shift = found.style_mean.flatten() / s.count
            g_style = s.restore(s.passes.whiten(s.view(style, dtype), gM, twice, shift, s.centre))
        return g_content, g_style, found.alpha
