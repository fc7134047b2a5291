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

from ..runtime.compile import device_function, inline, kernel
from ..simd.blocks import add_four, store_block, zero_block
from ..simd.matrix_products import add_outers
from ..simd.memory import aligned, load, store
from ..simd.vectors import splat, width
from .harness import Affine, Maps, apply_to_tiles, partial_sums_size, sum_tiles

__all__ = ["apply_affine", "moments"]

_AT_ONCE = 16  # points that are taken at a time, at most


@device_function
def _new_rows(lanes: Any, maps: Maps) -> Any:
    """Room for the channels of a tile, a row a point, of as many maps, and for 16 vectors more."""
    channels = maps.groups_per_tile * maps.d
    return aligned(lanes, maps.sides * (maps.length + _AT_ONCE) * channels + _AT_ONCE * width(lanes))


@device_function
def _rows_and_columns(lanes: Any, maps: Maps, affine: Affine) -> Any:
    """:func:`_new_rows`, and the columns of M for every group and map."""
    d, sides = maps.d, maps.sides
    columns = aligned(lanes, maps.C * d * sides)
    for c in range(maps.C):
        i = c % d
        row, place = (c - i % 4) * d * sides + i % 4, (c - i) * d * sides + i
        for j in range(d * sides):
            columns[place + j * d] = affine.weights[row + 4 * j]
    return _new_rows(lanes, maps), columns


@device_function
def _copy_rows(
    lanes: Any, maps: Maps, side: int, channel: int, channels: int, first: int, count: int, rows: Any, target: int
) -> None:
    """Copy points of a map less their centre; after the last one, zeros for as many as are taken at once."""
    W, x, centre = width(lanes), maps.inputs[side], maps.centres[side]
    for point in range(first, first + count):
        source = point * maps.C + channel
        for k in range(0, channels, W):
            store(rows, target + k, load(lanes, x, source + k) - load(lanes, centre, channel + k))
        target += channels
    for k in range(0, _AT_ONCE * channels, W):
        store(rows, target + k, splat(lanes, 0.0))


@inline
def _apply_tile(lanes: Any, maps: Maps, affine: Affine, scratch: Any, first: int, count: int, following: int) -> None:
    """Apply the map to the points ``first`` to ``first + count``, some groups at a time."""
    W, C, d, sides, (rows, weights) = width(lanes), maps.C, maps.d, maps.sides, scratch
    pairs = d % (2 * W) == 0
    across, height = (2 * W, _AT_ONCE // 2) if pairs else (W, _AT_ONCE)
    for begin in range(0, C, maps.groups_per_tile * d):
        channels = min(maps.groups_per_tile * d, C - begin)
        half = (count + _AT_ONCE) * channels
        spare = sides * half
        for side in range(sides):
            _copy_rows(lanes, maps, side, begin, channels, first, count, rows, side * half)
        for channel in range(begin, begin + channels, across):
            group, column = channel // d * d, channel % d
            a, b = load(lanes, affine.offsets, channel), load(lanes, affine.offsets, channel + across - W)
            for point in range(0, count, height):
                here = point + height <= count
                place = (first + point) * C + channel
                block = (a, b, a, b, a, b, a, b, a, b, a, b, a, b, a, b)  # b is a where there are no pairs
                for side in range(sides):
                    weight = (group * sides + side * d) * d + column
                    x = side * half + point * channels + group - begin
                    if pairs:
                        block = add_outers(lanes, block, 2, d, weights, weight, d, rows, x, 1, channels)
                    else:
                        block = add_outers(lanes, block, 1, d, weights, weight, d, rows, x, 1, channels)
                if pairs and here:
                    store_block(lanes, affine.y, place, C, block, 2, affine.streaming)
                elif pairs:
                    store_block(lanes, rows, spare, across, block, 2, count < 0)
                elif here:
                    store_block(lanes, affine.y, place, C, block, 1, affine.streaming)
                else:
                    store_block(lanes, rows, spare, across, block, 1, count < 0)
                if not here:
                    for p in range(count - point):
                        for k in range(0, across, W):
                            store(affine.y, place + p * C + k, load(lanes, rows, spare + p * across + k))


@inline
def _add_tile(
    lanes: Any, maps: Maps, rows: Any, first: int, count: int, following: int, partial_sums: Any, start: int
) -> None:
    """Add the products and sums of the points ``first`` to ``first + count`` to the partial sums from ``start`` on."""
    W, C, d, blocks, itself = width(lanes), maps.C, maps.d, maps.d // 4, maps.sides == 1
    pairs = d % (2 * W) == 0 and not itself  # of a symmetric matrix squares leave more out
    across, height = (2 * W, _AT_ONCE // 2) if pairs else (W, _AT_ONCE)
    for begin in range(0, C, maps.groups_per_tile * d):
        channels = min(maps.groups_per_tile * d, C - begin)
        half = 0 if itself else (count + _AT_ONCE) * channels
        spare = half + (count + _AT_ONCE) * channels
        _copy_rows(lanes, maps, 1, begin, channels, first, count, rows, 0)
        if not itself:
            _copy_rows(lanes, maps, 0, begin, channels, first, count, rows, half)
        for group in range(0, channels, d):
            here = start + (begin + group) // d * partial_sums_size(d)
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
                    block = zero_block(lanes, 16)
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


_sum = sum_tiles(_new_rows, _add_tile)
_apply = apply_to_tiles(_rows_and_columns, _apply_tile)


@kernel
def moments(number: Any, work: int) -> int:
    """Compute Σ l and Σ l rᵀ within each group; see :mod:`.backends`."""
    return int(_sum(number, work))


@kernel
def apply_affine(number: Any, work: int) -> int:
    """Compute y = M x + c within each group; see :mod:`.backends`."""
    return int(_apply(number, work))
