"""Divided differences of scalar functions: what the derivatives of a matrix function are made of.

For S = V f(λ) Vᴴ the derivative needs f[x, y] = (f(x) − f(y))/(x − y), finite at x = y, and the second derivative
f[x, y, z] = (f[x, y] − f[y, z])/(x − z). Written like this they cancel when the points are close. The classes here
have forms that do not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._compat import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

__all__ = ["GivenFunction", "ScalarFunction", "SmoothFunction", "where_tied"]


class ScalarFunction(ABC):
    """A real function of a real variable. Instances hold parameters only and compare by value."""

    #: What the eigenvalues must be: "real", "non-zero", "non-negative" or "positive".
    domain = "real"
    #: Its name in the compiled kernels that know its divided differences, if there are any; see ``kernels.vjp``.
    kernel: ClassVar[str | None] = None

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """f(x), elementwise."""

    @abstractmethod
    def first(self, x: Tensor, y: Tensor) -> Tensor:
        """f[x, y] for tensors that broadcast, f′(x) where x = y; accurate for every gap."""

    def second(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """f[x, y, z] for tensors that broadcast, ½ f″(x) where all are equal."""
        raise NotImplementedError(f"second derivatives of {type(self).__name__} are not available")

    def weigh(self, x: Tensor, y: Tensor, E: Tensor) -> Tensor:
        """f[x, y] · E, in an order in which nothing leaves the range of the type that need not."""
        return self.first(x, y) * E

    def require_constant(self, x: Tensor) -> None:
        """Refuse a function that depends on something a gradient is wanted of. Most depend on nothing."""
        return


class SmoothFunction(ScalarFunction):
    """A function that knows its second derivative too."""

    @abstractmethod
    def curvature(self, x: Tensor) -> Tensor:
        """f″(x), elementwise."""

    def second(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """f[x, y, z] for tensors that broadcast, ½ f″(x) where all are equal.

        Two ways, and for each triple the one with the smaller error. The recursion, over the two points that are
        farthest apart, loses eps/gap to cancellation. The mean of ½ f″ over the triangle of the points comes from a
        rule of degree 2, and its error from another with other nodes, the points themselves among them. They
        meet where the gap is about eps^(1/4): the worst error is some 1e-11 in float64, 1e-5 in float32. Where both
        rules miss what happens between their nodes, they agree with each other, but not with the recursion.
        """
        points = torch.stack(torch.broadcast_tensors(x, y, z)).sort(0).values
        low, middle, high = points
        near, far, gap = self.first(low, middle), self.first(middle, high), high - low
        centre = points.mean(0)
        curvature = self.curvature(centre)
        # How accurately f′ is known: to its own round-off, and to that of its argument.
        lost = (near.abs() + far.abs() + (curvature * centre).abs()) * torch.finfo(points.dtype).eps
        mean = self.curvature(0.5 * (points + centre)).sum(0) * (1 / 6)
        other = self.curvature(points).sum(0) * (1 / 24) + curvature * (3 / 8)
        exact = ((mean - other).abs() * gap <= lost) & ~_missed(mean * gap, far - near, 64 * lost, low, high)
        return torch.where(exact | (gap == 0), mean, (far - near) / gap)


@dataclass(frozen=True)
class GivenFunction(SmoothFunction):
    """f and f′ (and f″) as somebody else wrote them, with nothing known about their structure."""

    f: Callable[[Tensor], Tensor]
    df: Callable[[Tensor], Tensor]
    d2f: Callable[[Tensor], Tensor] | None = None

    def value(self, x: Tensor) -> Tensor:
        return _of_shape(x, self.f(x), "f")

    def require_constant(self, x: Tensor) -> None:
        """Refuse a function with parameters that a derivative is wanted of: the derivatives here are those of A."""
        if torch.compiler.is_compiling():
            return
        if _is_variable(self.value(torch.ones(2, dtype=x.dtype, device=x.device))):
            raise ValueError(
                "matrix_function: f depends on a tensor that requires a gradient, for which there is none; detach it, "
                'or pass a rule as gradient, such as "taylor", to differentiate through f'
            )

    def curvature(self, x: Tensor) -> Tensor:
        if self.d2f is None:
            raise ValueError("matrix_function: second derivatives need the argument d2f, the second derivative of f")
        return _of_shape(x, self.d2f(x), "d2f")

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        """The difference quotient or the mean of f′ by a Gauss rule of three points, whichever has the smaller error.

        The quotient loses eps · |f|/gap to cancellation; the rule is off by less than it differs from one of two. Where
        f has a step or a kink between the nodes, both rules miss it, and agree, but not with the quotient.
        """
        x, y = torch.broadcast_tensors(x, y)
        fx, fy, gap, centre = self.value(x), self.value(y), x - y, 0.5 * (x + y)

        def slope(x: Tensor) -> Tensor:
            return _of_shape(x, self.df(x), "df")

        def pair(node: float) -> Tensor:
            return slope(centre - (0.5 * node) * gap) + slope(centre + (0.5 * node) * gap)

        two = 0.5 * pair(3**-0.5)
        three = (5 * pair(0.6**0.5) + 8 * slope(centre)) * (1 / 18)
        lost = torch.maximum(fx.abs(), fy.abs()) * torch.finfo(x.dtype).eps
        exact = ((three - two).abs() * gap.abs() <= lost) & ~_missed(three * gap, fx - fy, 8 * lost, x, y)
        return torch.where(exact | (gap == 0), three, (fx - fy) / gap)


def _missed(integral: Tensor, difference: Tensor, lost: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Whether an integral by nodes between x and y differs from what it should be by more than was lost.

    Between points as close as √eps nothing is missed: there the difference is worth less than the integral even if f
    is not computed to round-off.
    """
    apart: Tensor = (x - y).abs() > torch.maximum(x.abs(), y.abs()) * math.sqrt(torch.finfo(x.dtype).eps)
    return apart & ((integral - difference).abs() > lost)


def _is_variable(y: Tensor) -> bool:
    """Whether somebody differentiates, or maps, what y was made from, at any level of a transform."""
    with torch.no_grad():
        while not (y.requires_grad or is_batchedtensor(y) or forward_ad.unpack_dual(y).tangent is not None):
            if not is_functorch_wrapped_tensor(y):
                return False
            y = get_unwrapped(y)
    return True


def _of_shape(x: Tensor, y: object, name: str) -> Tensor:
    """What a function of the user made of x, if it is elementwise."""
    if not isinstance(y, Tensor) or y.shape != x.shape:
        came = tuple(y.shape) if isinstance(y, Tensor) else repr(y)
        raise ValueError(
            f"matrix_function: {name} must return a tensor of the shape of its argument, {tuple(x.shape)}; got {came}"
        )
    return y


def where_tied(gap: Tensor, limit: Tensor, quotient: Callable[[Tensor], Tensor]) -> Tensor:
    """``quotient`` of the gap, and ``limit`` where the gap is zero, without dividing by it."""
    tied = gap == 0
    return torch.where(tied, limit, quotient(torch.where(tied, torch.ones_like(gap), gap)))
