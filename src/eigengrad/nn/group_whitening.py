"""Whitening of a batch in groups of channels, with its affine map: the body of the decorrelated batch norms.

For points x of one group, with mean μ and covariance M over m points:  y = A x + c,  A = diag(γ) S,  c = β − A μ, where
S = S(M) is the whitening matrix. The backward pass needs two products with the map and writes its gradient in one:

    G = Σ dy (x − μ)ᵀ,   dβ = Σ dy,   dγ = diag(G Sᵀ),   gM from diag(γ) G through S(M)
    dx = Aᵀ (dy − dβ/m) + (2/m) gM (x − μ)

so all that is kept is x and matrices of size d × d. Where more than a first derivative is asked for, the same is
composed of differentiable operations (:mod:`.fused`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._execution import functorch_active
from .._saved import save
from ..eigh import decompose
from ..matmul import precise_matmul
from ..precision import full_precision, widen
from .covariance import covariance
from .distributed import all_reduce_sum, merge_moments
from .fused import FusedFunction
from .inner_graph import inner_graph
from .layout import channels_fast, dense, in_layout_of, with_dense_gradient, with_strides
from .passes import passes_over

__all__ = ["Whitened", "affine_map", "group_whiten"]


class Whitened(NamedTuple):
    """What :func:`group_whiten` returns: the output, and the statistics as constants."""

    output: Tensor
    mean: Tensor  # (C,)
    covariance: Tensor  # (groups, d, d), without eps
    points: int  # how many the statistics are of, over all processes


def group_whiten(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    whitening: Callable[[Tensor], Tensor],
    process_group: Any = None,
    root_eps: float | None = None,
) -> Whitened:
    """Whiten ``x`` (N, C, *spatial) by the statistics of the batch.

    Args:
        x: the features; statistics of half-precision features are computed in float32.
        weight, bias: γ and β, (C,), or None.
        groups: how many groups the channels are in.
        whitening: from covariances (groups, d, d) to whitening matrices, differentiable.
        process_group: the processes whose points count, or None for this one alone.
        root_eps: ε, if ``whitening`` is matrix_inv_sqrt(M, eps=ε), for which there are kernels; None if it is not.
    """
    with full_precision(x):
        arguments = dense(x), weight, bias, groups, whitening, process_group, root_eps
        return Whitened(*_GroupWhiten.run(arguments, (x, weight, bias)))


def affine_map(x: Tensor, A: Tensor, c: Tensor) -> Tensor:
    """A x + c in each group, differentiable: x (N, C, *spatial), A (groups, d, d), c (C,)."""
    groups, d, _ = A.shape
    if not functorch_active() and channels_fast(x):
        rows = x.movedim(1, -1).reshape(x.numel() // (groups * d), groups, d)
        y = precise_matmul(A, rows.permute(1, 2, 0).to(A.dtype)).permute(2, 0, 1)
        y = y.reshape(x.movedim(1, -1).shape).contiguous().movedim(-1, 1)
    else:
        points = x.reshape(x.shape[0], groups, d, math.prod(x.shape[2:]))
        y = precise_matmul(A.expand(x.shape[0], groups, d, d), points.to(A.dtype)).reshape(x.shape)
    # Last, because Inductor cannot order the symbolic strides of a view that a convolution comes after.
    return (y + c.view(-1, *[1] * (x.ndim - 2))).to(x.dtype)


class _GroupWhiten(FusedFunction):
    @staticmethod
    def composed(
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        groups: int,
        whitening: Callable[[Tensor], Tensor],
        process_group: Any,
        root_eps: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        channels = x.shape[1]
        count = x.shape[0] * math.prod(x.shape[2:])
        points = widen(with_dense_gradient(x)).transpose(0, 1).reshape(groups, channels // groups, count)
        mean, cov = covariance(points)
        if process_group is not None:
            mean, cov, count = merge_moments(mean, cov, count, process_group)
        y = precise_matmul(whitening(cov), points - mean)
        y = y.reshape(channels, points.shape[-1])
        if weight is not None:
            y = y * weight.unsqueeze(-1)
        if bias is not None:
            y = y + bias.unsqueeze(-1)
        y = y.reshape(channels, x.shape[0], *x.shape[2:]).transpose(0, 1)
        return in_layout_of(y.to(x.dtype), x), mean.detach().flatten(), cov.detach(), count

    @staticmethod
    def fused_forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        groups: int,
        whitening: Callable[[Tensor], Tensor],
        process_group: Any,
        root_eps: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        points = widen(x)
        passes = passes_over(points, groups)
        mean, rounded, cov = passes.statistics(points)
        count = x.numel() // max(x.shape[1], 1)
        if process_group is not None:
            # In float64, whatever this process computes in: one without points has no kernels.
            column = mean.view(groups, x.shape[1] // groups, 1)
            column, common, count = merge_moments(column.double(), cov.double(), count, process_group)
            mean, cov = column.flatten().to(mean.dtype), common.to(cov.dtype)
            rounded = mean.to(cov.dtype)
        if root_eps is not None:
            ctx.L, ctx.V = decompose("whitening, covariance of the features", cov, None, None)
            ctx.S, output = passes.whiten_by_root(points, ctx.L, ctx.V, root_eps, weight, bias, mean)
        elif any(ctx.needs_input_grad):  # the small graph from covariance to S, for the backward pass to walk
            ctx.leaf = cov.detach().requires_grad_()
            with torch.enable_grad(), inner_graph():
                ctx.S = whitening(ctx.leaf)
            output = passes.whiten(points, ctx.S.detach(), weight, bias, mean)
        else:
            output = passes.whiten(points, whitening(cov), weight, bias, mean)
        save(ctx, x, weight, bias, mean)
        ctx.passes, ctx.count, ctx.groups, ctx.stride = passes, count, groups, x.stride()
        ctx.whitening, ctx.process_group, ctx.root_eps = whitening, process_group, root_eps
        return _of_type(output, x), rounded, cov, count

    @staticmethod
    def leading(ctx: Any, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tensors[:3], (ctx.groups, ctx.whitening, ctx.process_group, ctx.root_eps)

    @staticmethod
    def fused_gradients(ctx: Any, tensors: tuple[Any, ...], gy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean = tensors
        points, dy = widen(with_strides(x, ctx.stride)), widen(gy).resolve_neg()
        dx: Tensor | None
        if ctx.root_eps is not None and ctx.needs_input_grad[0] and ctx.process_group is None:
            found = ctx.passes.gradient_by_root(dy, points, ctx.S, ctx.L, ctx.V, ctx.root_eps, weight, mean)
            dx, g_weight, g_bias = found
        else:
            dx, g_weight, g_bias = _step_by_step(ctx, points, dy, weight, mean)
        return (
            None if dx is None else _of_type(dx, x),
            None if weight is None else _of_type(g_weight, weight),
            None if bias is None else _of_type(g_bias, bias),
        )


def _of_type(a: Tensor, b: Tensor) -> Tensor:
    """``a`` in the type of ``b``, without a microsecond for nothing."""
    return a if a.dtype is b.dtype else a.to(b.dtype)


def _step_by_step(
    ctx: Any, points: Tensor, dy: Tensor, weight: Tensor | None, mean: Tensor
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The gradients of x, γ and β for any S(M), and where other processes have points too."""
    S, passes = ctx.S.detach(), ctx.passes
    G, g_bias, g_weight = passes.sums(dy, points, S, mean)
    if not ctx.needs_input_grad[0]:
        return None, g_weight, g_bias
    sums = g_bias
    if ctx.process_group is not None:  # M and μ belong to all processes, γ and β to this one's loss
        G, sums = (all_reduce_sum(t.double(), ctx.process_group).to(t.dtype) for t in (G, sums))
    if ctx.root_eps is not None:
        gM = passes.inverse_root_gradient(G, weight, ctx.L, ctx.V, ctx.root_eps)
    else:
        gS = G if weight is None else weight.view(ctx.groups, -1, 1) * G
        (gM,) = torch.autograd.grad(ctx.S, ctx.leaf, gS, retain_graph=True)
    dx = passes.gradient(dy, points, S, gM, weight, sums, mean, max(ctx.count, 1))
    return dx, g_weight, g_bias
