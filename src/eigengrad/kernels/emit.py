"""The instructions of LLVM that intrinsics on vectors are made of.

Each is called while code is generated, with the compiler's context and builder; arrays come with their numba type,
indices are in numbers. Nothing is checked, and negative indices do not wrap.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

__all__ = [
    "INDEX",
    "address",
    "first_lanes",
    "in_every_lane",
    "load_lanes",
    "load_number",
    "load_vector",
    "row_places",
    "store_lanes",
    "store_vector",
    "stream_vector",
    "sums_of_lanes",
    "transposed",
    "unpacked",
]

INDEX = ir.IntType(32)


def in_every_lane(builder: Any, kind: ir.VectorType, x: Any) -> Any:
    """The vector with ``x`` in every lane."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(INDEX, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(INDEX, kind.count), [0] * kind.count))


def address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """The address of ``array[index]``."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _place(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.bitcast(address(context, builder, kind, array, index), vector.llvm.as_pointer())


def load_vector(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any) -> Any:
    """``array[index : index + W]``."""
    return builder.load(_place(context, builder, vector, kind, array, index), align=vector.bytes)


def load_number(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any) -> Any:
    """``array[index]`` in every lane."""
    return in_every_lane(builder, vector.llvm, builder.load(address(context, builder, kind, array, index)))


def store_vector(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any, value: Any) -> None:
    """``array[index : index + W] = value``."""
    builder.store(value, _place(context, builder, vector, kind, array, index), align=vector.bytes)


def stream_vector(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any, value: Any) -> None:
    """Store past the caches, for a result that is larger than they are: its lines are not read before.

    The place must be aligned to the vector.
    """
    place = _place(context, builder, vector, kind, array, index)
    instruction = builder.store(value, place, align=vector.width * vector.bytes)
    instruction.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(INDEX, 1)]))


def first_lanes(builder: Any, vector: Any, count: Any) -> Any:
    """The mask of the first ``count`` lanes."""
    numbers = ir.VectorType(INDEX, vector.width)
    every = in_every_lane(builder, numbers, builder.trunc(count, INDEX))
    return builder.icmp_signed("<", ir.Constant(numbers, list(range(vector.width))), every)


def load_lanes(context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any, mask: Any) -> Any:
    """:func:`load_vector` of the lanes in a mask, zeros in the others; nothing else is read."""
    place = _place(context, builder, vector, kind, array, index)
    return _masked(builder, vector, "load", [place, ir.Constant(INDEX, vector.bytes), mask, vector.constant(0.0)])


def store_lanes(
    context: Any, builder: Any, vector: Any, kind: Any, array: Any, index: Any, value: Any, mask: Any
) -> None:
    """:func:`store_vector` of the lanes in a mask; LLVM makes a plain store of it where they are known to be all."""
    place = _place(context, builder, vector, kind, array, index)
    _masked(builder, vector, "store", [value, place, ir.Constant(INDEX, vector.bytes), mask])


def _masked(builder: Any, vector: Any, operation: str, arguments: list[Any]) -> Any:
    result = vector.llvm if operation == "load" else ir.VoidType()
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    name = f"llvm.masked.{operation}.v{vector.width}f{8 * vector.bytes}.p0"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of W vectors of W, by log₂ W rounds of interleaving row i with row i + W/2."""
    n = len(rows)
    low = ir.Constant(ir.VectorType(INDEX, n), [k // 2 + (k % 2) * n for k in range(n)])
    high = ir.Constant(ir.VectorType(INDEX, n), [n // 2 + k // 2 + (k % 2) * n for k in range(n)])
    for _ in range(n.bit_length() - 1):
        pairs = [(rows[i], rows[i + n // 2]) for i in range(n // 2)]
        rows = [builder.shuffle_vector(a, b, half) for a, b in pairs for half in (low, high)]
    return rows


def sums_of_lanes(builder: Any, rows: list[Any]) -> Any:
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


def row_places(context: Any, builder: Any, lanes: Any, kind: Any, places: Any, first: Any, column: Any) -> list[Any]:
    """``places[first + j] + column`` for j < W."""
    found = []
    for j in range(lanes.width):
        index = builder.add(first, ir.Constant(first.type, j))
        found.append(builder.add(builder.load(address(context, builder, kind, places, index)), column))
    return found


def unpacked(builder: Any, block: Any) -> list[Any]:
    """The vectors of a block (see :mod:`.vector_blocks`)."""
    return [builder.extract_value(block, k) for k in range(len(block.type.elements))]
