"""Blocks of vectors: products summed in registers.

A block is a tuple of vectors that stay in registers, rows of some; one operation on it stands for as many
instructions, which keeps the kernels short to read and to compile.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .emit import address, load_number, load_vector, shuffle, store_vector, stream_vector, unpacked


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


@intrinsic(prefer_literal=True)
def add_outer(
    typing_context: Any, lanes: Any, block: Any, columns: Any, vectors: Any, place: Any, shift: Any, factors: Any,
    index: Any, step: Any,
) -> Any:  # fmt: skip
    """Add to row i of a block ``columns`` (a literal) vectors from ``vectors[place]`` on, less a shift, times a number.

    The number is ``factors[index + i·step]``; the shift is one vector for all. There are as many rows as the block has
    room for.
    """
    across = columns.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, _, vectors_kind, _, _, factors_kind, _, _ = signature.args
        _, packed, _, vectors, place, shift, factors, index, step = arguments
        vector, rows = lanes.vector, unpacked(builder, packed)
        found = [builder.add(place, ir.Constant(place.type, v * lanes.width)) for v in range(across)]
        row = [builder.fsub(load_vector(context, builder, vector, vectors_kind, vectors, p), shift) for p in found]
        for i in range(block.count // across):
            here = builder.add(index, builder.mul(step, ir.Constant(step.type, i)))
            factor = load_number(context, builder, vector, factors_kind, factors, here)
            for v in range(across):
                k = i * across + v
                rows[k] = vector.intrinsic(builder, "fma", factor, row[v], rows[k])
        return context.make_tuple(builder, block_kind, rows)

    i = types.intp
    return block(lanes, block, columns, vectors, i, lanes.vector, factors, i, i), generate


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
def add_products(
    typing_context: Any, lanes: Any, block: Any, left: Any, at_left: Any, down: Any, left_shift: Any, right: Any,
    at_right: Any, across: Any, right_shift: Any,
) -> Any:  # fmt: skip
    """Add l_i r_j to entry (i, j) of a 4×4 block of products, and l_i to entry 16 + i of a block that has one.

    l_i is the vector ``left[at_left + i·down]`` less entry i of a block, ``left_shift``; r_j is
    ``right[at_right + j·across]`` less entry j of ``right_shift``.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, left_kind, _, _, _, right_kind, _, _, _ = signature.args
        _, packed, left, at_left, down, left_shift, right, at_right, across, right_shift = arguments
        vector, entries = lanes.vector, unpacked(builder, packed)

        def load(kind: Any, array: Any, start: Any, step: Any, shift: Any, i: int) -> Any:
            place = builder.add(start, builder.mul(step, ir.Constant(step.type, i)))
            x = load_vector(context, builder, vector, kind, array, place)
            return builder.fsub(x, builder.extract_value(shift, i))

        rows = [load(left_kind, left, at_left, down, left_shift, i) for i in range(4)]
        for j in range(4):
            column = load(right_kind, right, at_right, across, right_shift, j)
            for i in range(4):
                entries[4 * i + j] = vector.intrinsic(builder, "fma", rows[i], column, entries[4 * i + j])
        for k in range(16, len(entries)):
            entries[k] = builder.fadd(entries[k], rows[k - 16])
        return context.make_tuple(builder, block_kind, entries)

    i = types.intp
    return block(lanes, block, left, i, i, left_shift, right, i, i, right_shift), generate


@intrinsic(prefer_literal=True)
def add_lane_sums(typing_context: Any, lanes: Any, block: Any, first: Any, totals: Any, index: Any) -> Any:
    """``totals[index + k] += the sum over the lanes of block[first + k]``, for k < 16, the totals in float64.

    ``first`` is a literal; where the block ends, zeros are added. W vectors become one by log₂ W rounds that halve
    their number: the two of a pair exchange half of their lanes and are added.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, _, _, totals_kind, _ = signature.args
        _, packed, _, totals, index = arguments
        W = lanes.width
        wide = ir.VectorType(ir.DoubleType(), W)
        every = (unpacked(builder, packed)[first.literal_value :] + [lanes.vector.constant(0.0)] * 16)[:16]
        for k in range(0, 16, W):
            total = _sums(builder, every[k : k + W])
            if total.type != wide:
                total = builder.fpext(total, wide)
            here = builder.add(index, ir.Constant(index.type, k))
            place = builder.bitcast(address(context, builder, totals_kind, totals, here), wide.as_pointer())
            builder.store(builder.fadd(builder.load(place, align=8), total), place, align=8)
        return context.get_dummy_value()

    return types.void(lanes, block, first, totals, types.intp), generate


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
        pairs = list(zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True))
        rows = [builder.fadd(shuffle(builder, a, b, kept), shuffle(builder, a, b, moved)) for a, b in pairs]
        half //= 2
    return rows[0]
