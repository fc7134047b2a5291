"""The eigenvalues and eigenvectors of diag(d) + ρ z zᵀ, with d ascending, ρ > 0: what merges two halves of a problem.

The eigenvalues are the roots of f(λ) = 1/ρ + Σ z_i²/(d_i − λ), one between each two poles and one beyond the last. Each
is found as an offset μ from the nearer of its two poles, because only so the differences d_i − λ_j, of which the
eigenvectors z_i/(d_i − λ_j) are made, keep all their digits. W roots are sought at once, one a lane. A step replaces
the poles on the left and on the right of the root by one pole each with the same value and slope (the "middle way" of
Li); a bracket catches the steps that leave it. Five or six steps of O(n) suffice for a root.

Then z is replaced by the ẑ for which the computed roots are exact (Gu and Eisenstat): eigenvectors made from it are
orthogonal to working precision however close the eigenvalues are.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function
from ..simd.memory import broadcast, load, store
from ..simd.vectors import (
    absolute,
    any_lane,
    copy_sign,
    demote,
    fma,
    iota,
    maximum,
    reciprocal,
    reciprocal_for,
    select,
    splat,
    sqrt,
    width,
)

__all__ = ["roots", "unit_vectors"]

_STEPS = 60


@device_function
def roots(
    lanes: Any, thin: Any, k: int, d: Any, squares: Any, rho: float, nearest: Any, offset: Any, epsilon: float
) -> None:
    """For each of the k roots the pole it is an offset from, ``nearest`` (its value), and the ``offset``.

    ``thin`` are lanes of the number type that the result is for: more digits than it has are of no use.

    The search ends with a step of relative size ε, after which the error is about ε², or where f is noise of that size.
    ``d`` has W + 1 spare entries at its end, which are overwritten.
    """
    W = width(lanes)
    zero, half, two = splat(lanes, 0.0), splat(lanes, 0.5), splat(lanes, 2.0)
    constant = splat(lanes, 1.0 / rho)
    tolerance, noise = splat(lanes, epsilon), splat(lanes, epsilon * epsilon)
    total = 0.0
    for i in range(k):
        total += squares[i]
    reach = rho * total  # the last root is at most so far from the last pole
    for i in range(W + 1):
        d[k + i] = d[k - 1] + reach * (1 + i)
    for j in range(0, k, W):
        left, right = load(lanes, d, j), load(lanes, d, j + 1)
        number = splat(lanes, 1.0 * j) + iota(lanes)
        last = number >= splat(lanes, k - 1.0)
        gap = right - left
        # Which half of the interval: the sign of f at its middle. Beyond the last pole there is only the left one.
        middle = half * gap
        value, slope_left, slope_right, size = _evaluate(lanes, thin, k, j, d, squares, left, middle, constant)
        from_left = (value >= zero) | last
        origin, mu = select(from_left, left, right), select(from_left, middle, -middle)
        low, high = select(from_left, zero, -gap), select(from_left, gap, zero)
        high = select(last, gap + gap, high)  # the last root may lie at its bound itself, as it does for k = 1
        pole_left, pole_right = left - origin, right - origin
        searching = number < splat(lanes, 1.0 * k)
        for _ in range(_STEPS):
            low, high = select(value < zero, mu, low), select(value < zero, high, mu)
            to_left, to_right = pole_left - mu, pole_right - mu
            both = to_left * to_right
            a = fma(to_left + to_right, value, -(both * (slope_left + slope_right)))
            b = both * value
            c = value - fma(to_left, slope_left, to_right * slope_right)
            spread = sqrt(maximum(fma(a, a, -(splat(lanes, 4.0) * b * c)), zero))
            above, below = select(a <= zero, a - spread, two * b), select(a <= zero, two * c, a + spread)
            # Beyond the last pole: one pole and a constant.
            single = value - to_left * slope_left
            above, below = select(last, to_left * value, above), select(last, single, below)
            new = mu + above / below
            inside = (new > low) & (new < high)
            new = select(inside, new, half * (low + high))
            searching = searching & (absolute(value) > noise * size)
            change = absolute(new - mu)
            mu = select(searching, new, mu)
            searching = searching & (change > tolerance * absolute(mu))
            if not any_lane(searching):
                break
            value, slope_left, slope_right, size = _evaluate(lanes, thin, k, j, d, squares, origin, mu, constant)
        store(nearest, j, origin)
        store(offset, j, mu)


@device_function
def _evaluate(lanes: Any, thin: Any, k: int, j: int, d: Any, squares: Any, origin: Any, mu: Any, constant: Any) -> Any:
    """f at origin + μ for the roots j to j + W, the slopes of its parts from left and right poles, and Σ |terms|."""
    W = width(lanes)
    zero = splat(lanes, 0.0)
    left, slope_left = zero, zero
    for i in range(j + 1):
        r = reciprocal_for(thin, (broadcast(lanes, d, i) - origin) - mu)
        t = broadcast(lanes, squares, i) * r
        left, slope_left = left + t, fma(t, r, slope_left)
    right, slope_right = zero, zero
    root_number = splat(lanes, 1.0 * j) + iota(lanes)
    for i in range(j + 1, min(j + W, k)):
        r = reciprocal_for(thin, (broadcast(lanes, d, i) - origin) - mu)
        t = broadcast(lanes, squares, i) * r
        is_left = splat(lanes, 1.0 * i) <= root_number
        left, right = left + select(is_left, t, zero), right + select(is_left, zero, t)
        slope_left = slope_left + select(is_left, t * r, zero)
        slope_right = slope_right + select(is_left, zero, t * r)
    for i in range(j + W, k):
        r = reciprocal_for(thin, (broadcast(lanes, d, i) - origin) - mu)
        t = broadcast(lanes, squares, i) * r
        right, slope_right = right + t, fma(t, r, slope_right)
    return constant + left + right, slope_left, slope_right, constant + right - left


@device_function
def unit_vectors(
    lanes: Any, thin: Any, k: int, d: Any, z: Any, rho: float, nearest: Any, offset: Any,
    rows: Any, U: Any, height: int, panel: int, column: Any,
) -> None:  # fmt: skip
    """The k eigenvectors of unit length as columns of U: entry i goes to row ``rows[i]``.

    U is stored in panels of ``span`` columns and ``height`` rows, in the number type of ``thin``; z becomes ẑ;
    ``column`` is scratch for k·W numbers.
    """
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    for i in range(0, k, W):  # ẑ_i² = Π_j (λ_j − d_i) / (ρ Π_{j≠i} (d_j − d_i)), a pole a lane
        pole, number = load(lanes, d, i), splat(lanes, 1.0 * i) + iota(lanes)
        ratio = splat(lanes, 1.0 / rho)
        for j in range(k):
            above = (broadcast(lanes, nearest, j) - pole) + broadcast(lanes, offset, j)
            below = broadcast(lanes, d, j) - pole
            if i <= j < i + W:
                here = splat(lanes, 1.0 * j)
                below = select((number >= here) & (number <= here), one, below)
            ratio = ratio * (above * reciprocal(below))
        store(z, i, copy_sign(sqrt(absolute(ratio)), load(lanes, z, i)))
    for j in range(0, k, W):
        origin, mu, length2 = load(lanes, nearest, j), load(lanes, offset, j), zero
        for i in range(k):
            u = broadcast(lanes, z, i) * reciprocal((broadcast(lanes, d, i) - origin) - mu)
            store(column, i * W, u)
            length2 = fma(u, u, length2)
        scale = one / sqrt(length2)
        place = j // panel * height * panel + j % panel
        for i in range(k):
            store(U, place + rows[i] * panel, demote(thin, load(lanes, column, i * W) * scale))
