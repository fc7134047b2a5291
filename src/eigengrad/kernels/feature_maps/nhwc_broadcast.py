"""Groups of channels that lie next to each other in memory and fill whole vectors: W | d.

A vector holds W channels of a group at one point, so nothing need be transposed: a matrix for the group is a sum of its
columns, each times one number, and so is a sum of products,

    y = Σ_j x_j M_(:,j),        row i of Σ l rᵀ = Σ l_i r,

a broadcast number times some vectors. Sixteen of these stay in registers: 8 points (or 8 rows) by two vectors, for
which a step costs ten loads and 16 fused operations, or 16 by one where d/W is odd. As many flops as on
tiles, but a tile is only a copy, less its centre, not a transpose.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE, next_chunk
from ..simd.arrays import array_at
from ..simd.blocks import add_four, store_block, zero_block
from ..simd.matrix_products import add_outers
from ..simd.memory import aligned, finish_streaming, load, store
from ..simd.vectors import lanes_of, splat, width
from .common import begin_split, centres_at, maps_at, partial_sums_at, partial_sums_size

__all__ = ["apply_affine", "moments"]

_AT_ONCE = 16  # points that are taken at a time, at most


@kernel
def moments(
    number: Any, left: int, right: int, centre: int, points: int, C: int, P: int, fast: int, d: int, partial_sums: int,
    last: int, splits: int, length: int, groups_per_tile: int, work: int,
) -> int:  # fmt: skip
    """See :mod:`.backends`."""
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes, itself = lanes_of(number), left == right
    maps, centres = maps_at(lanes, left, right, points * C), centres_at(lanes, centre, C)
    rows = _new_rows(lanes, length, groups_per_tile * d, 1 if itself else 2)
    size, sums = partial_sums_size(d), partial_sums_at(partial_sums, splits, C, d)
    while begin < end:
        for split in range(begin, end):
            start, low, high = begin_split(sums, split, splits, points, length)
            for point in range(low, high, length):
                count = min(length, high - point)
                _sum_points(lanes, maps, itself, centres, C, d, point, count, groups_per_tile, sums, start, size, rows)
        begin, end = next_chunk(work, last)
    return DONE


@kernel
def apply_affine(
    number: Any, first_map: int, second_map: int, centre: int, points: int, C: int, P: int, fast: int, d: int,
    weights: int, offsets: int, result: int, last: int, length: int, groups_per_tile: int, streaming: int,
    work: int,
) -> int:  # fmt: skip
    """See :mod:`.backends`."""
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes, maps = lanes_of(number), 2 if second_map else 1
    inputs, centres = maps_at(lanes, first_map, second_map, points * C), centres_at(lanes, centre, C)
    y, shifts = array_at(lanes, result, points * C), array_at(lanes, offsets, C)
    columns = _columns_of_weights(lanes, array_at(lanes, weights, C * maps * d), C, d, maps)
    rows = _new_rows(lanes, length, groups_per_tile * d, maps)
    while begin < end:
        for tile in range(begin, end):
            point = tile * length
            count = min(length, points - point)
            _apply_to_points(
                lanes,
                inputs,
                maps,
                centres,
                C,
                d,
                point,
                count,
                groups_per_tile,
                columns,
                shifts,
                y,
                rows,
                streaming != 0,
            )
        if streaming:
            finish_streaming()
        begin, end = next_chunk(work, last)
    return DONE


@device_function
def _new_rows(lanes: Any, length: int, channels: int, maps: int) -> Any:
    """Room for some channels at ``length`` points, a row a point, of as many maps, and for 16 vectors more."""
    return aligned(lanes, maps * (length + _AT_ONCE) * channels + _AT_ONCE * width(lanes))


@device_function
def _copy_rows(
    lanes: Any, x: Any, C: int, channel: int, channels: int, first: int, count: int, centre: Any, rows: Any, target: int
) -> None:
    """Points less their centre; after the last one, zeros for as many as are taken at once."""
    W = width(lanes)
    for point in range(first, first + count):
        source = point * C + channel
        for k in range(0, channels, W):
            store(rows, target + k, load(lanes, x, source + k) - load(lanes, centre, channel + k))
        target += channels
    for k in range(0, _AT_ONCE * channels, W):
        store(rows, target + k, splat(lanes, 0.0))


@device_function
def _columns_of_weights(lanes: Any, packed: Any, C: int, d: int, maps: int) -> Any:
    """The columns of M for every group and map, from weights as :func:`apply_affine` gets them."""
    columns = aligned(lanes, C * d * maps)
    for c in range(C):
        i = c % d
        row, place = (c - i % 4) * d * maps + i % 4, (c - i) * d * maps + i
        for j in range(d * maps):
            columns[place + j * d] = packed[row + 4 * j]
    return columns


@device_function
def _apply_to_points(
    lanes: Any, inputs: Any, maps: int, centres: Any, C: int, d: int, first: int, count: int, groups_per_tile: int,
    weights: Any, offsets: Any, y: Any, rows: Any, streaming: bool,
) -> None:  # fmt: skip
    """y = M x + c, of one map or two, at the points ``first`` to ``first + count``; see :func:`apply_affine`.

    ``groups_per_tile`` groups at a time.
    """
    W = width(lanes)
    pairs = d % (2 * W) == 0
    across, height = (2 * W, _AT_ONCE // 2) if pairs else (W, _AT_ONCE)
    for begin in range(0, C, groups_per_tile * d):
        channels = min(groups_per_tile * d, C - begin)
        half = (count + _AT_ONCE) * channels
        spare = maps * half
        for side in range(maps):
            source = inputs[0] if side == 0 else inputs[1]
            centre = centres[0] if side == maps - 1 else centres[1]
            _copy_rows(lanes, source, C, begin, channels, first, count, centre, rows, side * half)
        for channel in range(begin, begin + channels, across):
            group, column = channel // d * d, channel % d
            a, b = load(lanes, offsets, channel), load(lanes, offsets, channel + across - W)
            for point in range(0, count, height):
                here = point + height <= count
                place = (first + point) * C + channel
                block = (a, b, a, b, a, b, a, b, a, b, a, b, a, b, a, b)  # b is a where there are no pairs
                for side in range(maps):
                    weight = (group * maps + side * d) * d + column
                    x = side * half + point * channels + group - begin
                    if pairs:
                        block = add_outers(lanes, block, 2, d, weights, weight, d, rows, x, 1, channels)
                    else:
                        block = add_outers(lanes, block, 1, d, weights, weight, d, rows, x, 1, channels)
                if pairs and here:
                    store_block(lanes, y, place, C, block, 2, streaming)
                elif pairs:
                    store_block(lanes, rows, spare, across, block, 2, count < 0)
                elif here:
                    store_block(lanes, y, place, C, block, 1, streaming)
                else:
                    store_block(lanes, rows, spare, across, block, 1, count < 0)
                if not here:
                    for p in range(count - point):
                        for k in range(0, across, W):
                            store(y, place + p * C + k, load(lanes, rows, spare + p * across + k))


@device_function
def _sum_points(
    lanes: Any, maps: Any, itself: bool, centres: Any, C: int, d: int, first: int, count: int, groups_per_tile: int,
    partial_sums: Any, start: int, size: int, rows: Any,
) -> None:  # fmt: skip
    """Add the products and sums of the points ``first`` to ``first + count`` to the partial sums from ``start`` on."""
    W, blocks = width(lanes), d // 4
    pairs = d % (2 * W) == 0 and not itself  # of a symmetric matrix squares leave more out
    across, height = (2 * W, _AT_ONCE // 2) if pairs else (W, _AT_ONCE)
    for begin in range(0, C, groups_per_tile * d):
        channels = min(groups_per_tile * d, C - begin)
        half = 0 if itself else (count + _AT_ONCE) * channels
        spare = half + (count + _AT_ONCE) * channels
        _copy_rows(lanes, maps[1], C, begin, channels, first, count, centres[0], rows, 0)
        if not itself:
            _copy_rows(lanes, maps[0], C, begin, channels, first, count, centres[1], rows, half)
        for group in range(0, channels, d):
            here = start + (begin + group) // d * size
            for column in range(0, d, W):
                total = splat(lanes, 0.0)
                for place in range(half + group + column, half + count * channels, channels):
                    total = total + load(lanes, rows, place)
                store(rows, spare, total)
                for k in range(0, W, 4):
                    add_four(partial_sums, here + (blocks * blocks + (column + k) // 4) * 16, rows, spare + k)
            for i in range(0, d, height):
                for column in range(i // across * across if itself else 0, d, across):  # not below the diagonal
                    right, left = group + column, half + group + i
                    block = zero_block(lanes)
                    if pairs:
                        block = add_outers(lanes, block, 2, count, rows, right, channels, rows, left, channels, 1)
                        store_block(lanes, rows, spare, across, block, 2, count < 0)
                    else:
                        block = add_outers(lanes, block, 1, count, rows, right, channels, rows, left, channels, 1)
                        store_block(lanes, rows, spare, across, block, 1, count < 0)
                    for row in range(min(height, d - i)):
                        place = here + (i + row) // 4 * blocks * 16 + (i + row) % 4 * 4
                        for k in range(0, across, 4):
                            add_four(partial_sums, place + (column + k) // 4 * 16, rows, spare + row * across + k)
