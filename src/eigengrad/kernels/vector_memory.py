"""Vectors in and out of memory: loads and stores, four at a time too, transposes through registers, aligned arrays.

Indices are in numbers, not in vectors. Nothing is checked, and negative indices do not wrap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import inner
from .vectors import _INDEX, Vector, _splat

__all__ = ["aligned", "broadcast", "load", "load_four", "store", "store_four", "store_in_turns", "transpose"]


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """The address of ``array[index]``, with no check and no wrapping of negative indices."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _load(context: Any, builder: Any, vector: Vector, kind: Any, array: Any, index: Any) -> Any:
    place = builder.bitcast(_address(context, builder, kind, array, index), vector.llvm.as_pointer())
    return builder.load(place, align=vector.bytes)


def _store(context: Any, builder: Any, vector: Vector, kind: Any, array: Any, index: Any, value: Any) -> None:
    place = builder.bitcast(_address(context, builder, kind, array, index), vector.llvm.as_pointer())
    builder.store(value, place, align=vector.bytes)


def _store_first(builder: Any, vector: Vector, address: Any, value: Any, size: Any) -> None:
    """Store the first ``size`` lanes; LLVM makes a plain store of it where that is a constant and all of them."""
    numbers = ir.VectorType(size.type, vector.width)
    chosen = builder.icmp_signed("<", ir.Constant(numbers, list(range(vector.width))), _splat(builder, numbers, size))
    place = builder.bitcast(address, vector.llvm.as_pointer())
    arguments = [value, place, ir.Constant(_INDEX, vector.bytes), chosen]
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    name = f"llvm.masked.store.v{vector.width}f{8 * vector.bytes}.p0"
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


@intrinsic
def load(typing_context: Any, lanes: Any, array: Any, index: Any) -> Any:
    """``array[index : index + W]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(context, builder, signature.return_type, signature.args[1], arguments[1], arguments[2])

    return lanes.vector(lanes, array, types.intp), generate


@intrinsic
def broadcast(typing_context: Any, lanes: Any, array: Any, index: Any) -> Any:
    """``array[index]`` in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = builder.load(_address(context, builder, signature.args[1], arguments[1], arguments[2]))
        return _splat(builder, signature.return_type.llvm, x)

    return lanes.vector(lanes, array, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index : index + W] = value``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store(context, builder, signature.args[2], signature.args[0], *arguments)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of W vectors of W, by log₂ W rounds of interleaving row i with row i + W/2."""
    n = len(rows)
    low = ir.Constant(ir.VectorType(_INDEX, n), [k // 2 + (k % 2) * n for k in range(n)])
    high = ir.Constant(ir.VectorType(_INDEX, n), [n // 2 + k // 2 + (k % 2) * n for k in range(n)])
    for _ in range(n.bit_length() - 1):
        pairs = [(rows[i], rows[i + n // 2]) for i in range(n // 2)]
        rows = [builder.shuffle_vector(a, b, half) for a, b in pairs for half in (low, high)]
    return rows


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
                    builder.load(_address(context, builder, kind, base, ir.Constant(index, number))), spacing
                )
            return builder.add(base, builder.mul(spacing, ir.Constant(index, number)))

        rows = [
            _load(context, builder, vector, source_kind, source, offset(start_kind, start, step, w))
            for w in range(lanes.width)
        ]
        for j, row in enumerate(_transposed(builder, rows)):
            address = _address(context, builder, target_kind, target, offset(place_kind, place, stride, j))
            _store_first(builder, vector, address, row, size)
        return context.get_dummy_value()

    offsets = [kind if isinstance(kind, types.Array) else types.intp for kind in (start, place)]
    return types.void(lanes, source, offsets[0], types.intp, target, offsets[1], types.intp, types.intp), generate


@intrinsic
def store_in_turns(typing_context: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """``array[index : index + 4·W]`` = a₀ b₀ c₀ d₀ a₁ b₁ …"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, one, two, three, four = arguments
        W = a.width

        def alternate(x: Any, y: Any, run: int) -> Any:
            """``run`` entries of x, as many of y, and so on."""
            n = x.type.count
            places = [k // (2 * run) * run + k % run + (n if k % (2 * run) >= run else 0) for k in range(2 * n)]
            return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_INDEX, 2 * n), places))

        every = alternate(alternate(one, two, 1), alternate(three, four, 1), 2)
        for k in range(0, 4 * W, W):
            part = builder.shuffle_vector(every, every, ir.Constant(ir.VectorType(_INDEX, W), list(range(k, k + W))))
            here = builder.add(index, ir.Constant(index.type, k))
            _store(context, builder, a, signature.args[0], array, here, part)
        return context.get_dummy_value()

    return types.void(array, types.intp, a, a, a, a), generate


@intrinsic
def _dtype_of(typing_context: Any, lanes: Any) -> Any:
    kind = types.DType(lanes.dtype)
    return kind(lanes), lambda context, builder, signature, arguments: context.get_dummy_value()


@inner
def aligned(lanes: Any, count: int) -> Any:
    """An uninitialised array that starts on a cache line."""
    array = np.empty(count + 16, _dtype_of(lanes))
    start = (-array.ctypes.data % 64) // array.itemsize
    return array[start : start + count]


@inner
def load_four(lanes: Any, array: Any, index: int, step: int) -> Any:
    """The vectors at ``index`` and, three more times, ``step`` further on."""
    return (
        load(lanes, array, index),
        load(lanes, array, index + step),
        load(lanes, array, index + 2 * step),
        load(lanes, array, index + 3 * step),
    )


@inner
def store_four(array: Any, index: int, step: int, values: Any) -> None:
    """Undo :func:`load_four`."""
    store(array, index, values[0])
    store(array, index + step, values[1])
    store(array, index + 2 * step, values[2])
    store(array, index + 3 * step, values[3])
