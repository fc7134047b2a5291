"""Points mapped linearly: y = M x + c within each group of channels, of one map, or of two with their products added.

Tile by tile: four rows of the result by four vectors of points in registers, for which each row of the input costs four
loads, four broadcast weights and 16 fused operations. 2·m·C·d flops for each input map of m points and C channels in
groups of d; bound by memory up to d ≈ 32. A large result is written past the caches: it would not stay there anyway,
and a line that is streamed need not be read first.

Weights are packed so that the inner loop walks through them: for every four rows of M, column by column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import array_at, doubles_at, rounded, zeros
from .channel_vectors import channels_are_vectors, columns_of_weights, mix_vectors, new_rows
from .compiled import compiled, inner
from .parts import first_part, next_part
from .rotated_lanes import mix_in_lanes, rotated_weights, within_lanes
from .tiles import STRAIGHT, centre_of, channel_places, fetch_rows, gather, new_tile, scatter, worth_fetching
from .vector_blocks import add_weighted, block_of_rows, finish_streaming, store_block
from .vector_memory import broadcast
from .vectors import lanes_of, splat, width

__all__ = ["mix"]


@compiled
def mix(
    number: Any, first_map: int, second_map: int, centre: int, points: int, C: int, P: int, fast: int, d: int,
    weights: int, offsets: int, result: int, first: int, last: int, length: int, span: int, streaming: int,
    ledger: int,
) -> int:  # fmt: skip
    """The tiles ``first`` to ``last`` of y = M x + c, or, where there is a second map, of y = M₁ x₁ + M₂ x₂ + c.

    Takes addresses, and as first argument a number of the maps' type (see :mod:`.arrays`). The centre is subtracted
    from the last map. Weights are, for every group and four of its rows, the packed columns of [M₁ M₂], both padded
    with zeros to multiples of 4; offsets the padded c of every group. A tile has ``length`` points of ``span`` groups.
    Where channels are slow, P is a multiple of W and d one of 4, tiles do not cross samples and go straight to the
    result; and for small d they are not filled, the maps are read where they are.
    """
    begin, end = first_part(ledger, first, last)
    if begin >= end:
        return 0
    lanes, shape, maps = lanes_of(number), (C, P, fast), 2 if second_map else 1
    W, rows = width(lanes), rounded(d, 4)
    depth, stride, whole = maps * rows, length + W, not fast and P % W == 0 and d == rows
    straight = whole and d <= STRAIGHT
    inputs = array_at(lanes, first_map, points * C), array_at(lanes, second_map, points * C)
    centres = centre_of(lanes, doubles_at(centre, C)), zeros(lanes, C)
    y, shifts = array_at(lanes, result, points * C), array_at(lanes, offsets, C // d * rows)
    packed = array_at(lanes, weights, C // d * rows * depth)
    # What has no place goes behind all groups, that of the second map as many rows further as its other rows are.
    tile = new_tile(lanes, span * depth + depth - rows, d, stride, 1)
    spare = new_tile(lanes, 0 if whole else span * rows, d, stride, 1)
    sources = channel_places(lanes, span * d, d, depth, stride)
    targets = channel_places(lanes, span * d, d, rows, stride)
    lanewise = within_lanes(lanes, d, C, points, fast)
    rotated = rotated_weights(lanes, packed, C if lanewise else 0, d, maps)
    vectorwise = channels_are_vectors(lanes, d, fast) and not lanewise
    columns = columns_of_weights(lanes, packed, C if vectorwise else 0, d, maps)
    by_points = new_rows(lanes, length if vectorwise else 0, span * d, maps)
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
            if lanewise:
                mix_in_lanes(lanes, inputs, maps, centres, C, d, point, count, rotated, shifts, y, streaming != 0)
                continue
            if vectorwise:
                mix_vectors(
                    lanes, inputs, maps, centres, C, d, point, count, span, columns, shifts, y, by_points,
                    streaming != 0,
                )  # fmt: skip
                continue
            for group in range(0, C // d, span):
                groups = min(span, C // d - group)
                if straight:
                    place = (point // P * C + group * d) * P + point % P
                    _mix_straight(
                        lanes, inputs, maps, centres, group * d, place, P, d, count, packed, group * d * depth, shifts,
                        group * d, y, streaming != 0,
                    )  # fmt: skip
                    continue
                for side in range(maps):
                    shift = centres[0] if side == maps - 1 else centres[1]
                    x = inputs[0] if side == 0 else inputs[1]
                    gather(
                        lanes, x, shape, point, count, group * d, groups * d, shift, tile, sources, side * rows * stride
                    )
                ahead: Any = np.int64(0)
                if far and group + span < C // d:
                    ahead = (point // P * C + (group + span) * d) * P + point % P
                elif far and number_of_tile + 1 < end:
                    sample, part = divmod(number_of_tile + 1, tiles_a_sample)
                    ahead = sample * C * P + part * length
                for g in range(group, group + groups):
                    out, place, step = spare, (g - group) * rows * stride, stride
                    if whole:
                        out, place, step = y, (point // P * C + g * d) * P + point % P, P
                    _mix_rows(
                        lanes, tile, (g - group) * depth * stride, stride, depth, count, packed, g * rows * depth,
                        shifts, g * rows, rows, out, place, step, whole and streaming != 0, inputs, maps, ahead, P,
                    )  # fmt: skip
                if not whole:
                    scatter(lanes, spare, targets, y, shape, point, count, group * d, groups * d, streaming != 0)
        if streaming:
            finish_streaming()
        begin, end = next_part(ledger, last, 0)
    return 0


@inner
def _mix_rows(
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


@inner
def _mix_straight(
    lanes: Any, inputs: Any, maps: int, centres: Any, channel: int, place: int, P: int, d: int, count: int,
    weights: Any, weight: int, offsets: Any, offset: int, y: Any, streaming: bool,
) -> None:  # fmt: skip
    """:func:`_mix_rows` without a tile: from where one or two maps have the group to where y has it, ``place``."""
    W = width(lanes)
    column = 0
    while column < count:
        wide, q = column + 3 * W < count, place + column
        for row in range(0, d, 4):
            w = weight + row * maps * d
            if wide:
                block = block_of_rows(lanes, offsets, offset + row, 4)
                for side in range(maps):
                    x = inputs[0] if side == 0 else inputs[1]
                    centre = centres[0] if side == maps - 1 else centres[1]
                    for j in range(d):
                        shift = broadcast(lanes, centre, channel + j)
                        block = add_weighted(lanes, block, x, q + j * P, shift, weights, w + 4 * (side * d + j))
                store_block(lanes, y, q + row * P, P, block, 4, streaming)
            else:
                narrow = block_of_rows(lanes, offsets, offset + row, 1)
                for side in range(maps):
                    x = inputs[0] if side == 0 else inputs[1]
                    centre = centres[0] if side == maps - 1 else centres[1]
                    for j in range(d):
                        shift = broadcast(lanes, centre, channel + j)
                        narrow = add_weighted(lanes, narrow, x, q + j * P, shift, weights, w + 4 * (side * d + j))
                store_block(lanes, y, q + row * P, P, narrow, 1, streaming)
        column += 4 * W if wide else W
