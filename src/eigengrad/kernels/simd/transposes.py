"""Transposes of blocks of at most W×W numbers, through registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..runtime.compile import inline
from .emit import address, first_lanes, load_lanes, shuffle, store_lanes, stream_vector
from .vectors import splat, width

__all__ = ["transpose", "transpose_block"]


@inline
def transpose(
    lanes: Any, source: Any, start: Any, step: int, target: Any, place: Any, stride: int, height: int, count: int
) -> None:
    """``target[place + j·stride + w] = source[start + w·step + j]`` for w < ``height`` and j < ``count``, up to W.

    ``start`` may be an array with W offsets, and then ``step`` is added to each; so may ``place``, with ``stride``.
    Nothing else is read or written.
    """
    none = splat(lanes, 0.0)
    transpose_block(lanes, source, start, step, none, target, place, stride, height, count, width(lanes) < 0)


@intrinsic
def transpose_block(
    typing_context: Any, lanes: Any, source: Any, start: Any, step: Any, shift: Any, target: Any, place: Any,
    stride: Any, height: Any, count: Any, streaming: Any,
) -> Any:  # fmt: skip
    """:func:`transpose` of the source less a shift, a number for each of its columns.

    With ``streaming``, whole blocks go past the caches, to aligned places. Where ``height`` and ``count`` are known to
    be W, LLVM makes plain loads and stores.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source_kind, start_kind, _, _, target_kind, place_kind, _, _, _, _ = signature.args
        _, source, start, step, shift, target, place, stride, height, count, streaming = arguments
        vector, index, W = lanes.vector, step.type, lanes.width

        def offset(kind: Any, base: Any, spacing: Any, number: Any) -> Any:
            if isinstance(kind, types.Array):
                return builder.add(builder.load(address(context, builder, kind, base, number)), spacing)
            return builder.add(base, builder.mul(spacing, number))

        def below(number: int, bound: Any) -> Any:
            return builder.icmp_signed("<", ir.Constant(index, number), bound)

        last, mask = builder.sub(height, ir.Constant(index, 1)), first_lanes(builder, vector, count)
        rows = []
        for w in range(W):
            row = builder.select(below(w, height), ir.Constant(index, w), last)  # beyond the last one, it once more
            here = offset(start_kind, start, step, row)
            rows.append(builder.fsub(load_lanes(context, builder, vector, source_kind, source, here, mask), shift))
        rows = _transposed(builder, rows)
        places = [offset(place_kind, place, stride, ir.Constant(index, j)) for j in range(W)]
        whole = builder.and_(below(W - 1, height), below(W - 1, count))
        with builder.if_else(builder.and_(whole, streaming)) as (streamed, otherwise):
            with streamed:
                for here, row in zip(places, rows, strict=True):
                    stream_vector(context, builder, vector, target_kind, target, here, row)
            with otherwise:
                mask = first_lanes(builder, vector, height)
                none = ir.Constant(mask.type, [0] * W)
                for j, (here, row) in enumerate(zip(places, rows, strict=True)):
                    chosen = builder.select(below(j, count), mask, none)
                    store_lanes(context, builder, vector, target_kind, target, here, row, chosen)
        return context.get_dummy_value()

    i = types.intp
    offsets = [kind if isinstance(kind, types.Array) else i for kind in (start, place)]
    signature = lanes, source, offsets[0], i, lanes.vector, target, offsets[1], i, i, i, types.boolean
    return types.void(*signature), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of W vectors of W, by log₂ W rounds of interleaving row i with row i + W/2."""
    n = len(rows)
    low = [k // 2 + (k % 2) * n for k in range(n)]
    high = [n // 2 + lane for lane in low]
    for _ in range(n.bit_length() - 1):
        pairs = [(rows[i], rows[i + n // 2]) for i in range(n // 2)]
        rows = [shuffle(builder, a, b, half) for a, b in pairs for half in (low, high)]
    return rows
