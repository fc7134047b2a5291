"""Blocks of vectors: products summed in registers, transposes, parts of vectors, stores past the caches.

What the kernels on feature maps need beyond :mod:`.vectors`. A block is a tuple of vectors that stay in registers, four
rows of some; one operation on it stands for as many instructions, which keeps the kernels short to read and to compile.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vector_memory import _address, _load, _store, _transposed
from .vectors import X86, _splat

__all__ = [
    "add_four",
    "add_lane_sums",
    "add_outer",
    "add_products",
    "add_rows",
    "add_shifted_products",
    "add_weighted",
    "block_of_rows",
    "finish_streaming",
    "lane_sums",
    "load_part",
    "store_block",
    "store_part",
    "transpose_from",
    "transpose_onto",
    "zero_block",
]

_INDEX = ir.IntType(32)
_BIT = ir.IntType(1)


def _first_lanes(builder: Any, vector: Any, count: Any) -> Any:
    """The mask of the first ``count`` lanes."""
    numbers = ir.VectorType(_INDEX, vector.width)
    count = builder.trunc(count, _INDEX)
    first = builder.insert_element(ir.Constant(numbers, ir.Undefined), count, ir.Constant(_INDEX, 0))
    every = builder.shuffle_vector(first, first, ir.Constant(numbers, [0] * vector.width))
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(vector.width))), every)


def _masked(builder: Any, vector: Any, operation: str, arguments: list[Any]) -> Any:
    """Call LLVM's masked load or store; the mask is the last but one of a load's arguments, the last of a store's."""
    result = vector.llvm if operation == "load" else ir.VoidType()
    kind = ir.FunctionType(result, [a.type for a in arguments])
    name = f"llvm.masked.{operation}.v{vector.width}f{8 * vector.bytes}.p0"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _place(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.bitcast(_address(context, builder, kind, array, index), vector.llvm.as_pointer())


def _load_part(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any, mask: Any) -> Any:
    place = _place(context, builder, vector, kind, array, index)
    arguments = [place, ir.Constant(_INDEX, vector.bytes), mask, vector.constant(0.0)]
    return _masked(builder, vector, "load", arguments)


def _store_part(
    context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any, value: Any, mask: Any
) -> None:
    place = _place(context, builder, vector, kind, array, index)
    _masked(builder, vector, "store", [value, place, ir.Constant(_INDEX, vector.bytes), mask])


@intrinsic
def load_part(typing_context: Any, lanes: Any, array: Any, index: Any, count: Any) -> Any:
    """``array[index : index + count]`` for a count below W, then zeros; nothing else is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mask = _first_lanes(builder, lanes.vector, arguments[3])
        return _load_part(context, builder, lanes.vector, signature.args[1], arguments[1], arguments[2], mask)

    return lanes.vector(lanes, array, types.intp, types.intp), generate


@intrinsic
def store_part(typing_context: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """``array[index : index + count] = value[:count]`` for a count below W."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, vector, count = arguments
        mask = _first_lanes(builder, value, count)
        _store_part(context, builder, value, signature.args[0], array, index, vector, mask)
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), generate


def _stream(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any, value: Any) -> None:
    """Store past the caches, for a result that is larger than they are: its lines are not read before.

    The place must be aligned to the vector.
    """
    place = _place(context, builder, vector, kind, array, index)
    instruction = builder.store(value, place, align=vector.width * vector.bytes)
    instruction.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(_INDEX, 1)]))


@intrinsic
def finish_streaming(typing_context: Any) -> Any:
    """Wait until streamed stores can be seen by other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse.sfence"), [])
        return context.get_dummy_value()

    return types.void(), generate


def _row_places(context: Any, builder: Any, lanes: Any, kind: Any, places: Any, first: Any, column: Any) -> list[Any]:
    """``places[first + j] + column`` for j < W."""
    found = []
    for j in range(lanes.width):
        index = builder.add(first, ir.Constant(first.type, j))
        found.append(builder.add(builder.load(_address(context, builder, kind, places, index)), column))
    return found


@intrinsic
def transpose_from(
    typing_context: Any, lanes: Any, source: Any, start: Any, step: Any, shift: Any, target: Any, places: Any,
    first: Any, column: Any, height: Any, count: Any,
) -> Any:  # fmt: skip
    """``target[places[first + j] + column + w] = source[start + w·step + j] − shift[j]`` for j, w < W, in registers.

    ``shift`` is a vector. Only w < height and j < count are read; what is there instead is any finite number or copy.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source_kind, _, _, _, target_kind, places_kind, _, _, _, _ = signature.args
        _, source, start, step, shift, target, places, first, column, height, count = arguments
        vector, rows, index = lanes.vector, [], start
        mask = _first_lanes(builder, vector, count)
        for w in range(lanes.width):
            rows.append(builder.fsub(_load_part(context, builder, vector, source_kind, source, index, mask), shift))
            further = builder.icmp_signed("<", ir.Constant(height.type, w + 1), height)
            index = builder.select(further, builder.add(index, step), index)
        found = _row_places(context, builder, lanes, places_kind, places, first, column)
        for place, row in zip(found, _transposed(builder, rows), strict=True):
            _store(context, builder, vector, target_kind, target, place, row)
        return context.get_dummy_value()

    i = types.intp
    return types.void(lanes, source, i, i, lanes.vector, target, places, i, i, i, i), generate


