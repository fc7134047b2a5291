"""Blocks of vectors: products summed in registers.

A block is a tuple of vectors that stay in registers, rows of some; one operation on it stands for as many
instructions, which keeps the kernels short to read and to compile.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .emit import INDEX, address, load_number, load_vector, store_vector, stream_vector, unpacked

__all__ = [
    "add_four",
    "add_lane_sums",
    "add_outer",
    "add_products",
    "add_rows",
    "add_shifted_products",
    "add_weighted",
    "block_of_rows",
    "lane_sums",
    "store_block",
    "zero_block",
]


@intrinsic(prefer_literal=True)
def zero_block(typing_context: Any, lanes: Any, count: Any) -> Any:
    """``count`` (a literal) vectors of zeros."""
    kind = types.UniTuple(lanes.vector, count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_tuple(builder, kind, [lanes.vector.constant(0.0)] * count.literal_value)

    return kind(lanes, count), generate


@intrinsic(prefer_literal=True)
def block_of_rows(typing_context: Any, lanes: Any, array: Any, index: Any, columns: Any) -> Any:
    """Four rows of ``columns`` vectors (a literal); row i has ``array[index + i]`` in every lane."""
    kind = types.UniTuple(lanes.vector, 4 * columns.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, index, _ = arguments
        rows = []
        for i in range(4):
            here = builder.add(index, ir.Constant(index.type, i))
            row = load_number(context, builder, lanes.vector, signature.args[1], array, here)
            rows += [row] * columns.literal_value
        return context.make_tuple(builder, kind, rows)

    return kind(lanes, array, types.intp, columns), generate


@intrinsic
def add_weighted(
    typing_context: Any, lanes: Any, block: Any, tile: Any, place: Any, shift: Any, weights: Any, weight: Any
) -> Any:
    """Add to row i of the block the vectors from ``tile[place]`` on, less ``shift``, times ``weights[weight + i]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, tile_kind, _, _, weights_kind, _ = signature.args
        _, packed, tile, place, shift, weights, weight = arguments
        vector, columns, W = lanes.vector, block.count // 4, lanes.width
        found = [builder.add(place, ir.Constant(place.type, v * W)) for v in range(columns)]
        row = [builder.fsub(load_vector(context, builder, vector, tile_kind, tile, p), shift) for p in found]
        rows = unpacked(builder, packed)
        for i in range(4):
            here = builder.add(weight, ir.Constant(weight.type, i))
            factor = load_number(context, builder, vector, weights_kind, weights, here)
            for v in range(columns):
                k = i * columns + v
                rows[k] = vector.intrinsic(builder, "fma", factor, row[v], rows[k])
        return context.make_tuple(builder, block_kind, rows)

    return block(lanes, block, tile, types.intp, lanes.vector, weights, types.intp), generate


