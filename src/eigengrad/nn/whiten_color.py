"""Whitening and colouring (WCT): give one feature map, or one image, the mean and covariance of another.

With means μ and covariances Σ of content c and style s, blended by α,

    y = α [ (Σ_s + ε I)^½ (Σ_c + ε I)^(−½) (x − μ_c) + μ_s ] + (1 − α) x  =  T (x − μ_c) + t.

Everything but x is of the size of a covariance, so it is folded into one matrix T and one offset t. The map itself is
passed over as whitening does it (:mod:`.passes`): twice in each direction for the content, once for the style. What is
kept for the backward pass is content, style, and the small graph from their moments to T and t. Where a second
derivative, forward mode, a transform or the compiler is at work, the same is composed from two differentiable
functions of maps, whose derivatives are made of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from .._arguments import require_integer, require_non_negative, require_number
from .._inputs import forward_mode, full_precision, is_concrete, widen
from .._matmul import precise_matmul
from .._transforms import Batched, _bare_apply, run
from ..gradients import GradientRule, resolve
from ..matrix_functions.inv_sqrt import InvSqrt
from ..matrix_functions.spectral import apply
from ..matrix_functions.sqrt import Sqrt
from .inner_graph import inner_graph
from .layout import dense
from .passes import passes_over

__all__ = ["WhitenColor2d", "color_transfer", "whiten_color"]


def whiten_color(
    content: Tensor,
    style: Tensor,
    *,
    groups: int = 1,
    alpha: float | Tensor = 1.0,
    per_sample: bool = True,
    eps: float = 1e-5,
    gradient: str | GradientRule = "exact",
) -> Tensor:
    """Content with the channel means and covariance of style: the paper's whitening and colouring transform.

    y = α [ S_s S_w (x − μ_c) + μ_s ] + (1 − α) x,  S_w = (Σ_c + eps·I)^(−½),  S_s = (Σ_s + eps·I)^½

    Args:
        content: (N, C, *spatial).
        style: (N, C, *other) with a style for each sample, or (1, C, *other) with one for all.
        groups: the channels are split into this many groups of neighbours, and only the covariance within each is
            transferred. Must divide C.
        alpha: how much style: 0 gives the content back, 1 is the full transfer. A number, or a tensor () or (N,).
        per_sample: statistics of each sample by itself. ``False`` takes them over the whole batch, as the paper does
            (its matrices are C × BHW); the style may then have any number of samples.
        eps: added to both covariances, so content equal to style is a fixed point. It is in units of the features
            squared: 1e-5 for features of unit scale, as in the norms of ``torch.nn``; the paper trains with 1e-2.
        gradient: "exact", which is finite where eigenvalues tie; or a rule to differentiate through
            :func:`eigengrad.eigh` as the paper does. See :func:`eigengrad.matrix_sqrt`.

    Returns:
        Shape and type of content; half precision is computed in float32.

    Raises:
        ValueError: also where content or style has a single position to take a covariance of. Style features that
            were pooled to 1×1 have a mean, but no colour.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> content, style = torch.randn(2, 3, 16, 16), 5 + 2 * torch.randn(2, 3, 9, 9)
    >>> y = whiten_color(content, style)
    >>> torch.allclose(y[0].flatten(1).cov(correction=0), style[0].flatten(1).cov(correction=0), rtol=1e-3)
    True
    """
    name = "whiten_color"
    require_integer(name, "groups", groups, minimum=1)
    require_non_negative(name, "eps", eps)
    for argument, x in (("content", content), ("style", style)):
        _check_map(name, argument, x, groups, per_sample)
    samples, channels = content.shape[:2]
    if style.shape[1] != channels:
        raise ValueError(f"{name}: style must have the {channels} channels of content; got {tuple(style.shape)}")
    if per_sample and style.shape[0] not in (1, samples):
        raise ValueError(
            f"{name}: style must have {samples} samples as content has, or 1 for all of them; got {tuple(style.shape)}"
        )
    options: dict[str, Any] = {"eps": eps, "gradient": gradient, "driver": None, "check_finite": None}

    def fold(x_mean: Tensor, x_covariance: Tensor, s_mean: Tensor, s_covariance: Tensor, alpha: Any) -> Any:
        """T (N, groups, d, d) and t (N, groups, d, 1) from the moments; N is 1 if they are of the batch."""
        a = _blend(name, alpha, samples, x_mean)
        whiten = apply(f"{name}, covariance of content", x_covariance, InvSqrt(), **options)
        color = apply(f"{name}, covariance of style", s_covariance, Sqrt(), **options)
        S = precise_matmul(color.expand_as(whiten), whiten)
        T = a * S + (1 - a) * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
        return T, a * s_mean + (1 - a) * x_mean

    with full_precision(content):
        if _passable(content, style, alpha, per_sample):
            y: Tensor = _bare_apply(_WhitenColor)(content, style, alpha, groups, per_sample, fold)
            return y
        return _composed(content, style, alpha, groups, per_sample, fold)


def color_transfer(image_a: Tensor, image_b: Tensor, *, clamp: bool = True, eps: float = 1e-6) -> Tensor:
    """Image A in the colours of image B: a linear map of its pixels that gives them the mean and covariance of B's.

    :func:`whiten_color` on raw pixels.

    Args:
        image_a: (3, H, W) or (N, 3, H, W), floating point, with values from 0 to 1.
        image_b: (3, H', W') or (N or 1, 3, H', W'), the same; of any size.
        clamp: to [0, 1], which the map may leave. The gradient of what is clamped is zero.
        eps: added to both covariances. The default is about the variance of rounding to 8 bits, 1/(12·255²).

    Returns:
        The shape and type of ``image_a``.

    >>> import torch
    >>> dark, bright = torch.rand(3, 8, 8) * 0.2, 0.4 + torch.rand(3, 6, 6) * 0.4
    >>> recoloured = color_transfer(dark, bright, clamp=False)
    >>> torch.allclose(recoloured.mean((1, 2)), bright.mean((1, 2)), atol=1e-5)
    True
    """
    for argument, image in (("image_a", image_a), ("image_b", image_b)):
        _check_image(argument, image, clamp)
    content, style = (image if image.ndim == 4 else image.unsqueeze(0) for image in (image_a, image_b))
    if style.shape[0] not in (1, content.shape[0]):
        raise ValueError(
            f"color_transfer: image_b must be one image, or one for each of image_a; "
            f"got {tuple(image_b.shape)} for {tuple(image_a.shape)}"
        )
    image = whiten_color(content, style, eps=eps)
    return (image.clamp(0, 1) if clamp else image).reshape(image_a.shape)


class WhitenColor2d(nn.Module):
    """:func:`whiten_color` as a layer, for content (N, C, H, W) and style (N or 1, C, H', W'). It has no parameters.

    Args:
        num_features: C.
        groups, alpha, per_sample, eps, gradient: as in :func:`whiten_color`; ``alpha`` is a number here.

    >>> import torch
    >>> layer = WhitenColor2d(64, groups=8, alpha=0.6)
    >>> layer(torch.randn(2, 64, 32, 32), torch.randn(1, 64, 24, 24)).shape
    torch.Size([2, 64, 32, 32])
    >>> layer
    WhitenColor2d(64, groups=8, alpha=0.6, per_sample=True, eps=1e-05, gradient='exact')
    """

    def __init__(
        self,
        num_features: int,
        *,
        groups: int = 1,
        alpha: float = 1.0,
        per_sample: bool = True,
        eps: float = 1e-5,
        gradient: str | GradientRule = "exact",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        require_integer(name, "num_features", num_features, minimum=1)
        require_integer(name, "groups", groups, minimum=1)
        require_number(name, "alpha", alpha)
        require_non_negative(name, "eps", eps)
        resolve(gradient)
        if num_features % groups:
            raise ValueError(f"{name}: groups must divide num_features, {num_features}; got {groups}")
        self.num_features, self.groups, self.alpha = num_features, groups, alpha
        self.per_sample, self.eps, self.gradient = per_sample, eps, gradient

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        """Content in the colours of style, of the shape and type of content."""
        for argument, x in (("content", content), ("style", style)):
            if x.ndim != 4 or x.shape[1] != self.num_features:
                raise ValueError(
                    f"{type(self).__name__}: {argument} must have shape (N, {self.num_features}, H, W); "
                    f"got {tuple(x.shape)}"
                )
        return whiten_color(
            content,
            style,
            groups=self.groups,
            alpha=self.alpha,
            per_sample=self.per_sample,
            eps=self.eps,
            gradient=self.gradient,
        )

    def extra_repr(self) -> str:
        """The arguments."""
        return (
            f"{self.num_features}, groups={self.groups}, alpha={self.alpha}, per_sample={self.per_sample}, "
            f"eps={self.eps}, gradient={self.gradient!r}"
        )


def _check_map(name: str, argument: str, x: Tensor, groups: int, per_sample: bool) -> None:
    """Refuse what has no covariance between channels, saying what came."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {argument} must be a torch.Tensor; got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name}: {argument} must be of a floating-point type; got {x.dtype}")
    if x.ndim < 3:
        raise ValueError(f"{name}: {argument} must have shape (N, C, *spatial); got {tuple(x.shape)}")
    samples, channels, *spatial = x.shape
    if channels % groups:
        raise ValueError(f"{name}: groups must divide the {channels} channels of {argument}; got {groups}")
    empty = samples == 0 and argument == "content"  # nothing to colour is no mistake
    if not empty and math.prod(spatial) * (1 if per_sample else samples) < 2:
        raise ValueError(
            f"{name}: {argument} must have at least 2 positions{' a sample' if per_sample else ''} to take a "
            f"covariance of; got {tuple(x.shape)}. Pass the features before they are pooled."
        )