@intrinsic
def transpose_onto(
    typing_context: Any, lanes: Any, source: Any, places: Any, first: Any, column: Any, target: Any, start: Any,
    step: Any, height: Any, count: Any, streaming: Any,
) -> Any:  # fmt: skip
    """``target[start + w·step + j] = source[places[first + j] + column + w]`` for w < height and j < count, up to W.

    With ``streaming``, whole blocks go past the caches, and must be aligned.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source_kind, places_kind, _, _, target_kind, _, _, _, _, _ = signature.args
        _, source, places, first, column, target, start, step, height, count, streaming = arguments
        vector, W = lanes.vector, lanes.width
        found = _row_places(context, builder, lanes, places_kind, places, first, column)
        rows = _transposed(builder, [_load(context, builder, vector, source_kind, source, p) for p in found])
        indices = [builder.add(start, builder.mul(step, ir.Constant(step.type, w))) for w in range(W)]
        full = builder.and_(
            builder.icmp_signed(">=", height, ir.Constant(height.type, W)),
            builder.icmp_signed(">=", count, ir.Constant(count.type, W)),
        )
        with builder.if_else(builder.and_(full, streaming)) as (streamed, otherwise):
            with streamed:
                for index, row in zip(indices, rows, strict=True):
                    _stream(context, builder, vector, target_kind, target, index, row)
            with otherwise:
                mask = _first_lanes(builder, vector, count)
                none = ir.Constant(ir.VectorType(_BIT, W), [0] * W)
                for w, (index, row) in enumerate(zip(indices, rows, strict=True)):
                    present = builder.icmp_signed("<", ir.Constant(height.type, w), height)
                    chosen = builder.select(present, mask, none)
                    _store_part(context, builder, vector, target_kind, target, index, row, chosen)
        return context.get_dummy_value()

    i = types.intp
    return types.void(lanes, source, places, i, i, target, i, i, i, i, types.boolean), generate


def _vectors(builder: Any, block: Any) -> list[Any]:
    return [builder.extract_value(block, k) for k in range(len(block.type.elements))]


@intrinsic
def zero_block(typing_context: Any, lanes: Any) -> Any:
    """16 vectors of zeros."""
    kind = types.UniTuple(lanes.vector, 16)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_tuple(builder, kind, [lanes.vector.constant(0.0)] * 16)

    return kind(lanes), generate


@intrinsic(prefer_literal=True)
def block_of_rows(typing_context: Any, lanes: Any, array: Any, index: Any, columns: Any) -> Any:
    """Four rows of ``columns`` vectors (a literal); row i has ``array[index + i]`` in every lane."""
    kind = types.UniTuple(lanes.vector, 4 * columns.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, index, _ = arguments
        rows = []
        for i in range(4):
            here = builder.add(index, ir.Constant(index.type, i))
            number = builder.load(_address(context, builder, signature.args[1], array, here))
            rows += [_splat(builder, lanes.vector.llvm, number)] * columns.literal_value
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
        row = [builder.fsub(_load(context, builder, vector, tile_kind, tile, p), shift) for p in found]
        rows = _vectors(builder, packed)
        for i in range(4):
            here = builder.add(weight, ir.Constant(weight.type, i))
            factor = _splat(builder, vector.llvm, builder.load(_address(context, builder, weights_kind, weights, here)))
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
        vector, rows = lanes.vector, _vectors(builder, packed)
        found = [builder.add(place, ir.Constant(place.type, v * lanes.width)) for v in range(across)]
        row = [_load(context, builder, vector, vectors_kind, vectors, p) for p in found]
        for i in range(block.count // across):
            here = builder.add(index, builder.mul(step, ir.Constant(step.type, i)))
            factor = _splat(builder, vector.llvm, builder.load(_address(context, builder, factors_kind, factors, here)))
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
        vector, rows, places = lanes.vector, _vectors(builder, packed), []
        for i in range(block.count // across):
            start = builder.add(index, builder.mul(step, ir.Constant(step.type, i)))
            places += [builder.add(start, ir.Constant(start.type, v * lanes.width)) for v in range(across)]
        with builder.if_else(streaming) as (streamed, otherwise):
            for branch, put in ((streamed, _stream), (otherwise, _store)):
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
            loads = [_load(context, builder, vector, kind, array, place) for place in starts]
            return [builder.fsub(x, y) for x, y in zip(loads, _vectors(builder, shift)[:4], strict=True)]

        entries, totals = _vectors(builder, products), _vectors(builder, sums)
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
def add_products(typing_context: Any, lanes: Any, block: Any, tile: Any, left: Any, right: Any, stride: Any) -> Any:
    """Add to entry (i, j) of a 4×4 block the vector ``tile[left + i·stride]`` times ``tile[right + j·stride]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, tile_kind, _, _, _ = signature.args
        _, packed, tile, left, right, stride = arguments
        vector = lanes.vector
        entries = _vectors(builder, packed)

        def row(start: Any, i: int) -> Any:
            place = builder.add(start, builder.mul(stride, ir.Constant(stride.type, i)))
            return _load(context, builder, vector, tile_kind, tile, place)

        rows = [row(left, i) for i in range(4)]
        for j in range(4):
            column = row(right, j)
            for i in range(4):
                entries[4 * i + j] = vector.intrinsic(builder, "fma", rows[i], column, entries[4 * i + j])
        return context.make_tuple(builder, block_kind, entries)

    return block(lanes, block, tile, types.intp, types.intp, types.intp), generate


