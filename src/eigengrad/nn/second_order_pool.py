"""Second-order pooling: a function of the features' covariance in place of their mean.

Every method of the paper's table is one row of :data:`METHODS`: which moment of the features is taken, which function
of its eigenvalues, how that is differentiated, and how the result is normalised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._inputs import add_to_diagonal
from .._transforms import is_fixed
from ..arguments import require_integer, require_non_negative, require_number
from ..eigh import eigh
from ..errors import unknown_choice
from ..gradients import Clip, GradientRule, PowerIteration, resolve
from ..matmul import precise_matmul
from ..matrix_functions import newton_schulz_sqrt, pade_sqrt, taylor_sqrt
from ..matrix_functions.divided_differences import ScalarFunction
from ..matrix_functions.inv_sqrt import InvSqrt
from ..matrix_functions.log import Log
from ..matrix_functions.power import Power
from ..matrix_functions.spectral import apply, into_domain
from ..matrix_functions.sqrt import Sqrt
from ..precision import REAL, full_precision, widen
from ..solvers import require_finite
from .covariance import second_moment
from .layout import no_view
from .thin_sqrt import thin_sqrt

__all__ = ["METHODS", "PoolingMethod", "SecondOrderPool2d", "second_order_pool"]

_NAME = "second_order_pool"
_MOMENTS = ("covariance", "second_moment", "gaussian")
#: Approximate square roots, by the names they have as functions.
_ITERATIVE: dict[str, Callable[..., Tensor]] = {
    "newton_schulz": newton_schulz_sqrt,
    "pade": pade_sqrt,
    "taylor": taylor_sqrt,
}
_FUNCTIONS = ("power", "log", *_ITERATIVE)
_NORMS = ("frobenius", "l2", "signed_sqrt")
_OUTPUTS = ("triu", "matrix", "features")


@dataclass(frozen=True)
class PoolingMethod:
    """How features become a matrix: f(moment + eps·I), and what is done to it afterwards.

    Args:
        moment: of the M positions x_i of a sample: "covariance" (centred), "second_moment" (about zero), or "gaussian",
            the second moment of (x_i, 1), which is the embedding [[Σ + μμᵀ, μ], [μᵀ, 1]] of N(μ, Σ). All ÷ M.
        function: "power" (λ^power), "log", or an approximate square root: "newton_schulz" (``steps`` iterations),
            "pade" (MPA) or "taylor" (MTP) of degree ``steps``.
        power: α. With 1 there is nothing to decompose.
        eps: added to the diagonal of the moment; eigenvalues that round-off puts below it count as eps.
        gradient: "exact", by divided differences; or a rule, to differentiate through :func:`eigengrad.eigh`.
            :class:`~eigengrad.PowerIteration` (SVD-PI) stops at ``eps``, and S is of the eigenvectors it keeps; with
            ``stop=False`` of all of them.
        normalize: ``None``; "frobenius" divides the matrix by its Frobenius norm √Σλ^2α (the paper's form); "l2"
            divides the output of each sample by its length; "signed_sqrt" takes sign(y)√|y| of its entries first.
        steps: of Newton–Schulz; the degree of "pade" and "taylor".

    >>> from eigengrad.nn import SecondOrderPool2d
    >>> root = PoolingMethod(power=0.5, eps=1e-3, normalize="frobenius")
    >>> SecondOrderPool2d(64, method=root).num_features
    2080
    """

    moment: str = "covariance"
    function: str = "power"
    power: float = 0.5
    eps: float = 1e-2
    gradient: str | GradientRule = "exact"
    normalize: str | None = None
    steps: int = 5

    def __post_init__(self) -> None:
        for argument, choices in (("moment", _MOMENTS), ("function", _FUNCTIONS), ("normalize", _NORMS)):
            value = getattr(self, argument)
            if value not in choices and not (argument == "normalize" and value is None):
                raise unknown_choice(argument, value, choices)
        require_number(_NAME, "power", self.power)
        require_non_negative(_NAME, "eps", self.eps)
        require_integer(_NAME, "steps", self.steps, minimum=1)
        rule = resolve(self.gradient)
        if (
            isinstance(self.gradient, str) and "(" in self.gradient
        ):  # a name with parameters, which compilers cannot parse
            object.__setattr__(self, "gradient", rule)


#: The paper's table, by name. To add a method, add a line.
METHODS: dict[str, PoolingMethod] = {
    "exact": PoolingMethod(),
    "svd_taylor": PoolingMethod(gradient="taylor"),
    "svd_pi": PoolingMethod(gradient=PowerIteration(steps=10, inclusive=True)),
    "mpn_cov": PoolingMethod(gradient=Clip(100.0)),
    "isqrt_cov": PoolingMethod(function="newton_schulz", eps=0.0),
    "mpa": PoolingMethod(function="pade", eps=0.0),
    "mtp": PoolingMethod(function="taylor", eps=0.0, steps=10),
    "g2denet": PoolingMethod(moment="gaussian"),
    "deep_o2p": PoolingMethod(moment="second_moment", function="log", eps=1e-3),
    "bilinear": PoolingMethod(moment="second_moment", power=1.0, eps=0.0, normalize="signed_sqrt"),
    "improved_bilinear": PoolingMethod(moment="second_moment", normalize="signed_sqrt"),
}


def second_order_pool(
    x: Tensor,
    *,
    method: str | PoolingMethod = "exact",
    power: float | None = None,
    eps: float | None = None,
    gradient: str | GradientRule | None = None,
    normalize: str | None = "method",
    steps: int | None = None,
    output: str = "triu",
) -> Tensor:
    """Second-order pooling of feature maps: the paper's Algorithm 3, and its rivals.

    For each sample, with X̃ (C, M) its centred features at M = H·W positions,

        S = f(X̃ X̃ᵀ/M + eps·I) = V f(λ) Vᵀ,    f(λ) = λ^power.

    The gradient is exact and finite at ties by default; float16, bfloat16 and autocast are computed in float32. A
    sample's result does not depend on the others.

    Args:
        x: (N, C, H, W), or (C, H, W) for one sample.
        method: a name in :data:`METHODS`, or a :class:`PoolingMethod`. The arguments below replace parts of it.
        power: α in λ^α.
        eps: added to the diagonal.
        gradient: "exact", or a rule such as "taylor" or ``Clip(100.0)``.
        normalize: "frobenius", "l2", "signed_sqrt" or ``None``; "method" leaves the choice to the method.
        steps: of Newton–Schulz, or the degree of MPA and MTP.
        output: "triu", the upper triangle of S row by row, (N, C(C+1)/2), every entry as it is, as in MPN-COV and
            iSQRT-COV (no √2 off the diagonal, so its length is not the norm of S); "matrix", S itself, (N, C, C);
            "features", S·X̃ as Algorithm 3 writes it, (N, C, H, W). For the Gaussian embedding C is one more.

    Returns:
        As ``output`` says, in the type of ``x``.

    >>> import torch
    >>> from eigengrad.nn.second_order_pool import second_order_pool
    >>> x = torch.randn(8, 16, 7, 7)
    >>> second_order_pool(x).shape, second_order_pool(x, method="g2denet", output="matrix").shape
    (torch.Size([8, 136]), torch.Size([8, 17, 17]))
    """
    chosen = _choose(method, power, eps, gradient, normalize, steps)
    _check(x)
    if output not in _OUTPUTS:
        raise unknown_choice("output", output, _OUTPUTS)
    return _pool(x, chosen, output)


class SecondOrderPool2d(nn.Module):
    """Second-order pooling as a layer, after an optional 1×1 convolution that reduces the channels.

    The layer of :func:`second_order_pool`, whose arguments it takes. It keeps no statistics: training and evaluation
    are the same.

    Args:
        in_channels: of the input; ``None`` takes any.
        channels: to reduce to by a 1×1 convolution without bias (which centring would remove), for example 256;
            ``None`` pools the input as it is.
        method, power, eps, gradient, normalize, steps, output: as in :func:`second_order_pool`.
        device, dtype: of the convolution.

    Shape:
        (N, in_channels, H, W) or (in_channels, H, W), to (N, :attr:`num_features`) for ``output="triu"``.

    >>> import torch
    >>> from eigengrad.nn.second_order_pool import SecondOrderPool2d
    >>> pool = SecondOrderPool2d(64, 16, normalize="frobenius")
    >>> classifier = torch.nn.Linear(pool.num_features, 10)
    >>> classifier(pool(torch.randn(8, 64, 7, 7))).shape
    torch.Size([8, 10])
    """

    def __init__(
        self,
        in_channels: int | None = None,
        channels: int | None = None,
        *,
        method: str | PoolingMethod = "exact",
        power: float | None = None,
        eps: float | None = None,
        gradient: str | GradientRule | None = None,
        normalize: str | None = "method",
        steps: int | None = None,
        output: str = "triu",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for argument, value in (("in_channels", in_channels), ("channels", channels)):
            if value is not None:
                require_integer("SecondOrderPool2d", argument, value, minimum=1)
        if output not in _OUTPUTS:
            raise unknown_choice("output", output, _OUTPUTS)
        self.method = _choose(method, power, eps, gradient, normalize, steps)
        self.output = output
        self.in_channels = in_channels
        self.channels = in_channels if channels is None else channels
        self.reduction: nn.Conv2d | None = None
        if channels is not None:
            if in_channels is None:
                raise ValueError(
                    f"SecondOrderPool2d: in_channels must be given to reduce to channels={channels}; got None"
                )
            self.reduction = nn.Conv2d(in_channels, channels, 1, bias=False, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw the weights of the 1×1 convolution anew."""
        if self.reduction is not None:
            self.reduction.reset_parameters()

    @property
    def num_features(self) -> int:
        """Length of the vector that ``output="triu"`` gives for a sample: d(d+1)/2."""
        if self.channels is None:
            raise ValueError("SecondOrderPool2d: num_features is known only if in_channels is given; got None")
        d = self.channels + (self.method.moment == "gaussian")
        return d * (d + 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Pool a batch of feature maps."""
        _check(x, "SecondOrderPool2d", self.in_channels)
        return _pool(x if self.reduction is None else self.reduction(x), self.method, self.output)

    def extra_repr(self) -> str:
        """The sizes, the method and the output."""
        return f"{self.in_channels}, {self.channels}, method={self.method}, output={self.output!r}"


def _choose(
    method: str | PoolingMethod,
    power: float | None,
    eps: float | None,
    gradient: str | GradientRule | None,
    normalize: str | None,
    steps: int | None,
) -> PoolingMethod:
    """The method with the arguments that were given put in, refusing those it would not look at."""
    if isinstance(method, str):
        if method not in METHODS:
            raise unknown_choice("method", method, METHODS)
        method = METHODS[method]
    elif not isinstance(method, PoolingMethod):
        raise TypeError(f"method: got {method!r}; expected a PoolingMethod or a name: {', '.join(METHODS)}")
    given: dict[str, Any] = {"power": power, "eps": eps, "gradient": gradient, "steps": steps}
    given = {argument: value for argument, value in given.items() if value is not None}
    unused = {"power": ("steps",), "log": ("power", "steps")}.get(method.function, ("power", "gradient"))
    for argument in unused:
        if argument in given:
            raise ValueError(
                f"{_NAME}: {argument} means nothing to a method whose function is {method.function!r}; "
                f"got {argument}={given[argument]!r}"
            )
    if normalize != "method":
        given["normalize"] = normalize
    return replace(method, **given)


def _check(x: Tensor, name: str = _NAME, channels: int | None = None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: x must be a torch.Tensor; got {type(x).__name__}")
    if x.ndim not in (3, 4):
        raise ValueError(f"{name}: x must have shape (N, C, H, W) or (C, H, W); got {tuple(x.shape)}")
    if x.dtype not in REAL:
        raise TypeError(f"{name}: x must be of a floating-point type; got {x.dtype}. Convert it with .float().")
    if x.shape[-3] < 1 or (channels is not None and x.shape[-3] != channels):
        expected = "at least 1 channel" if channels is None else f"{channels} channels"
        raise ValueError(f"{name}: x must have {expected}; got shape {tuple(x.shape)}")


def _pool(x: Tensor, method: PoolingMethod, output: str) -> Tensor:
    """Algorithm 3, for every method and output."""
    with full_precision(x):
        points = _points(widen(x).flatten(-2), method.moment)
        S = _transform(points, method)
        if method.normalize == "frobenius":
            S = _unit(S, (-2, -1))
        if output == "features":
            y = no_view(precise_matmul(S, points).unflatten(-1, x.shape[-2:]))
        else:
            y = S if output == "matrix" else _upper_triangle(S)
        if method.normalize in ("l2", "signed_sqrt"):
            sample = tuple(range(x.ndim - 3, y.ndim))
            y = _unit(_signed_sqrt(y, sample) if method.normalize == "signed_sqrt" else y, sample)
        pooled: Tensor = y.to(x.dtype)
        return pooled


def _points(x: Tensor, moment: str) -> Tensor:
    """The vectors whose second moment is wanted, as columns: (..., C, M), one more row for the Gaussian embedding."""
    if moment == "covariance":  # centred first, so nothing cancels when the mean is far from zero
        return x - x.sum(-1, keepdim=True) / max(x.shape[-1], 1)
    if moment == "gaussian":
        return torch.cat([x, torch.ones_like(x[..., :1, :])], -2)
    return x


def _transform(points: Tensor, method: PoolingMethod) -> Tensor:
    """f(moment + eps·I), (..., d, d)."""
    eps, (d, count) = method.eps, points.shape[-2:]
    root = (
        method.function == "power"
        and method.power == 0.5
        and isinstance(method.gradient, str)
        and method.gradient == "exact"
    )
    if root and eps > 0 and is_fixed(count) and count < d:
        return thin_sqrt(points, eps)
    moment = second_moment(points, max(count, 1))
    if method.function in _ITERATIVE:
        return _ITERATIVE[method.function](moment, method.steps, eps=eps)
    if method.function == "power" and method.power == 1:
        require_finite(_NAME, moment, None)
        return add_to_diagonal(moment, eps) if eps else moment
    f = Log() if method.function == "log" else _power(method.power)
    rule = resolve(method.gradient)
    if isinstance(rule, PowerIteration):
        return _truncated(moment, f, eps, rule.for_covariance(eps))
    return apply(
        _NAME, moment, f, eps=eps, gradient=method.gradient, driver=None, check_finite=None, known_hermitian=True
    )


def _truncated(moment: Tensor, f: ScalarFunction, eps: float, rule: PowerIteration) -> Tensor:
    """Ṽ f(λ) Ṽᵀ of the eigenvectors that SVD-PI keeps, as Algorithm 1 computes its S."""
    L, V = eigh(add_to_diagonal(moment, eps) if eps else moment, gradient=rule)
    V = rule.truncate(L, V)
    return precise_matmul(V * f.value(into_domain(_NAME, f, L, eps)).unsqueeze(-2), V.mH)


def _power(exponent: float) -> ScalarFunction:
    return {0.5: Sqrt(), -0.5: InvSqrt()}.get(exponent) or Power(float(exponent))


def _upper_triangle(S: Tensor) -> Tensor:
    """(..., d, d) to (..., d(d+1)/2), row by row."""
    d = S.shape[-1]
    row, column = torch.triu_indices(d, d, device=S.device)
    return S.flatten(-2).index_select(-1, row * d + column)


def _scale(y: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Largest entry of each sample, a constant; zero counts as 1. Dividing by it keeps squares in range."""
    largest = y.detach().abs().amax(dims, keepdim=True) if y.numel() else y.detach().sum(dims, keepdim=True)
    return torch.where(largest > 0, largest, torch.ones_like(largest))


def _unit(y: Tensor, dims: tuple[int, ...]) -> Tensor:
    """y divided by its length; zero stays zero, and its gradient finite."""
    y = y / _scale(y, dims)
    square = (y * y).sum(dims, keepdim=True)
    return y * torch.rsqrt(torch.where(square > 0, square, torch.ones_like(square)))


def _signed_sqrt(y: Tensor, dims: tuple[int, ...]) -> Tensor:
    """sign(y)√|y| as y/(y² + δ²)^¼, whose gradient at 0 is finite; δ is round-off of the sample's largest entry."""
    scale = _scale(y, dims)
    y = y / scale
    return y * (y * y + torch.finfo(y.dtype).eps ** 2) ** -0.25 * torch.sqrt(scale)
