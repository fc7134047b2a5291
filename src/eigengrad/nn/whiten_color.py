"""Whitening and colouring (WCT): give one feature map, or one image, the mean and covariance of another.

With means μ and covariances Σ of content c and style s, blended by α,

    y = α [ (Σ_s + ε I)^½ (Σ_c + ε I)^(−½) (x − μ_c) + μ_s ] + (1 − α) x  =  T (x − μ_c) + t.

Everything but x is of the size of a covariance, so it is folded into one matrix T and one offset t. What remains is to
take moments of maps and to apply T and t to one: :mod:`.recoloring`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._execution import can_read
from ..arguments import require_integer, require_non_negative, require_number
from ..gradients import GradientRule, resolve
from ..matmul import precise_matmul
from ..matrix_functions.inv_sqrt import InvSqrt
from ..matrix_functions.spectral import apply
from ..matrix_functions.sqrt import Sqrt
from ..precision import REAL, full_precision
from .recoloring import recolor

__all__ = ["WhitenColor2d", "transfer", "whiten_color"]


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
    options["known_hermitian"] = True

    def roots(x_covariance: Tensor, s_covariance: Tensor) -> tuple[Tensor, Tensor]:
        whiten = apply(f"{name}, covariance of content", x_covariance, InvSqrt(), **options)
        return whiten, apply(f"{name}, covariance of style", s_covariance, Sqrt(), **options)

    root_eps = eps if gradient == "exact" else None
    return transfer(content, style, roots, groups=groups, alpha=alpha, per_sample=per_sample, root_eps=root_eps)


def transfer(
    content: Tensor,
    style: Tensor,
    roots: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    *,
    groups: int,
    alpha: float | Tensor,
    per_sample: bool = True,
    root_eps: float | None = None,
) -> Tensor:
    """:func:`whiten_color` of maps that the caller has checked, by roots of his own.

    Args:
        roots: from the covariances (N, groups, d, d) of content and style to the matrix that whitens the one and the
            matrix that colours as the other, differentiable; N is 1 if statistics are of the batch.
        root_eps: ε, if they are the exact roots of Σ + εI, for which there are kernels; None if they are not.
    """
    _check_alpha("whiten_color", alpha, content.shape[0])

    def fold(x_mean: Tensor, x_covariance: Tensor, s_mean: Tensor, s_covariance: Tensor, alpha: Any) -> Any:
        """T (N, groups, d, d) and t (N, groups, d, 1)."""
        a = alpha.to(x_mean).reshape(-1, 1, 1, 1) if isinstance(alpha, Tensor) else alpha
        whiten, color = roots(x_covariance, s_covariance)
        S = precise_matmul(color.expand_as(whiten), whiten)
        T = a * S + (1 - a) * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
        return T, a * s_mean + (1 - a) * x_mean

    with full_precision(content):
        return recolor(content, style, alpha, groups, per_sample, fold, root_eps)


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
            if not isinstance(x, Tensor):
                raise TypeError(f"{type(self).__name__}: {argument} must be a torch.Tensor; got {type(x).__name__}")
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
    if x.dtype not in REAL:
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


def _check_alpha(name: str, alpha: float | Tensor, samples: int) -> None:
    if not isinstance(alpha, Tensor):
        require_number(name, "alpha", alpha)
    elif not alpha.is_floating_point():
        raise TypeError(f"{name}: alpha must be a number or a floating-point tensor; got {alpha.dtype}")
    elif alpha.shape not in ((), (samples,)):
        raise ValueError(f"{name}: alpha must have shape () or ({samples},); got {tuple(alpha.shape)}")
    elif alpha.device.type == "cpu" and can_read(alpha) and not bool(alpha.isfinite().all()):
        raise ValueError(f"{name}: alpha must be finite; got {alpha.tolist()}")
