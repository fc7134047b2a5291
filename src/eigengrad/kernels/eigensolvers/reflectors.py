"""The reflectors of a Householder reduction applied to n vectors: 2 n³ flops.

The vectors stand in panels of 2W columns, which stay in the first-level cache. Reflectors come in pairs: while a pair
changes a row, the next pair takes its sums from it, so a row is loaded and stored once for two of them. With a = hᵀx
and b = gᵀx

    (1 − σ g gᵀ)(1 − τ h hᵀ) x = x − τa h − σ(b − τa gᵀh) g.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function
from ..simd.memory import broadcast, load, store
from ..simd.vectors import fma, horizontal_sum, splat, width

__all__ = ["reflect"]

_BLOCK = 32  # rows summed at a time: errors of long sums grow with their blocks, not with all their terms


@device_function
def reflect(lanes: Any, n: int, stride: int, reflectors: Any, tau: Any, cross: Any, panels: Any) -> None:
    """H_0 H_1 … H_(n−3) X in place; row i of X's columns c·2W to (c + 1)·2W is at ``panels[(c·n + i)·2W]``.

    ``cross`` is scratch, for the product gᵀh of each pair.
    """
    if n < 3:
        return
    W = width(lanes)
    P = 2 * W
    zero = splat(lanes, 0.0)
    top = (n - 3) | 1  # the pairs end with 1 and 0; the first may begin with a reflector that does nothing
    if top > n - 3:
        tau[top] = 0
        for j in range(0, stride, W):
            store(reflectors, top * stride + j, zero)
    for k in range(top, 0, -2):
        total = zero
        for j in range(k // W * W, stride, W):
            total = fma(load(lanes, reflectors, k * stride + j), load(lanes, reflectors, (k - 1) * stride + j), total)
        cross[k] = horizontal_sum(total)
    for panel in range(0, (n + P - 1) // P * n * P, n * P):
        a0, a1, b0, b1 = zero, zero, zero, zero
        for i in range(top, n):
            a0, a1, b0, b1 = _sum(lanes, reflectors, top * stride + i, stride, panels, panel + i * P, a0, a1, b0, b1)
        for k in range(top, 1, -2):
            s0, s1, t0, t1 = _factors(lanes, tau, cross, k, a0, a1, b0, b1)
            here, following = k * stride, (k - 2) * stride
            a0, a1, b0, b1 = zero, zero, zero, zero
            for i in range(k - 2, k):
                a0, a1, b0, b1 = _sum(lanes, reflectors, following + i, stride, panels, panel + i * P, a0, a1, b0, b1)
            for begin in range(k, n, _BLOCK):
                end = min(begin + _BLOCK, n)
                c0, c1, d0, d1, e0, e1, f0, f1 = zero, zero, zero, zero, zero, zero, zero, zero
                i = begin
                while i + 2 <= end:  # even and odd rows are summed apart, to overlap
                    r = panel + i * P
                    _change(lanes, reflectors, here + i, stride, panels, r, s0, s1, t0, t1)
                    c0, c1, d0, d1 = _sum(lanes, reflectors, following + i, stride, panels, r, c0, c1, d0, d1)
                    _change(lanes, reflectors, here + i + 1, stride, panels, r + P, s0, s1, t0, t1)
                    e0, e1, f0, f1 = _sum(lanes, reflectors, following + i + 1, stride, panels, r + P, e0, e1, f0, f1)
                    i += 2
                if i < end:
                    r = panel + i * P
                    _change(lanes, reflectors, here + i, stride, panels, r, s0, s1, t0, t1)
                    c0, c1, d0, d1 = _sum(lanes, reflectors, following + i, stride, panels, r, c0, c1, d0, d1)
                a0, a1, b0, b1 = a0 + (c0 + e0), a1 + (c1 + e1), b0 + (d0 + f0), b1 + (d1 + f1)
        s0, s1, t0, t1 = _factors(lanes, tau, cross, 1, a0, a1, b0, b1)
        for i in range(1, n):
            _change(lanes, reflectors, stride + i, stride, panels, panel + i * P, s0, s1, t0, t1)


@device_function
def _factors(lanes: Any, tau: Any, cross: Any, k: int, a0: Any, a1: Any, b0: Any, b1: Any) -> Any:
    """−τa and −σ(b − τa gᵀh) for reflectors k and k − 1."""
    s, t, c = splat(lanes, tau[k]), splat(lanes, tau[k - 1]), splat(lanes, cross[k])
    s0, s1 = -(a0 * s), -(a1 * s)
    return s0, s1, -(fma(c, s0, b0) * t), -(fma(c, s1, b1) * t)


@device_function
def _sum(
    lanes: Any, reflectors: Any, place: int, stride: int, panels: Any, r: int, a0: Any, a1: Any, b0: Any, b1: Any
) -> Any:
    """Add a row, times its entries in two reflectors, to their sums."""
    h, g = broadcast(lanes, reflectors, place), broadcast(lanes, reflectors, place - stride)
    x0, x1 = load(lanes, panels, r), load(lanes, panels, r + width(lanes))
    return fma(h, x0, a0), fma(h, x1, a1), fma(g, x0, b0), fma(g, x1, b1)


@device_function
def _change(
    lanes: Any, reflectors: Any, place: int, stride: int, panels: Any, r: int, s0: Any, s1: Any, t0: Any, t1: Any
) -> None:
    """Add the multiples of two reflectors to a row."""
    W = width(lanes)
    h, g = broadcast(lanes, reflectors, place), broadcast(lanes, reflectors, place - stride)
    store(panels, r, fma(g, t0, fma(h, s0, load(lanes, panels, r))))
    store(panels, r + W, fma(g, t1, fma(h, s1, load(lanes, panels, r + W))))
