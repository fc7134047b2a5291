"""What stands for 1/|λ_i − λ_j| in each gradient rule, on a block of pairs.

The formulas are those of ``gradients/``; a rule's two parameters are those of its ``kernel()``. They are constants of
the compiled kernel, because Triton passes numbers as float32, which is not enough for float64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import machine_epsilon

__all__ = ["RULES", "magnitudes", "measures"]

#: Numbers that stand for the rules in calls of kernels.
RULES = {"exact": 0, "taylor": 1, "clip": 2, "lorentzian": 3, "mask": 4, "saturate": 5}

_TAYLOR, _CLIP, _LORENTZIAN, _MASK, _SATURATE = (
    tl.constexpr(RULES[name]) for name in ("taylor", "clip", "lorentzian", "mask", "saturate")
)


@triton.jit
def measures(values, inside, n):
    """(lowest, size, spread) of eigenvalues: λ_min, max|λ|, which is 1 for zeros, and λ_max − λ_min.

    Where that is zero to round-off, the size takes its place. NaN stays NaN.
    """
    lowest = tl.min(tl.where(inside, values, float("inf")))
    highest = tl.max(tl.where(inside, values, float("-inf")))
    size = tl.maximum(tl.abs(lowest), tl.abs(highest))
    size = tl.where(size > 0, size, 1.0)
    difference = highest - lowest
    return lowest, size, tl.where(difference > size * (n * machine_epsilon(values.dtype)), difference, size)


@triton.jit
def magnitudes(
    values, gaps, lowest, size, spread, n, RULE: tl.constexpr, first: tl.constexpr, second: tl.constexpr
):  # fmt: skip
    """|R|, (N, N), of the rule, from eigenvalues (N,), the gaps of their pairs (N, N), and :func:`measures`."""
    dtype: tl.constexpr = values.dtype
    eps = machine_epsilon(dtype)
    tiny = tl.full((), 2.0**-1022 if dtype == tl.float64 else 2.0**-126, dtype)  # whose reciprocal is finite
    parameter = tl.full((), first, dtype)
    if RULE == _TAYLOR:
        roundoff = size * (n * eps)
        floor = roundoff if second < 0 else tl.full((), second, dtype)
        floor = tl.maximum(floor, parameter * tiny)
        p = tl.maximum(tl.where(lowest < -roundoff, (values - lowest) + floor, values), floor)
        larger = tl.maximum(p[:, None], p[None, :])
        return _geometric_sum(tl.minimum(p[:, None], p[None, :]) / larger, first) / larger
    elif RULE == _CLIP:
        return 1.0 / tl.maximum(gaps, tl.maximum(tl.full((), 1.0 / first, dtype), tiny))
    elif RULE == _LORENTZIAN:
        width = tl.maximum(spread * parameter, tiny)
        x = gaps / width
        return x / (x * x + 1.0) / width
    elif RULE == _MASK:
        apart = gaps > (size * (n * eps) if first < 0 else spread * parameter)
        return tl.where(apart, 1.0 / tl.where(apart, gaps, 1.0), 0.0)
    elif RULE == _SATURATE:
        tau = tl.maximum(tl.maximum(spread * parameter, size * eps), tiny)
        apart = gaps > 0
        return tl.where(apart, _saturating(gaps / tau) / tl.where(apart, gaps, 1.0), 1.0 / tau)
    else:
        return 1.0 / gaps


@triton.jit
def _saturating(x):
    """1 − e^(−x) for x ≥ 0: twelve terms of the series at x/128, then g(2x) = g(x) (2 − g(x)): nothing cancels."""
    y = tl.minimum(x, 40.0) * (1.0 / 128.0)  # 1 − e^(−40) is 1 in float64
    g = tl.full(x.shape, 1.0, x.dtype)
    for k in tl.static_range(12, 1, -1):
        g = 1.0 - g * y * (1.0 / k)
    g = g * y
    for _ in tl.static_range(7):
        g = g * (2.0 - g)
    return g


@triton.jit
def _geometric_sum(q, terms: tl.constexpr):
    """1 + q + … + q^(terms−1) by doubling, S_2k = S_k (1 + q^k) and S_k+1 = 1 + q S_k: only positive terms add up."""
    total = tl.full(q.shape, 1.0, q.dtype)
    power = q
    for digit in tl.static_range(53, -1, -1):
        if terms // 2**digit > 1:
            total = total * (1.0 + power)
            power = power * power
            if terms // 2**digit % 2 == 1:
                total = 1.0 + q * total
                power = power * q
    return total
