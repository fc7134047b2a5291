"""Transposes of W×W blocks, through registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .emit import INDEX, address, first_lanes, load_lanes, load_vector, store_lanes, store_vector, stream_vector

__all__ = ["transpose", "transpose_from", "transpose_onto"]


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of W vectors of W, by log₂ W rounds of interleaving row i with row i + W/2."""
    n = len(rows)
    low = ir.Constant(ir.VectorType(INDEX, n), [k // 2 + (k % 2) * n for k in range(n)])
    high = ir.Constant(ir.VectorType(INDEX, n), [n // 2 + k // 2 + (k % 2) * n for k in range(n)])
    for _ in range(n.bit_length() - 1):
        pairs = [(rows[i], rows[i + n // 2]) for i in range(n // 2)]
        rows = [builder.shuffle_vector(a, b, half) for a, b in pairs for half in (low, high)]
    return rows


def _row_places(context: Any, builder: Any, lanes: Any, kind: Any, places: Any, first: Any, column: Any) -> list[Any]:
    """``places[first + j] + column`` for j < W."""
    found = []
    for j in range(lanes.width):
        index = builder.add(first, ir.Constant(first.type, j))
        found.append(builder.add(builder.load(address(context, builder, kind, places, index)), column))
    return found


@intrinsic
def transpose(
    typing_context: Any, lanes: Any, source: Any, start: Any, step: Any, target: Any, place: Any, stride: Any, size: Any
) -> Any:
    """``target[place + j·stride + w] = source[start + w·step + j]`` for j < W and w < ``size`` ≤ W, through registers.

    ``start`` may be an array with W offsets, and then ``step`` is added to each; so may ``place``, with ``stride``.
    All W×W entries of the source are read.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source_kind, start_kind, _, target_kind, place_kind, _, _ = signature.args
        _, source, start, step, target, place, stride, size = arguments
        vector, index = lanes.vector, step.type

        def offset(kind: Any, base: Any, spacing: Any, number: int) -> Any:
            if isinstance(kind, types.Array):
                return builder.add(
                    builder.load(address(context, builder, kind, base, ir.Constant(index, number))), spacing
                )
            return builder.add(base, builder.mul(spacing, ir.Constant(index, number)))

        rows = [
            load_vector(context, builder, vector, source_kind, source, offset(start_kind, start, step, w))
            for w in range(lanes.width)
        ]
        mask = first_lanes(builder, vector, size)
        for j, row in enumerate(_transposed(builder, rows)):
            store_lanes(context, builder, vector, target_kind, target, offset(place_kind, place, stride, j), row, mask)
        return context.get_dummy_value()

    offsets = [kind if isinstance(kind, types.Array) else types.intp for kind in (start, place)]
    return types.void(lanes, source, offsets[0], types.intp, target, offsets[1], types.intp, types.intp), generate


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
        mask = first_lanes(builder, vector, count)
        for w in range(lanes.width):
            rows.append(builder.fsub(load_lanes(context, builder, vector, source_kind, source, index, mask), shift))
            further = builder.icmp_signed("<", ir.Constant(height.type, w + 1), height)
            index = builder.select(further, builder.add(index, step), index)
        found = _row_places(context, builder, lanes, places_kind, places, first, column)
        for place, row in zip(found, _transposed(builder, rows), strict=True):
            store_vector(context, builder, vector, target_kind, target, place, row)
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
        rows = _transposed(builder, [load_vector(context, builder, vector, source_kind, source, p) for p in found])
        indices = [builder.add(start, builder.mul(step, ir.Constant(step.type, w))) for w in range(W)]
        full = builder.and_(
            builder.icmp_signed(">=", height, ir.Constant(height.type, W)),
            builder.icmp_signed(">=", count, ir.Constant(count.type, W)),
        )
        with builder.if_else(builder.and_(full, streaming)) as (streamed, otherwise):
            with streamed:
                for index, row in zip(indices, rows, strict=True):
                    stream_vector(context, builder, vector, target_kind, target, index, row)
            with otherwise:
                mask = first_lanes(builder, vector, count)
                none = ir.Constant(ir.VectorType(ir.IntType(1), W), [0] * W)
                for w, (index, row) in enumerate(zip(indices, rows, strict=True)):
                    present = builder.icmp_signed("<", ir.Constant(height.type, w), height)
                    chosen = builder.select(present, mask, none)
                    store_lanes(context, builder, vector, target_kind, target, index, row, chosen)
        return context.get_dummy_value()

    i = types.intp
    return types.void(lanes, source, places, i, i, target, i, i, i, i, types.boolean), generate
