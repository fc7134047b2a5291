"""Divided differences of scalar functions: what the derivatives of a matrix function are made of.

For S = V f(λ) Vᴴ the derivative needs f[x, y] = (f(x) − f(y))/(x − y), finite at x = y, and the second derivative
f[x, y, z] = (f[x, y] − f[y, z])/(x − z). Written like this they cancel when the points are close. A
:class:`ScalarFunction` knows forms that do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["GivenFunction", "ScalarFunction", "where_tied"]


class ScalarFunction(ABC):
    """A real function of a real variable with its first and second divided differences.

    Instances hold parameters only and compare by value.
    """

    #: What the eigenvalues must be: "real", "non-negative" or "positive".
    domain = "real"

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """f(x), elementwise."""

    @abstractmethod
    def first(self, x: Tensor, y: Tensor) -> Tensor:
        """f[x, y] for tensors that broadcast, f′(x) where x = y; accurate to round-off for every gap."""

    @abstractmethod
    def curvature(self, x: Tensor) -> Tensor:
        """f″(x), elementwise."""

    def close(self, x: Tensor, y: Tensor, tolerance: float) -> Tensor:
        """Whether f′ changes by less than ``tolerance``, relatively, between x and y (f′ is taken to be monotonic)."""
        dx, dy = self.first(x, x), self.first(y, y)
        return (dx - dy).abs() <= tolerance * torch.maximum(dx.abs(), dy.abs())

    def second(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """f[x, y, z] for tensors that broadcast, ½ f″(x) where all are equal.

        The recursion over the two points that are farthest apart, and ½ f″ at the centre of gravity (exact up to the
        square of the gap) where even those are close. The limit between the two, eps^(1/3), balances what
        the one loses to cancellation and the other to truncation: about 1e-10 in float64, 1e-5 in float32.
        """
        points = torch.stack(torch.broadcast_tensors(x, y, z)).sort(0).values
        low, middle, high = points
        close = self.close(low, high, torch.finfo(points.dtype).eps ** (1 / 3))
        gap = torch.where(close, torch.ones_like(low), high - low)
        apart = (self.first(middle, high) - self.first(low, middle)) / gap
        return torch.where(close, 0.5 * self.curvature(points.mean(0)), apart)


class GivenFunction(ScalarFunction):
    """f and f′ (and f″) as somebody else wrote them, with nothing known about their structure.

    f[x, y] is the difference quotient, and the integral of f′ by a two-point Gauss rule where the points are so close
    that f′ hardly changes: accurate to about 1e-12 in float64, 1e-5 in float32.
    """

    def __init__(
        self,
        f: Callable[[Tensor], Tensor],
        df: Callable[[Tensor], Tensor],
        d2f: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.f, self.df, self.d2f = f, df, d2f

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, GivenFunction) and (self.f, self.df, self.d2f) == (other.f, other.df, other.d2f)

    def __hash__(self) -> int:
        return hash((self.f, self.df, self.d2f))

    def value(self, x: Tensor) -> Tensor:
        return self.f(x)

    def curvature(self, x: Tensor) -> Tensor:
        if self.d2f is None:
            raise ValueError("matrix_function: second derivatives need the argument d2f, the second derivative of f")
        return self.d2f(x)

    def close(self, x: Tensor, y: Tensor, tolerance: float) -> Tensor:
        # f′ need not be monotonic: equal slopes at distant points do not mean a constant slope between them.
        dx, dy = self.df(x), self.df(y)
        flat = (dx - dy).abs() <= tolerance * torch.maximum(dx.abs(), dy.abs())
        near = (x - y).abs() <= 0.01 * torch.maximum(x.abs(), y.abs()).amax((-2, -1), keepdim=True)
        return flat & near

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = torch.broadcast_tensors(x, y)
        close = self.close(x, y, torch.finfo(x.dtype).eps ** (1 / 5)) | (x == y)
        gap = torch.where(close, torch.ones_like(x), x - y)
        centre, offset = 0.5 * (x + y), (x - y) * (0.5 / 3**0.5)
        integral = 0.5 * (self.df(centre - offset) + self.df(centre + offset))
        return torch.where(close, integral, (self.f(x) - self.f(y)) / gap)


def where_tied(gap: Tensor, limit: Tensor, quotient: Callable[[Tensor], Tensor]) -> Tensor:
    """``quotient`` of the gap, and ``limit`` where the gap is zero, without dividing by it."""
    tied = gap == 0
    return torch.where(tied, limit, quotient(torch.where(tied, torch.ones_like(gap), gap)))
