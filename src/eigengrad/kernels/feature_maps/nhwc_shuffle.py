"""Small groups of channels that lie next to each other in memory: a whole number of groups in a vector, d | W.

A vector x holds all channels of some groups at one point, so nothing need be transposed. With R_k x, in which every
group's channels are rotated by k places (one shuffle), both a matrix for each group and a sum of products are d fused
operations with whole vectors:

    y = Σ_k D_k ∘ R_k x,   lane i of D_k being M[i, i + k];        Σ x_i y_(i+k) = Σ x ∘ R_k y,   k < d, indices mod d.

That is as many multiplications as the products have. For d = 4 and 8; for 16 the shuffles take longer than a transpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE, next_chunk
from ..simd.arrays import array_at
from ..simd.blocks import store_block, zero_block
from ..simd.emit import INDEX, load_vector, unpacked
from ..simd.memory import aligned, finish_streaming, load, store
from ..simd.vectors import lanes_of, splat, width
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
    lanes = lanes_of(number)
    maps, centres = maps_at(lanes, left, right, points * C), centres_at(lanes, centre, C)
    left_centre = centres[0] if left == right else centres[1]
    size, sums = partial_sums_size(d), partial_sums_at(partial_sums, splits, C, d)
    places = _sum_places(lanes, d, size)
    while begin < end:
        for split in range(begin, end):
            start, low, high = begin_split(sums, split, splits, points, length)
            for point in range(low, high, length):
                count = min(length, high - point)
                _sum_points(lanes, maps, left_centre, centres[0], C, d, point, count, sums, start, size, places)
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
    rotated = _rotated_weights(lanes, array_at(lanes, weights, C * maps * d), C, d, maps)
    while begin < end:
        for tile in range(begin, end):
            point = tile * length
            count = min(length, points - point)
            _apply_to_points(lanes, inputs, maps, centres, C, d, point, count, rotated, shifts, y, streaming != 0)
        if streaming:
            finish_streaming()
        begin, end = next_chunk(work, last)
    return DONE


def _rotated(builder: Any, vector: Any, x: Any, size: int, k: int) -> Any:
    """R_k x for groups of ``size`` lanes."""
    size = min(size, vector.width)  # what does not fit is compiled, but not run
    lanes = [lane // size * size + (lane + k) % size for lane in range(vector.width)]
    return builder.shuffle_vector(x, x, ir.Constant(ir.VectorType(INDEX, vector.width), lanes))


@intrinsic(prefer_literal=True)
def _add_rotated(
    typing_context: Any, lanes: Any, block: Any, x: Any, place: Any, step: Any, shift: Any, weights: Any, weight: Any,
    size: Any,
) -> Any:  # fmt: skip
    """Add Σ_k D_k ∘ R_k (x − shift) at four points, ``step`` apart; D_k is the k-th vector of ``weights[weight:]``."""
    d = size.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, map_kind, _, _, _, weights_kind, _, _ = signature.args
        _, packed, x, place, step, shift, weights, weight, _ = arguments
        vector, rows = lanes.vector, unpacked(builder, packed)
        places = [builder.add(place, builder.mul(step, ir.Constant(step.type, i))) for i in range(4)]
        points = [builder.fsub(load_vector(context, builder, vector, map_kind, x, p), shift) for p in places]
        for k in range(d):
            here = builder.add(weight, ir.Constant(weight.type, k * lanes.width))
            factor = load_vector(context, builder, vector, weights_kind, weights, here)
            for i in range(4):
                rows[i] = vector.intrinsic(builder, "fma", factor, _rotated(builder, vector, points[i], d, k), rows[i])
        return context.make_tuple(builder, block_kind, rows)

    i = types.intp
    return block(lanes, block, x, i, i, lanes.vector, weights, i, size), generate


@intrinsic(prefer_literal=True)
def _add_rotated_products(
    typing_context: Any, lanes: Any, block: Any, left: Any, right: Any, place: Any, left_shift: Any, right_shift: Any,
    size: Any,
) -> Any:  # fmt: skip
    """Add l ∘ R_k r to entry k of the block, for l and r at one place of two maps, each less its shift."""
    d = size.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, left_kind, right_kind, _, _, _, _ = signature.args
        _, packed, left, right, place, left_shift, right_shift, _ = arguments
        vector, entries = lanes.vector, unpacked(builder, packed)
        x = builder.fsub(load_vector(context, builder, vector, left_kind, left, place), left_shift)
        y = builder.fsub(load_vector(context, builder, vector, right_kind, right, place), right_shift)
        for k in range(d):
            entries[k] = vector.intrinsic(builder, "fma", x, _rotated(builder, vector, y, d, k), entries[k])
        return context.make_tuple(builder, block_kind, entries)

    return block(lanes, block, left, right, types.intp, lanes.vector, lanes.vector, size), generate


@device_function
def _rotated_weights(lanes: Any, packed: Any, C: int, d: int, maps: int) -> Any:
    """The D_k, k by k for every vector of channels and map, from weights as :func:`apply_affine` gets them."""
    W = width(lanes)
    rotated = aligned(lanes, C * d * maps)
    for c in range(C):
        i = c % d
        row = (c // d * d + i // 4 * 4) * d * maps + i % 4
        for side in range(maps):
            for k in range(d):
                place = ((c // W * maps + side) * d + k) * W + c % W
                rotated[place] = packed[row + 4 * (side * d + (i + k) % d)]
    return rotated


@device_function
def _apply_to_points(
    lanes: Any, inputs: Any, maps: int, centres: Any, C: int, d: int, first: int, count: int, weights: Any,
    offsets: Any, y: Any, streaming: bool,
) -> None:  # fmt: skip
    """y = M x + c, of one map or two, at the points ``first`` to ``first + count``; see :func:`apply_affine`.

    Four points at a time: the last four may overlap those before, of another tile even, and give the same once more.
    """
    W = width(lanes)
    for four in range(first, first + count, 4):
        for channel in range(0, C, W):
            offset = load(lanes, offsets, channel)
            place = max(0, min(four, first + count - 4)) * C + channel
            block = (offset, offset, offset, offset)
            for side in range(maps):
                x = inputs[0] if side == 0 else inputs[1]
                shift = load(lanes, centres[0] if side == maps - 1 else centres[1], channel)
                weight = (channel * maps + side * W) * d
                if d == 4:
                    block = _add_rotated(lanes, block, x, place, C, shift, weights, weight, 4)
                else:
                    block = _add_rotated(lanes, block, x, place, C, shift, weights, weight, 8)
            store_block(lanes, y, place, C, block, 1, streaming)


@device_function
def _sum_places(lanes: Any, d: int, size: int) -> Any:
    """Where the partial sums have Σ l_i r_(i+k), k by k for the lanes of a vector, and then Σ l_i."""
    W, blocks = width(lanes), d // 4
    places = np.empty((d + 1) * W, np.int64)
    for lane in range(W):
        start, i = lane // d * size, lane % d
        for k in range(d):
            j = (i + k) % d
            places[k * W + lane] = start + (i // 4 * blocks + j // 4) * 16 + i % 4 * 4 + j % 4
        places[d * W + lane] = start + (blocks * blocks + i // 4) * 16 + i % 4
    return places


@device_function
def _sum_points(
    lanes: Any, maps: Any, left_centre: Any, right_centre: Any, C: int, d: int, first: int, count: int,
    partial_sums: Any, start: int, size: int, places: Any,
) -> None:  # fmt: skip
    """Add the products and sums of the points ``first`` to ``first + count`` to the partial sums from ``start`` on."""
    W = width(lanes)
    sums = aligned(lanes, 17 * W)
    for channel in range(0, C, W):
        left, right = load(lanes, left_centre, channel), load(lanes, right_centre, channel)
        block, total = zero_block(lanes), splat(lanes, 0.0)
        for point in range(first, first + count):
            place = point * C + channel
            if d == 4:
                block = _add_rotated_products(lanes, block, maps[0], maps[1], place, left, right, 4)
            else:
                block = _add_rotated_products(lanes, block, maps[0], maps[1], place, left, right, 8)
            total = total + (load(lanes, maps[0], place) - left)
        store_block(lanes, sums, 0, W, block, 1, d < 0)
        store(sums, d * W, total)
        here = start + channel // d * size
        for k in range((d + 1) * W):
            partial_sums[here + places[k]] += sums[k]
