"""Sums over the points of feature maps: Σ l and Σ l rᵀ within each group of channels, for two maps or one with itself.

A slab of points is taken tile by tile. Within a tile 4×4 products at a time are summed in registers: 8 loads for 16
fused operations, over rows of some hundred points; then the lanes are added up and go to the totals, in double
precision. Half of the products are left out where both maps are one. For m points of C channels in groups of d that is
2·m·C·d flops (m·C·d for one map) on top of reading the maps once: bound by memory up to d ≈ 32, by arithmetic beyond.

How points are cut into tiles and slabs depends on the shape alone, so sums do not depend on the number of threads.

The kernels take addresses, and as their first argument a number of the maps' type (see :mod:`.arrays`); shapes are as
in :mod:`.tiles`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import array_at, doubles_at, rounded, zeros
from .channel_vectors import channels_are_vectors, new_rows, sum_vectors
from .compiled import compiled, inner
from .parts import first_part, next_part
from .rotated_lanes import sum_in_lanes, total_places, within_lanes
from .tiles import STRAIGHT, centre_of, channel_places, fetch_rows, gather, new_tile, worth_fetching
from .vector_blocks import add_lane_sums, add_products, add_rows, add_shifted_products, block_of_rows, zero_block
from .vectors import lanes_of, width

__all__ = ["moments", "pivots", "totals_size"]

_PIVOT_POINTS = 16


@compiled
def pivots(number: Any, x: int, points: int, C: int, P: int, fast: int, centre: int) -> None:
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


@inner
def totals_size(d: int) -> int:
    """How many totals a group has.

    16 for every 4×4 block of products, by rows of blocks, then 16 for every 4 channels, the first 4 of them their sums.
    """
    blocks = rounded(d, 4) // 4
    return (blocks + 1) * blocks * 16


@compiled
def moments(
    number: Any, left: int, right: int, centre: int, points: int, C: int, P: int, fast: int, d: int, totals: int,
    first: int, last: int, slabs: int, length: int, span: int, ledger: int,
) -> int:  # fmt: skip
    """The totals of the slabs ``first`` to ``last`` of all ``slabs``, each a share of the tiles; see :mod:`.parts`.

    The right map is taken less its centre. For one map with itself both addresses are the same, and of its products
    only the blocks on and above the diagonal are summed. A tile has ``length`` points of ``span`` groups.
    """
    begin, end = first_part(ledger, first, last)
    if begin >= end:
        return 0
    lanes, shape, itself = lanes_of(number), (C, P, fast), left == right
    maps = array_at(lanes, left, points * C), array_at(lanes, right, points * C)
    centres = centre_of(lanes, doubles_at(centre, C)), zeros(lanes, C)
    rows, stride, size = rounded(d, 4), length + width(lanes), totals_size(d)
    half = (span * rows + 1) * stride  # of the tile: first the left map's rows, then the right one's
    tile = new_tile(lanes, span * rows, d, stride, 1 if itself else 2)
    places = channel_places(lanes, span * d, d, rows, stride)
    straight = not fast and P % width(lanes) == 0 and d == rows and d <= STRAIGHT
    lanewise = within_lanes(lanes, d, C, points, fast)
    within = total_places(lanes, d if lanewise else 4, size)
    vectorwise = channels_are_vectors(lanes, d, fast) and not lanewise
    by_points = new_rows(lanes, length if vectorwise else 0, span * d, 1 if itself else 2)
    sums = doubles_at(totals, slabs * (C // d) * size)
    tiles = rounded(points, length) // length
    far = worth_fetching(maps[0], fast)
    while begin < end:
        for slab in range(begin, end):
            start = slab * (C // d) * size
            for i in range(start, start + C // d * size):
                sums[i] = 0
            low, high = tiles * slab // slabs * length, min(points, tiles * (slab + 1) // slabs * length)
            for point in range(low, high, length):
                count = min(length, high - point)
                if lanewise:
                    left_centre = centres[0] if itself else centres[1]
                    sum_in_lanes(lanes, maps, left_centre, centres[0], C, d, point, count, sums, start, size, within)
                    continue
                if vectorwise:
                    sum_vectors(lanes, maps, itself, centres, C, d, point, count, span, sums, start, size, by_points)
                    continue
                for group in range(0, C // d, span):
                    groups = min(span, C // d - group)
                    if straight:
                        here = start + group * size
                        _add_straight(lanes, maps, itself, centres, P, C, d, group * d, point, count, sums, here)
                        continue
                    for side in range(1 if itself else 2):
                        shift = centres[0] if itself or side == 1 else centres[1]
                        x = maps[0] if side == 0 else maps[1]
                        gather(lanes, x, shape, point, count, group * d, groups * d, shift, tile, places, side * half)
                    ahead: Any = np.int64(0)
                    if far and group + span < C // d:
                        ahead = (point // P * C + (group + span) * d) * P + point % P
                    elif far and point + length < high:
                        ahead = (point + length) // P * C * P + (point + length) % P
                    for g in range(groups):
                        place, here = g * rows * stride, start + (group + g) * size
                        _add_group(
                            lanes, tile, place, stride, rows // 4, 0 if itself else half, count, sums, here, maps,
                            ahead, P,
                        )  # fmt: skip
        begin, end = next_part(ledger, last, 0)
    return 0


@inner
def _add_group(
    lanes: Any, tile: Any, place: int, stride: int, blocks: int, half: int, count: int, totals: Any, start: int,
    maps: Any, ahead: int, P: int,
) -> None:  # fmt: skip
    """The totals of one group in one tile. Where both maps are one, ``half`` is 0.

    Meanwhile the rows of the next tile, which are P apart in the maps from ``ahead`` on, if that is not 0, are fetched.
    """
    W = width(lanes)
    row, done, share = 0, 0, 0
    if ahead:  # with every block of products a share of the next tile, but rows should not alternate all the time
        share = max(16 * W, rounded(4 * blocks * count // (blocks * (blocks if half else (blocks + 1) // 2)), W))
    for i in range(blocks):
        left = place + 4 * i * stride
        block = zero_block(lanes)
        for column in range(0, count, W):
            block = add_rows(lanes, block, tile, left + column, stride)
        add_lane_sums(lanes, block, totals, start + (blocks * blocks + i) * 16)
        for j in range(0 if half else i, blocks):
            right = place + half + 4 * j * stride
            if ahead and row < 4 * blocks:
                fetch_rows(maps, 2 if half else 1, ahead + row * P + done, P, 1, share)
                done += share
                if done >= count:
                    row, done = row + 1, 0
            block = zero_block(lanes)
            for column in range(0, count, W):
                block = add_products(lanes, block, tile, left + column, right + column, stride)
            add_lane_sums(lanes, block, totals, start + (i * blocks + j) * 16)


@inner
def _add_straight(
    lanes: Any, maps: Any, itself: bool, centres: Any, P: int, C: int, d: int, channel: int, first: int, count: int,
    totals: Any, start: int,
) -> None:  # fmt: skip
    """:func:`_add_group` without a tile: from where the maps have the group, whose samples are whole vectors."""
    W, blocks = width(lanes), d // 4
    for i in range(blocks):
        for j in range(i if itself else 0, blocks):
            products, sums = zero_block(lanes), zero_block(lanes)
            left_shift = block_of_rows(lanes, centres[0] if itself else centres[1], channel + 4 * i, 1)
            right_shift = block_of_rows(lanes, centres[0], channel + 4 * j, 1)
            column = 0
            while column < count:
                sample, point = divmod(first + column, P)
                length = min(P - point, count - column)
                place = (sample * C + channel) * P + point
                for k in range(place, place + length, W):
                    products, sums = add_shifted_products(
                        lanes, products, sums, maps[0], k + 4 * i * P, left_shift, maps[1], k + 4 * j * P, right_shift,
                        P,
                    )  # fmt: skip
                column += length
            add_lane_sums(lanes, products, totals, start + (i * blocks + j) * 16)
            if j == i:
                add_lane_sums(lanes, sums, totals, start + (blocks * blocks + i) * 16)
