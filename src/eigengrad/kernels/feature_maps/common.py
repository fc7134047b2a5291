"""What the ways through feature maps share; see :mod:`.backends`.

A map (N, C, *spatial) has m = N·P points, P of them a sample, and C channels in groups of d. In memory its channels are
either slow (NCHW: a row of P numbers for each sample and channel) or fast (channels_last: C numbers for each point).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE
from ..simd.arrays import array_at, doubles_at, rounded, zeros
from ..simd.vectors import lanes_of

__all__ = ["begin_split", "centres_at", "maps_at", "partial_sums_at", "partial_sums_size", "pivots"]

_PIVOT_POINTS = 16


@kernel
def pivots(number: Any, x: int, points: int, C: int, P: int, fast: int, centre: int, work: int) -> int:
    """About the mean of each channel, from a few points, into a float64 array.

    One-pass moments of numbers far from zero cancel; relative to one of their own they do not. The least and the
    greatest of the points are left out, because a single one may lie far off.
    """
    lanes = lanes_of(number)
    numbers, middle = array_at(lanes, x, points * C), doubles_at(centre, C)
    count = min(points, _PIVOT_POINTS)
    places = np.empty(count, np.int64)
    for k in range(count):
        q = k * points // count
        places[k] = q * C if fast else q // P * C * P + q % P
    for c in range(C):
        total, least, greatest = 0.0, np.inf, -np.inf
        for k in range(count):
            x_k = numbers[places[k] + (c if fast else c * P)]
            total, least, greatest = total + x_k, min(least, x_k), max(greatest, x_k)
        middle[c] = numbers.dtype.type((total - least - greatest) / (count - 2) if count > 2 else total / count)
    return DONE


@device_function
def maps_at(lanes: Any, one: int, two: int, count: int) -> Any:
    """Two maps of ``count`` numbers."""
    return array_at(lanes, one, count), array_at(lanes, two, count)


@device_function
def centres_at(lanes: Any, centre: int, C: int) -> Any:
    """What is subtracted from a map, a mean in double precision rounded to the type of the lanes; and zeros."""
    rounded_mean, mean = zeros(lanes, C), doubles_at(centre, C)
    for c in range(C):
        rounded_mean[c] = mean[c]
    return rounded_mean, zeros(lanes, C)


@device_function
def partial_sums_size(d: int) -> int:
    """How many partial sums a group has.

    16 for every 4×4 block of products, by rows of blocks, then 16 for every 4 channels, the first 4 of them their sums.
    """
    blocks = rounded(d, 4) // 4
    return (blocks + 1) * blocks * 16


@device_function
def partial_sums_at(partial_sums: int, splits: int, C: int, d: int) -> Any:
    """The partial sums of all splits, a row a split."""
    return doubles_at(partial_sums, splits * (C // d) * partial_sums_size(d))


@device_function
def begin_split(sums: Any, split: int, splits: int, points: int, length: int) -> Any:
    """Where the partial sums of a split begin, which are zero now, and from which to which point it goes."""
    size, tiles = sums.size // splits, rounded(points, length) // length
    for i in range(split * size, (split + 1) * size):
        sums[i] = 0
    return split * size, tiles * split // splits * length, min(points, tiles * (split + 1) // splits * length)