def _check_image(argument: str, image: Tensor, clamp: bool) -> None:
    """Refuse what is not floating-point RGB with the channels first, and say how to get there."""
    if not isinstance(image, Tensor):
        raise TypeError(f"color_transfer: {argument} must be a torch.Tensor; got {type(image).__name__}")
    if not image.is_floating_point():
        raise TypeError(
            f"color_transfer: {argument} must be of a floating-point type with values from 0 to 1; got {image.dtype}. "
            f"Divide by 255: {argument} / 255"
        )
    if image.ndim not in (3, 4) or image.shape[-3] != 3:
        last = image.ndim in (3, 4) and image.shape[-1] == 3
        raise ValueError(
            f"color_transfer: {argument} must have shape (3, H, W) or (N, 3, H, W); got {tuple(image.shape)}."
            + (" Bring the channels to the front: .movedim(-1, -3)" if last else "")
        )
    # Resizing overshoots 1 by a little; twice that is an image from 0 to 255, which clamping would turn white.
    if clamp and image.is_cpu and is_concrete(image) and image.numel() and (largest := float(image.max())) > 2:
        raise ValueError(
            f"color_transfer: {argument} must have values from 0 to 1; got {largest:g}. "
            "Divide by 255, or pass clamp=False for other scales."
        )