@intrinsic(prefer_literal=True)
def add_outer(
    typing_context: Any, lanes: Any, block: Any, columns: Any, vectors: Any, place: Any, factors: Any, index: Any,
    step: Any,
) -> Any:  # fmt: skip
    """Add to row i of a block the ``columns`` (a literal) vectors from ``vectors[place]`` on, times one number.

    The number is ``factors[index + i·step]``. There are as many rows as the block has room for.
    """
    across = columns.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, _, vectors_kind, _, factors_kind, _, _ = signature.args
        _, packed, _, vectors, place, factors, index, step = arguments
        vector, rows = lanes.vector, unpacked(builder, packed)
        found = [builder.add(place, ir.Constant(place.type, v * lanes.width)) for v in range(across)]
        row = [load_vector(context, builder, vector, vectors_kind, vectors, p) for p in found]
        for i in range(block.count // across):
            here = builder.add(index, builder.mul(step, ir.Constant(step.type, i)))
            factor = load_number(context, builder, vector, factors_kind, factors, here)
            for v in range(across):
                k = i * across + v
                rows[k] = vector.intrinsic(builder, "fma", factor, row[v], rows[k])
        return context.make_tuple(builder, block_kind, rows)

    i = types.intp
    return block(lanes, block, columns, vectors, i, factors, i, i), generate


@intrinsic(prefer_literal=True)
def store_block(
    typing_context: Any, lanes: Any, array: Any, index: Any, step: Any, block: Any, columns: Any, streaming: Any
) -> Any:
    """Rows of ``columns`` (a literal) vectors, row i of the block to ``array[index + i·step]``.

    With ``streaming`` past the caches, to aligned places.
    """
    across = columns.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, index, step, packed, _, streaming = arguments
        vector, rows, places = lanes.vector, unpacked(builder, packed), []
        for i in range(block.count // across):
            start = builder.add(index, builder.mul(step, ir.Constant(step.type, i)))
            places += [builder.add(start, ir.Constant(start.type, v * lanes.width)) for v in range(across)]
        with builder.if_else(streaming) as (streamed, otherwise):
            for branch, put in ((streamed, stream_vector), (otherwise, store_vector)):
                with branch:
                    for place, value in zip(places, rows, strict=True):
                        put(context, builder, vector, signature.args[1], array, place, value)
        return context.get_dummy_value()

    return types.void(lanes, array, types.intp, types.intp, block, columns, types.boolean), generate


@intrinsic
def add_shifted_products(
    typing_context: Any, lanes: Any, products: Any, sums: Any, left: Any, at_left: Any, left_shift: Any, right: Any,
    at_right: Any, right_shift: Any, stride: Any,
) -> Any:  # fmt: skip
    """(products, sums): to entry (i, j) of a 4×4 block is added l_i r_j, and to entry i of the sums l_i.

    l_i is the vector ``left[at_left + i·stride]`` less entry i of a block, ``left_shift``, and r_j likewise.
    """
    result = types.Tuple((products, sums))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left_kind, right_kind = signature.args[3], signature.args[6]
        _, products, sums, left, at_left, left_shift, right, at_right, right_shift, stride = arguments
        vector = lanes.vector

        def rows(kind: Any, array: Any, start: Any, shift: Any) -> list[Any]:
            starts = [builder.add(start, builder.mul(stride, ir.Constant(stride.type, i))) for i in range(4)]
            loads = [load_vector(context, builder, vector, kind, array, place) for place in starts]
            return [builder.fsub(x, y) for x, y in zip(loads, unpacked(builder, shift)[:4], strict=True)]

        entries, totals = unpacked(builder, products), unpacked(builder, sums)
        one, other = rows(left_kind, left, at_left, left_shift), rows(right_kind, right, at_right, right_shift)
        for i in range(4):
            totals[i] = builder.fadd(totals[i], one[i])
            for j in range(4):
                entries[4 * i + j] = vector.intrinsic(builder, "fma", one[i], other[j], entries[4 * i + j])
        packed = [context.make_tuple(builder, signature.args[1], entries)]
        packed.append(context.make_tuple(builder, signature.args[2], totals))
        return context.make_tuple(builder, result, packed)

    i = types.intp
    return result(lanes, products, sums, left, i, left_shift, right, i, right_shift, i), generate


@intrinsic
def add_products(
    typing_context: Any, lanes: Any, block: Any, left: Any, at_left: Any, down: Any, right: Any, at_right: Any,
    across: Any,
) -> Any:  # fmt: skip
    """Add to entry (i, j) of a 4×4 block the vector ``left[at_left + i·down]`` times ``right[at_right + j·across]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, left_kind, _, _, right_kind, _, _ = signature.args
        _, packed, left, at_left, down, right, at_right, across = arguments
        vector, entries = lanes.vector, unpacked(builder, packed)

        def load(kind: Any, array: Any, start: Any, step: Any, i: int) -> Any:
            place = builder.add(start, builder.mul(step, ir.Constant(step.type, i)))
            return load_vector(context, builder, vector, kind, array, place)

        rows = [load(left_kind, left, at_left, down, i) for i in range(4)]
        for j in range(4):
            column = load(right_kind, right, at_right, across, j)
            for i in range(4):
                entries[4 * i + j] = vector.intrinsic(builder, "fma", rows[i], column, entries[4 * i + j])
        return context.make_tuple(builder, block_kind, entries)

    i = types.intp
    return block(lanes, block, left, i, i, right, i, i), generate


@intrinsic
def add_rows(typing_context: Any, lanes: Any, block: Any, tile: Any, place: Any, stride: Any) -> Any:
    """Add to entry i of a block the vector ``tile[place + i·stride]``, for i < 4."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, tile_kind, _, _ = signature.args
        _, packed, tile, place, stride = arguments
        entries = unpacked(builder, packed)
        for i in range(4):
            here = builder.add(place, builder.mul(stride, ir.Constant(stride.type, i)))
            entries[i] = builder.fadd(entries[i], load_vector(context, builder, lanes.vector, tile_kind, tile, here))
        return context.make_tuple(builder, block_kind, entries)

    return block(lanes, block, tile, types.intp, types.intp), generate


@intrinsic
def add_lane_sums(typing_context: Any, lanes: Any, block: Any, totals: Any, index: Any) -> Any:
    """``totals[index + k] += the sum over the lanes of block[k]``, for a block of 16 and totals in float64.

    W vectors become one by log₂ W rounds that halve their number: the two of a pair exchange half of their lanes and
    are added.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, totals_kind, _ = signature.args
        _, packed, totals, index = arguments
        W = lanes.width
        wide = ir.VectorType(ir.DoubleType(), W)
        every = unpacked(builder, packed)
        for k in range(0, 16, W):
            total = _sums(builder, every[k : k + W])
            if total.type != wide:
                total = builder.fpext(total, wide)
            here = builder.add(index, ir.Constant(index.type, k))
            place = builder.bitcast(address(context, builder, totals_kind, totals, here), wide.as_pointer())
            builder.store(builder.fadd(builder.load(place, align=8), total), place, align=8)
        return context.get_dummy_value()

    return types.void(lanes, block, totals, types.intp), generate


@intrinsic
def add_four(typing_context: Any, totals: Any, index: Any, array: Any, place: Any) -> Any:
    """``totals[index : index + 4] += array[place : place + 4]``, the totals in float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        totals_kind, _, array_kind, _ = signature.args
        totals, index, array, place = arguments
        wide, size = ir.VectorType(ir.DoubleType(), 4), array_kind.dtype.bitwidth // 8
        source = address(context, builder, array_kind, array, place)
        four = ir.VectorType(source.type.pointee, 4)
        numbers = builder.load(builder.bitcast(source, four.as_pointer()), align=size)
        if four != wide:
            numbers = builder.fpext(numbers, wide)
        target = builder.bitcast(address(context, builder, totals_kind, totals, index), wide.as_pointer())
        builder.store(builder.fadd(builder.load(target, align=8), numbers), target, align=8)
        return context.get_dummy_value()

    return types.void(totals, types.intp, array, types.intp), generate


@intrinsic
def lane_sums(typing_context: Any, lanes: Any, array: Any, index: Any) -> Any:
    """The vector whose entry k is the sum of ``array[index + k·W : index + (k + 1)·W]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, index = arguments
        places = [builder.add(index, ir.Constant(index.type, k * lanes.width)) for k in range(lanes.width)]
        rows = [load_vector(context, builder, lanes.vector, signature.args[1], array, p) for p in places]
        return _sums(builder, rows)

    return lanes.vector(lanes, array, types.intp), generate


def _sums(builder: Any, rows: list[Any]) -> Any:
    """From W vectors the vector of their sums."""
    W = len(rows)
    half = W // 2
    while half:
        # Lane l of a pair's result is a sum over the first vector where l & half is 0, over the second elsewhere.
        kept = [lane + (W if lane & half else 0) for lane in range(W)]
        moved = [(lane ^ half) + (W if lane & half else 0) for lane in range(W)]
        masks = [ir.Constant(ir.VectorType(INDEX, W), lanes) for lanes in (kept, moved)]
        count = len(rows) // 2
        pairs = [(rows[i], rows[i + count]) for i in range(count)]
        rows = [builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks)) for a, b in pairs]
        half //= 2
    return rows[0]