@intrinsic
def add_rows(typing_context: Any, lanes: Any, block: Any, tile: Any, place: Any, stride: Any) -> Any:
    """Add to entry i of a block the vector ``tile[place + i·stride]``, for i < 4."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, block_kind, tile_kind, _, _ = signature.args
        _, packed, tile, place, stride = arguments
        entries = _vectors(builder, packed)
        for i in range(4):
            here = builder.add(place, builder.mul(stride, ir.Constant(stride.type, i)))
            entries[i] = builder.fadd(entries[i], _load(context, builder, lanes.vector, tile_kind, tile, here))
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
        every = _vectors(builder, packed)
        for k in range(0, 16, W):
            total = _sums(builder, every[k : k + W])
            if total.type != wide:
                total = builder.fpext(total, wide)
            here = builder.add(index, ir.Constant(index.type, k))
            place = builder.bitcast(_address(context, builder, totals_kind, totals, here), wide.as_pointer())
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
        source = _address(context, builder, array_kind, array, place)
        four = ir.VectorType(source.type.pointee, 4)
        numbers = builder.load(builder.bitcast(source, four.as_pointer()), align=size)
        if four != wide:
            numbers = builder.fpext(numbers, wide)
        target = builder.bitcast(_address(context, builder, totals_kind, totals, index), wide.as_pointer())
        builder.store(builder.fadd(builder.load(target, align=8), numbers), target, align=8)
        return context.get_dummy_value()

    return types.void(totals, types.intp, array, types.intp), generate


@intrinsic
def lane_sums(typing_context: Any, lanes: Any, array: Any, index: Any) -> Any:
    """The vector whose entry k is the sum of ``array[index + k·W : index + (k + 1)·W]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, array, index = arguments
        places = [builder.add(index, ir.Constant(index.type, k * lanes.width)) for k in range(lanes.width)]
        return _sums(builder, [_load(context, builder, lanes.vector, signature.args[1], array, p) for p in places])

    return lanes.vector(lanes, array, types.intp), generate


def _sums(builder: Any, rows: list[Any]) -> Any:
    """From W vectors the vector of their sums."""
    W = len(rows)
    half = W // 2
    while half:
        # Lane l of a pair's result is a sum over the first vector where l & half is 0, over the second elsewhere.
        kept = [lane + (W if lane & half else 0) for lane in range(W)]
        moved = [(lane ^ half) + (W if lane & half else 0) for lane in range(W)]
        masks = [ir.Constant(ir.VectorType(_INDEX, W), lanes) for lanes in (kept, moved)]
        count = len(rows) // 2
        pairs = [(rows[i], rows[i + count]) for i in range(count)]
        rows = [builder.fadd(*(builder.shuffle_vector(a, b, mask) for mask in masks)) for a, b in pairs]
        half //= 2
    return rows[0]
