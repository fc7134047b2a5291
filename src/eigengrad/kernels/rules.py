"""What stands for 1/(λ_j − λ_i) in each gradient rule, on vectors of pairs.

A rule has a number (``kernels.Rule``) and two parameters. Its eigenvalues are first made ready, matrix by matrix:
shifted and clamped for Taylor, with the matrix's own scale for the rules that are relative to it. Then a pair i < j is
a few operations: :func:`magnitude`.
"""

from __future__ import annotations

from typing import Any

from . import Rule
from .compiled import inner
from .vector_memory import load, store
from .vectors import absolute, larger, select, splat, width

__all__ = ["magnitude", "make_ready"]

_EXACT, _TAYLOR, _CLIP, _LORENTZIAN, _MASK = (rule.value for rule in Rule)


@inner
def make_ready(lanes: Any, rule: int, first: float, second: float, n: int, L: Any, p: Any) -> Any:
    """Fill ``p`` from the eigenvalues L, n vectors each, ascending, a matrix a lane. Returns the rule's scale.

    Taylor: p is clamped at ε or shifted, for ``first`` terms; ε is ``second``, or round-off if that is negative.
    Lorentzian: the scale is max|λ| times ``first``, the square root of its ε. Mask: the gap that counts as a tie,
    ``first`` times max|λ|, or round-off if that is negative.
    """
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    single = L.itemsize == 4
    tiny = 2.0**-126 if single else 2.0**-1022  # below which reciprocals overflow
    lowest = load(lanes, L, 0)
    size = larger(absolute(lowest), absolute(load(lanes, L, (n - 1) * W)))
    size = select(size > zero, size, one)
    roundoff = size * splat(lanes, n * (2.0**-23 if single else 2.0**-52))
    for j in range(n):
        store(p, j * W, load(lanes, L, j * W))
    if rule == _TAYLOR:
        floor = larger(splat(lanes, second) if second >= 0 else roundoff, splat(lanes, first * tiny))
        shifted = lowest < -roundoff
        for j in range(n):
            x = load(lanes, L, j * W)
            store(p, j * W, larger(select(shifted, (x - lowest) + floor, x), floor))
        return one
    if rule == _LORENTZIAN:
        return larger(size * splat(lanes, first), splat(lanes, tiny))
    if rule == _CLIP:
        return splat(lanes, max(1.0 / first, tiny))
    if rule == _MASK:
        return size * splat(lanes, first) if first >= 0 else roundoff
    return one


@inner
def magnitude(lanes: Any, rule: int, first: float, low: Any, high: Any, scale: Any) -> Any:
    """|R| for pairs of eigenvalues that were made ready, low ≤ high."""
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    if rule == _TAYLOR:
        return _geometric_sum(lanes, low / high, int(first)) / high
    gap = high - low
    if rule == _CLIP:
        return one / larger(gap, scale)
    if rule == _LORENTZIAN:
        x = gap / scale
        return x / (x * x + one) / scale
    if rule == _MASK:
        apart = gap > scale
        return select(apart, one / select(apart, gap, one), zero)
    return one / gap


@inner
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
