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

from ..runtime.compile import device_function, inline, kernel
from ..simd.blocks import store_block, zero_block
from ..simd.emit import load_vector, shuffle, unpacked
from ..simd.memory import aligned, load, store
from ..simd.vectors import splat, width
from .harness import Affine, Maps, apply_to_tiles, partial_sums_size, sum_tiles

__all__ = ["apply_affine", "moments"]


def _rotated(builder: Any, vector: Any, x: Any, size: int, k: int) -> Any:
    """R_k x for groups of ``size`` lanes."""
    size = min(size, vector.width)  # what does not fit is compiled, but not run
    return shuffle(builder, x, x, [lane // size * size + (lane + k) % size for lane in range(vector.width)])


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
def _rotated_weights(lanes: Any, maps: Maps, affine: Affine) -> Any:
    """The D_k, k by k for every vector of channels and map."""
    W, d, sides = width(lanes), maps.d, maps.sides
    rotated = aligned(lanes, maps.C * d * sides)
    for c in range(maps.C):
        i = c % d
        row = (c // d * d + i // 4 * 4) * d * sides + i % 4
        for side in range(sides):
            for k in range(d):
                place = ((c // W * sides + side) * d + k) * W + c % W
                rotated[place] = affine.weights[row + 4 * (side * d + (i + k) % d)]
    return rotated


@inline
def _apply_tile(lanes: Any, maps: Maps, affine: Affine, weights: Any, first: int, count: int, following: int) -> None:
    """Apply the map to the points ``first`` to ``first + count``.

    Four points at a time: the last four may overlap those before, of another tile even, and give the same once more.
    """
    W, C, d = width(lanes), maps.C, maps.d
    for four in range(first, first + count, 4):
        for channel in range(0, C, W):
            offset = load(lanes, affine.offsets, channel)
            place = max(0, min(four, first + count - 4)) * C + channel
            block = (offset, offset, offset, offset)
            for side in range(maps.sides):
                x, shift = maps.inputs[side], load(lanes, maps.centres[side], channel)
                weight = (channel * maps.sides + side * W) * d
                if d == 4:
                    block = _add_rotated(lanes, block, x, place, C, shift, weights, weight, 4)
                else:
                    block = _add_rotated(lanes, block, x, place, C, shift, weights, weight, 8)
            store_block(lanes, affine.y, place, C, block, 1, affine.streaming)


@device_function
def _sum_places(lanes: Any, maps: Maps) -> Any:
    """Where the partial sums have Σ l_i r_(i+k), k by k for the lanes of a vector, and then Σ l_i."""
    W, d, blocks, size = width(lanes), maps.d, maps.d // 4, partial_sums_size(maps.d)
    places = np.empty((d + 1) * W, np.int64)
    for lane in range(W):
        start, i = lane // d * size, lane % d
        for k in range(d):
            j = (i + k) % d
            places[k * W + lane] = start + (i // 4 * blocks + j // 4) * 16 + i % 4 * 4 + j % 4
        places[d * W + lane] = start + (blocks * blocks + i // 4) * 16 + i % 4
    return places


@inline
def _add_tile(
    lanes: Any, maps: Maps, places: Any, first: int, count: int, following: int, partial_sums: Any, start: int
) -> None:
    """Add the products and sums of the points ``first`` to ``first + count`` to the partial sums from ``start`` on."""
    W, d, (x, y) = width(lanes), maps.d, maps.inputs
    sums = aligned(lanes, 17 * W)
    for channel in range(0, maps.C, W):
        left, right = load(lanes, maps.centres[0], channel), load(lanes, maps.centres[1], channel)
        block, total = zero_block(lanes, 16), splat(lanes, 0.0)
        for point in range(first, first + count):
            place = point * maps.C + channel
            if d == 4:
                block = _add_rotated_products(lanes, block, x, y, place, left, right, 4)
            else:
                block = _add_rotated_products(lanes, block, x, y, place, left, right, 8)
            total = total + (load(lanes, x, place) - left)
        store_block(lanes, sums, 0, W, block, 1, d < 0)
        store(sums, d * W, total)
        here = start + channel // d * partial_sums_size(d)
        for k in range((d + 1) * W):
            partial_sums[here + places[k]] += sums[k]


_sum = sum_tiles(_sum_places, _add_tile)
_apply = apply_to_tiles(_rotated_weights, _apply_tile)


@kernel
def moments(number: Any, work: int) -> int:
    """Compute Σ l and Σ l rᵀ within each group; see :mod:`.backends`."""
    return int(_sum(number, work))


@kernel
def apply_affine(number: Any, work: int) -> int:
    """Compute y = M x + c within each group; see :mod:`.backends`."""
    return int(_apply(number, work))
