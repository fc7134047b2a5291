"""The instructions of LLVM that intrinsics on vectors are made of.

Each is called while code is generated, with the compiler's context and builder; arrays come with their numba type,
indices are in numbers. Nothing is checked, and negative indices do not wrap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llvmlite import ir

INDEX = ir.IntType(32)


def call_function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """Call a function of LLVM's by its name, which is declared if it is not yet."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in arguments]), name)
    return builder.call(function, arguments)


def in_every_lane(builder: Any, kind: ir.VectorType, x: Any) -> Any:
    """The vector with ``x`` in every lane."""
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(INDEX, 0))
    return shuffle(builder, first, first, [0] * kind.count)


def shuffle(builder: Any, a: Any, b: Any, lanes: Iterable[int]) -> Any:
    """The vector of the numbered lanes of two, those of ``b`` counted on from those of ``a``."""
    places = list(lanes)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(INDEX, len(places)), places))


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
    return call_function(builder, f"llvm.masked.{operation}.v{vector.width}f{8 * vector.bytes}.p0", result, arguments)


def unpacked(builder: Any, block: Any) -> list[Any]:
    """The vectors of a block (see :mod:`.blocks`)."""
    return [builder.extract_value(block, k) for k in range(len(block.type.elements))]
