"""Vectors in and out of memory: loads and stores, of parts and of four at a time too, prefetching, and aligned arrays.

Indices are in numbers, not in vectors. Nothing is checked, and negative indices do not wrap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..runtime.compile import device_function
from . import emit
from .vectors import X86


@intrinsic
def load(typing_context: Any, lanes: Any, array: Any, index: Any) -> Any:
    """``array[index : index + W]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit.load_vector(context, builder, signature.return_type, signature.args[1], arguments[1], arguments[2])

    return lanes.vector(lanes, array, types.intp), generate


@intrinsic
def broadcast(typing_context: Any, lanes: Any, array: Any, index: Any) -> Any:
    """``array[index]`` in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit.load_number(context, builder, signature.return_type, signature.args[1], arguments[1], arguments[2])

    return lanes.vector(lanes, array, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index : index + W] = value``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        emit.store_vector(context, builder, signature.args[2], signature.args[0], *arguments)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


@intrinsic
def load_n(typing_context: Any, lanes: Any, array: Any, index: Any, count: Any) -> Any:
    """``array[index : index + count]`` for a count below W, then zeros; nothing else is read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mask = emit.first_lanes(builder, lanes.vector, arguments[3])
        return emit.load_lanes(context, builder, lanes.vector, signature.args[1], arguments[1], arguments[2], mask)

    return lanes.vector(lanes, array, types.intp, types.intp), generate


@intrinsic
def store_n(typing_context: Any, array: Any, index: Any, value: Any, count: Any) -> Any:
    """``array[index : index + count] = value[:count]`` for a count below W."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, vector, count = arguments
        mask = emit.first_lanes(builder, value, count)
        emit.store_lanes(context, builder, value, signature.args[0], array, index, vector, mask)
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), generate


@intrinsic
def finish_streaming(typing_context: Any) -> Any:
    """Wait until streamed stores can be seen by other threads."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            emit.call_function(builder, "llvm.x86.sse.sfence", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _prefetch_line(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``, in order to read it soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        place = builder.bitcast(emit.address(context, builder, signature.args[0], *arguments), pointer)
        options = [emit.INDEX(number) for number in (0, 2, 1)]  # to read, into the second-level cache, data
        emit.call_function(builder, "llvm.prefetch.p0", ir.VoidType(), [place, *options])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@device_function
def prefetch(array: Any, begin: int, end: int) -> None:
    """Ask for the cache lines of ``array[begin:end]``: the CPU itself foresees only what is read in order."""
    for i in range(begin, end, 64 // array.itemsize):
        _prefetch_line(array, i)


@intrinsic
def store_interleaved(typing_context: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """``array[index : index + 4·W]`` = a₀ b₀ c₀ d₀ a₁ b₁ …"""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, index, one, two, three, four = arguments
        W = a.width

        def alternate(x: Any, y: Any, run: int) -> Any:
            """``run`` entries of x, as many of y, and so on."""
            n = x.type.count
            places = [k // (2 * run) * run + k % run + (n if k % (2 * run) >= run else 0) for k in range(2 * n)]
            return emit.shuffle(builder, x, y, places)

        every = alternate(alternate(one, two, 1), alternate(three, four, 1), 2)
        for k in range(0, 4 * W, W):
            here, part = (
                builder.add(index, ir.Constant(index.type, k)),
                emit.shuffle(builder, every, every, range(k, k + W)),
            )
            emit.store_vector(context, builder, a, signature.args[0], array, here, part)
        return context.get_dummy_value()

    return types.void(array, types.intp, a, a, a, a), generate


@intrinsic
def dtype_of(typing_context: Any, lanes: Any) -> Any:
    """The type of numbers that the lanes hold, as NumPy has it."""
    kind = types.DType(lanes.dtype)
    return kind(lanes), lambda context, builder, signature, arguments: context.get_dummy_value()


@device_function
def aligned(lanes: Any, count: int) -> Any:
    """An uninitialised array that starts on a cache line."""
    array = np.empty(count + 16, dtype_of(lanes))
    start = (-array.ctypes.data % 64) // array.itemsize
    return array[start : start + count]


@device_function
def load_four(lanes: Any, array: Any, index: int, step: int) -> Any:
    """The vectors at ``index`` and, three more times, ``step`` further on."""
    return (
        load(lanes, array, index),
        load(lanes, array, index + step),
        load(lanes, array, index + 2 * step),
        load(lanes, array, index + 3 * step),
    )


@device_function
def store_four(array: Any, index: int, step: int, values: Any) -> None:
    """Undo :func:`load_four`."""
    store(array, index, values[0])
    store(array, index + step, values[1])
    store(array, index + 2 * step, values[2])
    store(array, index + 3 * step, values[3])
