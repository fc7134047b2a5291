"""Any channels, any points: through tiles (:mod:`.packing`), which have points along the vectors.

Within a tile 4×4 products at a time are summed in registers: 8 loads for 16 fused operations, over rows of some hundred
points; then the lanes are added up and go to the partial sums, in double precision. Results are mixed four rows by four
vectors of points: each row of the input costs four loads, four broadcast weights and 16 fused operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE, next_chunk
from ..simd.arrays import array_at, rounded
from ..simd.blocks import (
    add_lane_sums,
    add_products,
    add_rows,
    add_weighted,
    block_of_rows,
    store_block,
    zero_block,
)
from ..simd.memory import finish_streaming
from ..simd.vectors import lanes_of, splat, width
from .common import begin_split, centres_at, maps_at, partial_sums_at, partial_sums_size
from .packing import channel_places, fetch_rows, gather, new_tile, scatter, worth_fetching

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
    lanes, shape, itself = lanes_of(number), (C, P, fast), left == right
    maps, centres = maps_at(lanes, left, right, points * C), centres_at(lanes, centre, C)
    rows, stride = rounded(d, 4), length + width(lanes)
    half = (groups_per_tile * rows + 1) * stride  # of the tile: first the left map's rows, then the right one's
    tile = new_tile(lanes, groups_per_tile * rows, d, stride, 1 if itself else 2)
    places = channel_places(lanes, groups_per_tile * d, d, rows, stride)
    sums = partial_sums_at(partial_sums, splits, C, d)
    far = worth_fetching(maps[0], fast)
    while begin < end:
        for split in range(begin, end):
            start, low, high = begin_split(sums, split, splits, points, length)
            for point in range(low, high, length):
                count = min(length, high - point)
                for group in range(0, C // d, groups_per_tile):
                    groups = min(groups_per_tile, C // d - group)
                    for side in range(1 if itself else 2):
                        shift = centres[0] if itself or side == 1 else centres[1]
                        x = maps[0] if side == 0 else maps[1]
                        gather(lanes, x, shape, point, count, group * d, groups * d, shift, tile, places, side * half)
                    ahead: Any = np.int64(0)
                    if far and group + groups_per_tile < C // d:
                        ahead = (point // P * C + (group + groups_per_tile) * d) * P + point % P
                    elif far and point + length < high:
                        ahead = (point + length) // P * C * P + (point + length) % P
                    for g in range(groups):
                        place, here = g * rows * stride, start + (group + g) * partial_sums_size(d)
                        _add_group(
                            lanes, tile, place, stride, rows // 4, 0 if itself else half, count, sums, here, maps,
                            ahead, P,
                        )  # fmt: skip
        begin, end = next_chunk(work, last)
    return DONE


@device_function
def _add_group(
    lanes: Any, tile: Any, place: int, stride: int, blocks: int, half: int, count: int, partial_sums: Any, start: int,
    maps: Any, ahead: int, P: int,
) -> None:  # fmt: skip
    """The partial sums of one group in one tile. Where both maps are one, ``half`` is 0.

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
        add_lane_sums(lanes, block, partial_sums, start + (blocks * blocks + i) * 16)
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
            add_lane_sums(lanes, block, partial_sums, start + (i * blocks + j) * 16)


