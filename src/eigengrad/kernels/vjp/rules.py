"""What stands for 1/(λ_j − λ_i) in each gradient rule, on vectors of pairs.

A rule has a number (:mod:`.codes`) and two parameters. Its eigenvalues are first prepared, matrix by matrix:
shifted and clamped for Taylor, with the matrix's own scale for the rules that are relative to it. Then a pair i < j is
a few operations: :func:`weigh`. It also adds up the squared norms of the exact gradient and of what the rule removes of
it, in units of 1/spread, from which :func:`much_removed` says whether that is more than half.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from ...gradients.lift import EXPONENTS
from ...gradients.observation import TOGETHER
from ..runtime.compile import device_function, inline
from ..simd.memory import load, store
from ..simd.vectors import absolute, any_lane, fma, maximum, select, splat, width
from .codes import INCOMPLETE, REMOVED, RULES, TINY

__all__ = ["Rule", "eps_of", "much_removed", "prepare", "size_and_spread", "tiny", "weigh"]

_TAYLOR, _CLIP, _LORENTZIAN, _MASK, _SATURATE = (
    RULES[name] for name in ("taylor", "clip", "lorentzian", "mask", "saturate")
)
_SMALL, _SMALL_DOUBLE = (2.0 ** -EXPONENTS[dtype] for dtype in (torch.float32, torch.float64))
_REACH = 40.0  # gaps of so many τ: 1 − e^(−40) is 1 in float64


class Rule(NamedTuple):
    """A gradient rule, as kernels know it."""

    code: int  #: one of :data:`.codes.RULES`
    #: Taylor's number of terms, Clip's threshold, the root of Lorentzian's ε, the relative tolerance of Saturate and
    #: of Mask, where a negative one is round-off.
    parameter: float
    epsilon: float  #: Taylor's ε, at which eigenvalues are clamped; round-off if negative


@device_function
def size_and_spread(lanes: Any, n: int, L: Any) -> Any:
    """(size, spread) of the eigenvalues L, n vectors, ascending: max|λ|, which is 1 for zeros, and λ_max − λ_min.

    Where that is zero to round-off, the size takes its place.
    """
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    lowest, highest = load(lanes, L, 0), load(lanes, L, (n - 1) * W)
    size = maximum(absolute(lowest), absolute(highest))
    size = select(size > zero, size, one)
    difference = highest - lowest
    return size, select(difference > size * splat(lanes, n * eps_of(L)), difference, size)


@device_function
def tiny(lanes: Any, n: int, L: Any) -> int:
    """TINY if all eigenvalues of some matrix, n vectors, ascending, are below the limit of ``gradients.lift``."""
    limit = splat(lanes, _SMALL if L.itemsize == 4 else _SMALL_DOUBLE)
    size = maximum(absolute(load(lanes, L, 0)), absolute(load(lanes, L, (n - 1) * width(lanes))))
    return TINY if any_lane(size < limit) else 0


@device_function
def eps_of(L: Any) -> float:
    """The distance from 1 to the next number of the type of an array."""
    return 2.0**-23 if L.itemsize == 4 else 2.0**-52


@device_function
def prepare(lanes: Any, rule: Rule, n: int, L: Any, p: Any) -> Any:
    """Fill ``p`` from the eigenvalues L.

    Args:
        rule: by which the eigenvalues are shifted and clamped, and which decides about the scale.
        L, p: n vectors each, ascending, a matrix a lane.

    Returns:
        (scale, reach): what gaps are measured against (τ for Saturate, the gap that counts as a tie for Mask), and for
        Saturate the gap from which on 1/gap is exact.
    """
    W, one = width(lanes), splat(lanes, 1.0)
    tiny = 2.0**-126 if L.itemsize == 4 else 2.0**-1022  # below which reciprocals overflow
    lowest = load(lanes, L, 0)
    size, spread = size_and_spread(lanes, n, L)
    roundoff = size * splat(lanes, n * eps_of(L))
    for j in range(n):
        store(p, j * W, load(lanes, L, j * W))
    if rule.code == _SATURATE:
        least = maximum(size * splat(lanes, eps_of(L)), splat(lanes, tiny))
        tau = maximum(spread * splat(lanes, rule.parameter), least)
        return tau, tau * splat(lanes, _REACH)
    if rule.code == _TAYLOR:
        least = splat(lanes, rule.epsilon) if rule.epsilon >= 0 else roundoff
        floor = maximum(least, splat(lanes, rule.parameter * tiny))
        shifted = lowest < -roundoff
        for j in range(n):
            x = load(lanes, L, j * W)
            store(p, j * W, maximum(select(shifted, (x - lowest) + floor, x), floor))
        return one, one
    if rule.code == _LORENTZIAN:
        return maximum(spread * splat(lanes, rule.parameter), splat(lanes, tiny)), one
    if rule.code == _CLIP:
        return splat(lanes, max(1.0 / rule.parameter, tiny)), one
    if rule.code == _MASK:
        return (spread * splat(lanes, rule.parameter) if rule.parameter >= 0 else roundoff), one
    return one, one


@inline
def weigh(
    lanes: Any, rule: Rule, eps: float, n: int, above: Any, below: Any, sizes: Any, slopes: Any, low: Any, high: Any,
    gap: Any, scale: Any, reach: Any, size: Any, spread: Any, exact: Any, removed: Any,
) -> Any:  # fmt: skip
    """½ (x_ij − x_ji) times |R| for pairs of prepared eigenvalues, low ≤ high, that were ``gap`` apart.

    No argument is an array: numba would count references to it for each pair.

    Args:
        eps: of the numbers' type, from :func:`eps_of`.
        above, below: x_ij and x_ji.
        sizes: the sum of the largest entries of the two columns. Half a difference that is no more than their round-off
            counts as zero; see ``gradients.rule.skew_part``.
        slopes: |gλ_i| + |gλ_j|.
        scale, reach, size, spread: from :func:`prepare` and :func:`size_and_spread`.
        exact, removed: squared norms of the exact gradient and of what was removed, so far.

    Returns:
        It, the squared norms with this pair included, and INCOMPLETE or 0.
    """
    status, t = 0, splat(lanes, 0.5) * (above - below)
    noise = absolute(t) <= sizes * splat(lanes, math.sqrt(n) * eps)  # false for NaN, which stays
    t = select(noise, splat(lanes, 0.0), t)
    if rule.code == _SATURATE and not any_lane(gap < reach):
        t = t / gap
        exact = fma(t * spread, t * spread, exact)
    else:
        t, exact, removed, status = _weigh_close(
            lanes, rule, eps, n, t, above + below, sizes, slopes, low, high, gap, scale, size, spread, exact, removed
        )
    return t, exact, removed, status


@device_function
def _weigh_close(
    lanes: Any, rule: Rule, eps: float, n: int, t: Any, total: Any, sizes: Any, slopes: Any, low: Any, high: Any,
    gap: Any, scale: Any, size: Any, spread: Any, exact: Any, removed: Any,
) -> Any:  # fmt: skip
    """:func:`weigh` for pairs that a rule changes; ``total`` is x_ij + x_ji.

    INCOMPLETE is for equal eigenvalues that enter a loss together with their vectors; the reason is in
    ``gradients.observation.is_incomplete``.
    """
    zero = splat(lanes, 0.0)
    tied = (gap <= size * splat(lanes, 16 * n * eps)) & (absolute(t) <= zero)
    together = absolute(total) > sizes * splat(lanes, TOGETHER)
    status = INCOMPLETE if any_lane(tied & together & (slopes > zero)) else 0
    R = _magnitude(lanes, rule, low, high, scale)
    inverse = splat(lanes, 1.0) / maximum(gap, size * splat(lanes, eps))
    whole, part = t * (spread * inverse), t * (spread * maximum(inverse - R, zero))
    return t * R, fma(whole, whole, exact), fma(part, part, removed), status


@device_function
def much_removed(lanes: Any, exact: Any, removed: Any) -> int:
    """REMOVED if more than half of a norm was removed, from the squares of both, else 0."""
    return REMOVED if any_lane(removed > exact * splat(lanes, 0.25)) else 0


@device_function
def _magnitude(lanes: Any, rule: Rule, low: Any, high: Any, scale: Any) -> Any:
    """|R| for pairs of prepared eigenvalues, low ≤ high."""
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    if rule.code == _TAYLOR:
        return _geometric_sum(lanes, low / high, int(rule.parameter)) / high
    gap = high - low
    if rule.code == _SATURATE:
        apart = gap > zero
        return select(apart, _saturating(lanes, gap / scale) / select(apart, gap, one), one / scale)
    if rule.code == _CLIP:
        return one / maximum(gap, scale)
    if rule.code == _LORENTZIAN:
        x = gap / scale
        return x / (x * x + one) / scale
    if rule.code == _MASK:
        apart = gap > scale
        return select(apart, one / select(apart, gap, one), zero)
    return one / gap


@device_function
def _saturating(lanes: Any, x: Any) -> Any:
    """1 − e^(−x) for x ≥ 0: twelve terms of the series at x/128, then g(2x) = g(x) (2 − g(x)): nothing cancels."""
    two = splat(lanes, 2.0)
    reach = splat(lanes, _REACH)
    y = select(x < reach, x, reach) * splat(lanes, 1.0 / 128.0)
    g = splat(lanes, 1.0)
    for k in range(12, 1, -1):
        g = splat(lanes, 1.0) - g * y * splat(lanes, 1.0 / k)
    g = g * y
    for _ in range(7):
        g = g * (two - g)
    return g


@device_function
def _geometric_sum(lanes: Any, q: Any, terms: int) -> Any:
    """1 + q + … + q^(terms−1) by doubling, S_2k = S_k (1 + q^k) and S_k+1 = 1 + q S_k: only positive terms add up."""
    one = splat(lanes, 1.0)
    if terms == 10:  # the default degree
        q2 = q * q
        q4 = q2 * q2
        return (one + q) * (one + (q2 + q4) * (one + q4))
    digits = 0
    while terms >> (digits + 1):
        digits += 1
    total, power = one, q
    for digit in range(digits - 1, -1, -1):
        total = total * (one + power)
        power = power * power
        if (terms >> digit) & 1:
            total = one + q * total
            power = power * q
    return total
