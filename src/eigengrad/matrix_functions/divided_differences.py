"""Divided differences of scalar functions: what the derivatives of a matrix function are made of.

For S = V f(λ) Vᴴ the derivative needs f[x, y] = (f(x) − f(y))/(x − y), finite at x = y, and the second derivative
f[x, y, z] = (f[x, y] − f[y, z])/(x − z). Written like this they cancel when the points are close. The classes here
have forms that do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import kernels

__all__ = ["GivenFunction", "ScalarFunction", "SmoothFunction", "where_tied"]


class ScalarFunction(ABC):
    """A real function of a real variable. Instances hold parameters only and compare by value."""

    #: What the eigenvalues must be: "real", "non-negative" or "positive".
    domain = "real"
    #: The compiled kernel that knows its divided differences, if there is one.
    kernel: ClassVar[kernels.Function | None] = None

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """f(x), elementwise."""

    @abstractmethod
    def first(self, x: Tensor, y: Tensor) -> Tensor:
        """f[x, y] for tensors that broadcast, f′(x) where x = y; accurate for every gap."""


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
        meet where the gap is about eps^(1/4): the worst error is some 1e-11 in float64, 1e-5 in float32.
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
        return torch.where(((mean - other).abs() * gap <= lost) | (gap == 0), mean, (far - near) / gap)


@dataclass(frozen=True)
class GivenFunction(SmoothFunction):
    """f and f′ (and f″) as somebody else wrote them, with nothing known about their structure."""

    f: Callable[[Tensor], Tensor]
    df: Callable[[Tensor], Tensor]
    d2f: Callable[[Tensor], Tensor] | None = None

    def value(self, x: Tensor) -> Tensor:
        return self.f(x)

    def curvature(self, x: Tensor) -> Tensor:
        if self.d2f is None:
            raise ValueError("matrix_function: second derivatives need the argument d2f, the second derivative of f")
        return self.d2f(x)

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        """The difference quotient or the mean of f′ by a Gauss rule of three points, whichever has the smaller error.

        The quotient loses eps · |f|/gap to cancellation; the rule is off by less than it differs from one of two.
        """
        x, y = torch.broadcast_tensors(x, y)
        fx, fy, gap, centre = self.f(x), self.f(y), x - y, 0.5 * (x + y)

        def pair(node: float) -> Tensor:
            return self.df(centre - (0.5 * node) * gap) + self.df(centre + (0.5 * node) * gap)

        two = 0.5 * pair(3**-0.5)
        three = (5 * pair(0.6**0.5) + 8 * self.df(centre)) * (1 / 18)
        lost = torch.maximum(fx.abs(), fy.abs()) * torch.finfo(x.dtype).eps
        return torch.where(((three - two).abs() * gap.abs() <= lost) | (gap == 0), three, (fx - fy) / gap)


def where_tied(gap: Tensor, limit: Tensor, quotient: Callable[[Tensor], Tensor]) -> Tensor:
    """``quotient`` of the gap, and ``limit`` where the gap is zero, without dividing by it."""
    tied = gap == 0
    return torch.where(tied, limit, quotient(torch.where(tied, torch.ones_like(gap), gap)))