@kernel
def apply_affine(
    number: Any, first_map: int, second_map: int, centre: int, points: int, C: int, P: int, fast: int, d: int,
    weights: int, offsets: int, result: int, last: int, length: int, groups_per_tile: int, streaming: int,
    work: int,
) -> int:  # fmt: skip
    """See :mod:`.backends`.

    Where channels are slow, P is a multiple of W and d one of 4, tiles do not cross samples, and what they give goes
    straight to the result.
    """
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes, shape, maps = lanes_of(number), (C, P, fast), 2 if second_map else 1
    W, rows = width(lanes), rounded(d, 4)
    depth, stride, whole = maps * rows, length + W, not fast and P % W == 0 and d == rows
    inputs, centres = maps_at(lanes, first_map, second_map, points * C), centres_at(lanes, centre, C)
    y, shifts = array_at(lanes, result, points * C), array_at(lanes, offsets, C // d * rows)
    packed = array_at(lanes, weights, C // d * rows * depth)
    # What has no place goes behind all groups, that of the second map as many rows further as its other rows are.
    tile = new_tile(lanes, groups_per_tile * depth + depth - rows, d, stride, 1)
    spare = new_tile(lanes, 0 if whole else groups_per_tile * rows, d, stride, 1)
    sources = channel_places(lanes, groups_per_tile * d, d, depth, stride)
    targets = channel_places(lanes, groups_per_tile * d, d, rows, stride)
    tiles_a_sample = rounded(P, length) // length
    far = whole and worth_fetching(y, fast)
    while begin < end:
        for number_of_tile in range(begin, end):
            point = number_of_tile * length
            count = min(length, points - point)
            if whole:
                sample, part = divmod(number_of_tile, tiles_a_sample)
                point = sample * P + part * length
                count = min(length, P - part * length)
            for group in range(0, C // d, groups_per_tile):
                groups = min(groups_per_tile, C // d - group)
                for side in range(maps):
                    shift = centres[0] if side == maps - 1 else centres[1]
                    x = inputs[0] if side == 0 else inputs[1]
                    gather(
                        lanes, x, shape, point, count, group * d, groups * d, shift, tile, sources, side * rows * stride
                    )
                ahead: Any = np.int64(0)
                if far and group + groups_per_tile < C // d:
                    ahead = (point // P * C + (group + groups_per_tile) * d) * P + point % P
                elif far and number_of_tile + 1 < end:
                    sample, part = divmod(number_of_tile + 1, tiles_a_sample)
                    ahead = sample * C * P + part * length
                for g in range(group, group + groups):
                    out, place, step = spare, (g - group) * rows * stride, stride
                    if whole:
                        out, place, step = y, (point // P * C + g * d) * P + point % P, P
                    _apply_to_rows(
                        lanes, tile, (g - group) * depth * stride, stride, depth, count, packed, g * rows * depth,
                        shifts, g * rows, rows, out, place, step, whole and streaming != 0, inputs, maps, ahead, P,
                    )  # fmt: skip
                if not whole:
                    scatter(lanes, spare, targets, y, shape, point, count, group * d, groups * d, streaming != 0)
        if streaming:
            finish_streaming()
        begin, end = next_chunk(work, last)
    return DONE


@device_function
def _apply_to_rows(
    lanes: Any, tile: Any, source: int, stride: int, depth: int, count: int, weights: Any, weight: int, offsets: Any,
    offset: int, rows: int, y: Any, target: int, step: int, streaming: bool, inputs: Any, maps: int, ahead: int, P: int,
) -> None:  # fmt: skip
    """One group: ``rows`` rows of y, ``step`` apart, from ``depth`` rows of a tile.

    ``count`` columns, rounded up to whole vectors. Weights and offsets are those from ``weight`` and ``offset`` on.
    Meanwhile the rows of the next tile, which are P apart in the maps from ``ahead`` on, if that is not 0, are fetched.
    """
    W, zero = width(lanes), splat(lanes, 0.0)
    for row in range(0, rows, 4):
        column = 0
        while column < count:
            p, w, q = source + column, weight + row * depth, target + row * step + column
            if column + 3 * W < count:
                if ahead:
                    fetch_rows(inputs, maps, ahead + row * P + column, P, 4, 4 * W)
                wide = block_of_rows(lanes, offsets, offset + row, 4)
                for j in range(depth):
                    wide = add_weighted(lanes, wide, tile, p + j * stride, zero, weights, w + 4 * j)
                store_block(lanes, y, q, step, wide, 4, streaming)
                column += 4 * W
            else:
                narrow = block_of_rows(lanes, offsets, offset + row, 1)
                for j in range(depth):
                    narrow = add_weighted(lanes, narrow, tile, p + j * stride, zero, weights, w + 4 * j)
                store_block(lanes, y, q, step, narrow, 1, streaming)
                column += W