def _blend(name: str, alpha: float | Tensor, samples: int, like: Tensor) -> Any:
    """α as it multiplies matrices (N, groups, d, d): a number, or a tensor (1 or N, 1, 1, 1)."""
    if not isinstance(alpha, Tensor):
        require_number(name, "alpha", alpha)
        return alpha
    if not alpha.is_floating_point():
        raise TypeError(f"{name}: alpha must be a number or a floating-point tensor; got {alpha.dtype}")
    if alpha.shape not in ((), (samples,)):
        raise ValueError(f"{name}: alpha must have shape () or ({samples},); got {tuple(alpha.shape)}")
    return alpha.to(like).reshape(-1, 1, 1, 1)


def _points(x: Tensor, groups: int) -> Tensor:
    """(N, C, *spatial) as (N, groups, d, M), of an empty batch too."""
    samples, channels, *spatial = x.shape
    return x.reshape(samples, groups, channels // groups, math.prod(spatial))


def _passable(content: Tensor, style: Tensor, alpha: float | Tensor, per_sample: bool) -> bool:
    """Whether the numbers can be passed over, with no derivative but the first to record.

    One α for each sample makes a T for each, and a pass over a whole batch knows one.
    """
    if not (is_concrete(content) and is_concrete(style)) or forward_mode() or torch.is_inference_mode_enabled():
        return False
    several = isinstance(alpha, Tensor) and (not is_concrete(alpha) or (alpha.ndim == 1 and not per_sample))
    return content.numel() > 0 and not several


def _composed(
    content: Tensor, style: Tensor, alpha: float | Tensor, groups: int, per_sample: bool, fold: Callable[..., Any]
) -> Tensor:
    """In differentiable operations."""
    dtype = torch.promote_types(widen(content).dtype, widen(style).dtype)
    x, s = (_points(map_.to(dtype), groups) for map_ in (content, style))
    centred, x_mean, x_covariance = _statistics(x, not per_sample)
    _, s_mean, s_covariance = _statistics(s, not per_sample)
    T, t = fold(x_mean, x_covariance, s_mean, s_covariance, alpha)
    y = _affine(T.expand(len(x), *T.shape[1:]), t.expand(len(x), *t.shape[1:]), centred)
    return y.reshape(content.shape).to(content.dtype)


class _Moments:
    """A map as whitening passes over it, and its moments as leaves of the small graph.

    Statistics of each sample by itself are those of one sample with as many times the groups: in memory it is the same.
    """

    def __init__(self, map_: Tensor, dtype: torch.dtype, groups: int, per_sample: bool) -> None:
        self.shape, self.dtype = map_.shape, map_.dtype
        samples, channels = map_.shape[:2]
        positions = math.prod(map_.shape[2:])
        self.own, self.per_sample = (samples if per_sample else 1), per_sample
        self.count = positions * (1 if per_sample else samples)
        self.points = self.view(map_, dtype)
        self.passes = passes_over(self.points, self.own * groups)
        self.centre, covariance = self.passes.statistics(self.points)
        d = channels // groups
        self.mean = self.centre.to(dtype).view(self.own, groups, d, 1).requires_grad_()
        self.covariance = covariance.view(self.own, groups, d, d).requires_grad_()

    def view(self, map_: Tensor, dtype: torch.dtype) -> Tensor:
        """The map, or one of its shape, as it is passed over."""
        samples, channels, *spatial = map_.shape
        if not self.per_sample:
            return dense(map_.to(dtype))
        return map_.to(dtype).reshape(1, samples * channels, math.prod(spatial)).contiguous()

    def restore(self, points: Tensor) -> Tensor:
        """Back in the shape and type of the map."""
        return points.reshape(self.shape).to(self.dtype)


class _WhitenColor(Function):
    @staticmethod
    def forward(
        ctx: Any,
        content: Tensor,
        style: Tensor,
        alpha: float | Tensor,
        groups: int,
        per_sample: bool,
        fold: Callable[..., Any],
    ) -> Any:
        dtype = torch.promote_types(widen(content).dtype, widen(style).dtype)
        x, s = (_Moments(map_.detach(), dtype, groups, per_sample) for map_ in (content, style))
        blend = alpha.detach().requires_grad_(alpha.requires_grad) if isinstance(alpha, Tensor) else alpha
        wanted = any(ctx.needs_input_grad)
        with torch.set_grad_enabled(wanted), inner_graph():
            T, t = fold(x.mean, x.covariance, s.mean, s.covariance, blend)
        y = x.passes.whiten(x.points, T.detach().flatten(0, 1), None, t.detach().flatten(), x.centre)
        result = x.restore(y)
        if wanted:
            ctx.save_for_backward(content, style, *([alpha] if isinstance(alpha, Tensor) else []))
            x.points = s.points = content.new_empty(0)  # seen again by way of what is saved
            ctx.x, ctx.s, ctx.T, ctx.t, ctx.blend, ctx.alpha = x, s, T, t, blend, alpha
            ctx.groups, ctx.per_sample, ctx.fold = groups, per_sample, fold
        return result

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        content, style, *alpha = ctx.saved_tensors
        with full_precision(content):
            if torch.is_grad_enabled() or not is_concrete(gy):
                return (*_recomposed(ctx, content, style, alpha[0] if alpha else ctx.alpha, gy), None, None, None)
            return (*_gradients(ctx, content, style, gy), None, None, None)


def _gradients(ctx: Any, content: Tensor, style: Tensor, gy: Tensor) -> tuple[Tensor | None, ...]:
    x: _Moments = ctx.x
    s: _Moments = ctx.s
    dtype, T = ctx.T.dtype, ctx.T.detach().flatten(0, 1)
    needs_content, needs_style, needs_alpha = ctx.needs_input_grad[:3]
    points, dy = x.view(content, dtype), x.view(gy, dtype)
    G, sums, _ = x.passes.sums(dy, points, T, x.centre)
    leaves = [x.mean, x.covariance, s.mean, s.covariance]
    if needs_alpha:
        leaves.append(ctx.blend)
    outputs, given = (ctx.T, ctx.t), (G.view_as(ctx.T), sums.view_as(ctx.t))
    gx_mean, gx, gs_mean, gs, *g_alpha = torch.autograd.grad(outputs, leaves, given, retain_graph=True)
    g_content = g_style = None
    if needs_content:
        dx = x.passes.gradient(dy, points, T, gx.flatten(0, 1), None, sums, x.centre, x.count)
        if gx_mean.any():  # not at full strength, where the offset is the style's mean alone
            dx += (gx_mean / x.count).view(1, -1, *[1] * (dx.ndim - 2))
        g_content = x.restore(dx)
    if needs_style:
        B, b = (gs + gs.mT) / s.count, gs_mean / s.count
        ds = s.passes.whiten(s.view(style, dtype), B.flatten(0, 1), None, b.flatten(), s.centre)
        g_style = s.restore(ds)
    return g_content, g_style, (g_alpha[0] if g_alpha else None)


def _recomposed(
    ctx: Any, content: Tensor, style: Tensor, alpha: float | Tensor, gy: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients as differentiable functions of content, style, α and gy."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        output = _composed(content, style, alpha, ctx.groups, ctx.per_sample, ctx.fold)
    given = (content, style, alpha)
    wanted = [t for t, needed in zip(given, ctx.needs_input_grad[:3], strict=True) if needed and isinstance(t, Tensor)]
    found = iter(torch.autograd.grad(output, wanted, gy, create_graph=create_graph))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad[:3])


def _statistics(x: Tensor, pooled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Centred points (N, g, d, M), their mean (N, g, d, 1) and covariance (N, g, d, d); N is 1 if ``pooled``."""
    centred, mean, covariance = run(_Statistics, _StatisticsTransforms, x, pooled)
    return centred, mean, covariance


def _affine(T: Tensor, t: Tensor, x: Tensor) -> Tensor:
    """T x + t for (N, g, d, d), (N, g, d, 1) and (N, g, d, M)."""
    y: Tensor = run(_Affine, _AffineTransforms, T, t, x)
    return y


def _count(x: Tensor, pooled: bool) -> int:
    """How many points a statistic is of; one at least, so those of none are zero."""
    return max(x.shape[-1] * (x.shape[-4] if pooled else 1), 1)


def _pool(moment: Tensor, pooled: bool) -> Tensor:
    """The sum over samples, if that is what the statistic is of. (From the end: ``vmap`` adds dimensions in front.)"""
    return moment.sum(-4, keepdim=True) if pooled else moment


class _Statistics(Function):
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
        ctx.save_for_backward(output[0])
        ctx.save_for_forward(output[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_mean: Tensor | None, g_covariance: Tensor | None) -> Any:
        (centred,) = ctx.saved_tensors
        count = _count(centred, ctx.pooled)
        b = centred.new_zeros(()) if g_mean is None else g_mean / count
        if g is not None:
            b = b - _pool(g.sum(-1, keepdim=True), ctx.pooled) / count
        if g_covariance is None:
            return (b.expand_as(centred) if g is None else g + b), None
        B = (g_covariance + g_covariance.mT) / count
        B, b = B.expand(*centred.shape[:-1], -1), b.expand(*centred.shape[:-1], 1)
        if g is None:
            return _affine(B, b, centred), None
        if torch.is_grad_enabled() or not is_concrete(g) or not g.is_contiguous():
            return g + _affine(B, b, centred), None
        # A plain backward pass: g comes from the product in whiten_color and is nobody else's, so it can be added to.
        with full_precision(g):
            g.flatten(0, -3).baddbmm_(B.flatten(0, -3), centred.flatten(0, -3))
            return g.add_(b), None


class _StatisticsTransforms(_Statistics, Batched):
    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None) -> Any:
        (centred,) = ctx.saved_tensors
        count = _count(centred, ctx.pooled)
        d_mean = _pool(dx.sum(-1, keepdim=True), ctx.pooled) / count
        half = _pool(precise_matmul(centred, dx.mT), ctx.pooled) / count
        return dx - d_mean, d_mean, half + half.mT


class _Affine(Function):
    @staticmethod
    def forward(T: Tensor, t: Tensor, x: Tensor) -> Any:
        with full_precision(x):
            return (T @ x).add_(t)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        T, _, x = inputs
        ctx.save_for_backward(T, x)
        ctx.save_for_forward(T, x)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        T, x = ctx.saved_tensors
        needs_T, needs_t, needs_x = ctx.needs_input_grad
        return (
            precise_matmul(G, x.mT) if needs_T else None,
            G.sum(-1, keepdim=True) if needs_t else None,
            precise_matmul(T.mT, G) if needs_x else None,
        )


class _AffineTransforms(_Affine, Batched):
    @staticmethod
    def jvp(ctx: Any, dT: Tensor | None, dt: Tensor | None, dx: Tensor | None) -> Any:
        T, x = ctx.saved_tensors
        dy = torch.zeros_like(x)
        if dT is not None:
            dy = dy + precise_matmul(dT, x)
        if dx is not None:
            dy = dy + precise_matmul(T, dx)
        return dy if dt is None else dy + dt
