"""The reflectors of a Householder reduction applied to n vectors: 2 n³ flops.

The vectors stand in panels of 2W columns, which stay in the first-level cache. Reflectors come in pairs: while a pair
changes a row, the next pair takes its sums from it, so a row is loaded and stored once for two of them. With a = hᵀx
and b = gᵀx

    (1 − σ g gᵀ)(1 − τ h hᵀ) x = x − τa h − σ(b − τa gᵀh) g.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function
from ..simd.blocks import add_outer, zero_block
from ..simd.memory import broadcast, load, store
from ..simd.vectors import fma, reduce_sum, splat, width

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
        cross[k] = reduce_sum(total)
    for panel in range(0, (n + P - 1) // P * n * P, n * P):
        sums = zero_block(lanes, 4)  # a and b, two vectors each
        for i in range(top, n):
            sums = add_outer(lanes, sums, 2, panels, panel + i * P, zero, reflectors, top * stride + i, -stride)
        for k in range(top, 1, -2):
            factors = _factors(lanes, tau, cross, k, sums)
            here, following = k * stride, (k - 2) * stride
            sums = zero_block(lanes, 4)
            for i in range(k - 2, k):
                sums = add_outer(lanes, sums, 2, panels, panel + i * P, zero, reflectors, following + i, -stride)
            for begin in range(k, n, _BLOCK):
                end = min(begin + _BLOCK, n)
                even, odd = zero_block(lanes, 4), zero_block(lanes, 4)  # even and odd rows are summed apart, to overlap
                for i in range(begin, end, 2):
                    r = panel + i * P
                    _change(lanes, reflectors, here + i, stride, panels, r, factors)
                    even = add_outer(lanes, even, 2, panels, r, zero, reflectors, following + i, -stride)
                    if i + 1 < end:
                        _change(lanes, reflectors, here + i + 1, stride, panels, r + P, factors)
                        odd = add_outer(lanes, odd, 2, panels, r + P, zero, reflectors, following + i + 1, -stride)
                sums = (
                    sums[0] + (even[0] + odd[0]), sums[1] + (even[1] + odd[1]),
                    sums[2] + (even[2] + odd[2]), sums[3] + (even[3] + odd[3]),
                )  # fmt: skip
        factors = _factors(lanes, tau, cross, int(np.int64(1)), sums)  # a literal is a type of its own
        for i in range(1, n):
            _change(lanes, reflectors, stride + i, stride, panels, panel + i * P, factors)


@device_function
def _factors(lanes: Any, tau: Any, cross: Any, k: int, sums: Any) -> Any:
    """−τa and −σ(b − τa gᵀh) for reflectors k and k − 1, two vectors each."""
    s, t, c = splat(lanes, tau[k]), splat(lanes, tau[k - 1]), splat(lanes, cross[k])
    s0, s1 = -(sums[0] * s), -(sums[1] * s)
    return s0, s1, -(fma(c, s0, sums[2]) * t), -(fma(c, s1, sums[3]) * t)


@device_function
def _change(lanes: Any, reflectors: Any, place: int, stride: int, panels: Any, r: int, factors: Any) -> None:
    """Add the multiples of two reflectors to a row."""
    W = width(lanes)
    h, g = broadcast(lanes, reflectors, place), broadcast(lanes, reflectors, place - stride)
    store(panels, r, fma(g, factors[2], fma(h, factors[0], load(lanes, panels, r))))
    store(panels, r + W, fma(g, factors[3], fma(h, factors[1], load(lanes, panels, r + W))))
