"""Small groups of channels that are slow in memory, in samples of whole vectors: read where they are.

Points lie along the vectors. 4×4 products at a time are summed in registers, over all points of a tile, or four rows
of the result by four vectors of points: 16 fused operations for at most eight loads. The centre is subtracted each time
that a row is read.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE, next_chunk
from ..simd.arrays import array_at, rounded
from ..simd.blocks import (
    add_lane_sums,
    add_shifted_products,
    add_weighted,
    block_of_rows,
    store_block,
    zero_block,
)
from ..simd.memory import broadcast, finish_streaming
from ..simd.vectors import lanes_of, width
from .common import begin_split, centres_at, maps_at, partial_sums_at, partial_sums_size

__all__ = ["apply_affine", "moments"]


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
    sums = partial_sums_at(partial_sums, splits, C, d)
    while begin < end:
        for split in range(begin, end):
            start, low, high = begin_split(sums, split, splits, points, length)
            for point in range(low, high, length):
                count = min(length, high - point)
                for group in range(C // d):
                    here = start + group * partial_sums_size(d)
                    _add_products(lanes, maps, itself, centres, P, C, d, group * d, point, count, sums, here)
        begin, end = next_chunk(work, last)
    return DONE


@device_function
def _add_products(
    lanes: Any, maps: Any, itself: bool, centres: Any, P: int, C: int, d: int, channel: int, first: int, count: int,
    partial_sums: Any, start: int,
) -> None:  # fmt: skip
    """Add to the partial sums of a group, from ``start`` on, those of the points ``first`` to ``first + count``."""
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
            add_lane_sums(lanes, products, partial_sums, start + (i * blocks + j) * 16)
            if j == i:
                add_lane_sums(lanes, sums, partial_sums, start + (blocks * blocks + i) * 16)


@kernel
def apply_affine(
    number: Any, first_map: int, second_map: int, centre: int, points: int, C: int, P: int, fast: int, d: int,
    weights: int, offsets: int, result: int, last: int, length: int, groups_per_tile: int, streaming: int,
    work: int,
) -> int:  # fmt: skip
    """See :mod:`.backends`. Tiles do not cross samples."""
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes, maps = lanes_of(number), 2 if second_map else 1
    inputs, centres = maps_at(lanes, first_map, second_map, points * C), centres_at(lanes, centre, C)
    y, shifts = array_at(lanes, result, points * C), array_at(lanes, offsets, C)
    packed = array_at(lanes, weights, C * maps * d)
    tiles_a_sample = rounded(P, length) // length
    while begin < end:
        for tile in range(begin, end):
            sample, part = divmod(tile, tiles_a_sample)
            count = min(length, P - part * length)
            for channel in range(0, C, d):
                place = (sample * C + channel) * P + part * length
                _apply_to_group(
                    lanes, inputs, maps, centres, channel, place, P, d, count, packed, channel * maps * d, shifts, y,
                    streaming != 0,
                )  # fmt: skip
        if streaming:
            finish_streaming()
        begin, end = next_chunk(work, last)
    return DONE


@device_function
def _apply_to_group(
    lanes: Any, inputs: Any, maps: int, centres: Any, channel: int, place: int, P: int, d: int, count: int,
    weights: Any, weight: int, offsets: Any, y: Any, streaming: bool,
) -> None:  # fmt: skip
    """From where one or two maps have the group to where y has it, ``place``."""
    W = width(lanes)
    column = 0
    while column < count:
        wide, q = column + 3 * W < count, place + column
        for row in range(0, d, 4):
            w = weight + row * maps * d
            if wide:
                block = block_of_rows(lanes, offsets, channel + row, 4)
                for side in range(maps):
                    x = inputs[0] if side == 0 else inputs[1]
                    centre = centres[0] if side == maps - 1 else centres[1]
                    for j in range(d):
                        shift = broadcast(lanes, centre, channel + j)
                        block = add_weighted(lanes, block, x, q + j * P, shift, weights, w + 4 * (side * d + j))
                store_block(lanes, y, q + row * P, P, block, 4, streaming)
            else:
                narrow = block_of_rows(lanes, offsets, channel + row, 1)
                for side in range(maps):
                    x = inputs[0] if side == 0 else inputs[1]
                    centre = centres[0] if side == maps - 1 else centres[1]
                    for j in range(d):
                        shift = broadcast(lanes, centre, channel + j)
                        narrow = add_weighted(lanes, narrow, x, q + j * P, shift, weights, w + 4 * (side * d + j))
                store_block(lanes, y, q + row * P, P, narrow, 1, streaming)
        column += 4 * W if wide else W
