"""Small groups of channels that are slow in memory, in samples of whole vectors: read where they are.

Points lie along the vectors. 4×4 products at a time are summed in registers, over all points of a tile, or four rows
of the result by four vectors of points: 16 fused operations for at most eight loads. The centre is subtracted each time
that a row is read.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function, inline, kernel
from ..simd.blocks import add_lane_sums, add_outer, add_products, block_of_rows, store_block, zero_block
from ..simd.memory import broadcast
from ..simd.vectors import width
from .harness import Affine, Maps, apply_to_tiles, partial_sums_size, sum_tiles

__all__ = ["apply_affine", "moments"]


@device_function
def _no_scratch(lanes: Any, maps: Maps) -> int:
    """Nothing is kept from tile to tile."""
    return 0


@device_function
def _no_scratch_for(lanes: Any, maps: Maps, affine: Affine) -> int:
    """Nothing is kept from tile to tile."""
    return 0


@inline
def _add_tile(
    lanes: Any, maps: Maps, scratch: Any, first: int, count: int, following: int, partial_sums: Any, start: int
) -> None:
    """Add to the partial sums from ``start`` on those of the points ``first`` to ``first + count``."""
    for group in range(maps.C // maps.d):
        _add_group(lanes, maps, group * maps.d, first, count, partial_sums, start + group * partial_sums_size(maps.d))


@device_function
def _add_group(lanes: Any, maps: Maps, channel: int, first: int, count: int, partial_sums: Any, start: int) -> None:
    """Add to the partial sums of the group that begins with a channel."""
    W, P, blocks = width(lanes), maps.P, maps.d // 4
    for i in range(blocks):
        for j in range(i if maps.sides == 1 else 0, blocks):
            block = zero_block(lanes, 20)
            left_shift = block_of_rows(lanes, maps.centres[0], channel + 4 * i, 1)
            right_shift = block_of_rows(lanes, maps.centres[1], channel + 4 * j, 1)
            column = 0
            while column < count:
                sample, point = divmod(first + column, P)
                length = min(P - point, count - column)
                place = (sample * maps.C + channel) * P + point
                for k in range(place, place + length, W):
                    block = add_products(
                        lanes, block, maps.inputs[0], k + 4 * i * P, P, left_shift, maps.inputs[1], k + 4 * j * P, P,
                        right_shift,
                    )  # fmt: skip
                column += length
            add_lane_sums(lanes, block, 0, partial_sums, start + (i * blocks + j) * 16)
            if j == i:
                add_lane_sums(lanes, block, 16, partial_sums, start + (blocks * blocks + i) * 16)


@inline
def _apply_tile(lanes: Any, maps: Maps, affine: Affine, scratch: Any, first: int, count: int, following: int) -> None:
    """Apply the map to the points ``first`` to ``first + count``, all of one sample."""
    P, sample, point = maps.P, first // maps.P, first % maps.P
    for channel in range(0, maps.C, maps.d):
        _apply_to_group(lanes, maps, affine, channel, (sample * maps.C + channel) * P + point, count)


@device_function
def _apply_to_group(lanes: Any, maps: Maps, affine: Affine, channel: int, place: int, count: int) -> None:
    """Apply the map to ``count`` points, at ``place`` in inputs and output, of the group that begins with a channel."""
    W, P, d, sides = width(lanes), maps.P, maps.d, maps.sides
    weights, offsets, y = affine.weights, affine.offsets, affine.y
    column = 0
    while column < count:
        wide, q = column + 3 * W < count, place + column
        for row in range(0, d, 4):
            w = (channel + row) * sides * d
            if wide:
                block = block_of_rows(lanes, offsets, channel + row, 4)
                block = _add_maps(lanes, block, 4, maps, channel, q, weights, w)
                store_block(lanes, y, q + row * P, P, block, 4, affine.streaming)
            else:
                narrow = block_of_rows(lanes, offsets, channel + row, 1)
                narrow = _add_maps(lanes, narrow, 1, maps, channel, q, weights, w)
                store_block(lanes, y, q + row * P, P, narrow, 1, affine.streaming)
        column += 4 * W if wide else W


@inline
def _add_maps(
    lanes: Any, block: Any, columns: int, maps: Maps, channel: int, place: int, weights: Any, weight: int
) -> Any:
    """Add the weighted channels of a group of all maps, ``columns`` (a literal) vectors of points from ``place`` on."""
    for side in range(maps.sides):
        x, centre = maps.inputs[side], maps.centres[side]
        for j in range(maps.d):
            shift = broadcast(lanes, centre, channel + j)
            block = add_outer(lanes, block, columns, x, place + j * maps.P, shift, weights, weight, 1)
            weight += 4
    return block


_sum = sum_tiles(_no_scratch, _add_tile)
_apply = apply_to_tiles(_no_scratch_for, _apply_tile)


@kernel
def moments(number: Any, work: int) -> int:
    """Compute Σ l and Σ l rᵀ within each group; see :mod:`.backends`."""
    return int(_sum(number, work))


@kernel
def apply_affine(number: Any, work: int) -> int:
    """Compute y = M x + c within each group; see :mod:`.backends`."""
    return int(_apply(number, work))
