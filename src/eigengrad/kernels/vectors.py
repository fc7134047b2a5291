"""Explicit SIMD vectors for numba: a type that is one LLVM vector, so that a kernel says what runs side by side.

The compiler's own vectoriser does not see through loops over matrices with data-dependent control flow; here a vector
of W numbers is a value like any other, with operators, and a comparison gives a mask. Kernels are written once: they
take ``lanes``, an empty value whose *type* carries the number type and the width W, and are specialised on it.

    lanes = lanes_of(np.float32(0))         # <16 x float> with AVX-512, <8 x float> with AVX2, <4 x float> elsewhere
    x = load(lanes, array, i)               # array[i : i + W]
    store(array, j, fma(x, splat(lanes, 2.0), x))
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from .compiled import inner

__all__ = [
    "Lanes",
    "absolute",
    "aligned",
    "any_lane",
    "broadcast",
    "copy_sign",
    "doubled",
    "fma",
    "half_lanes_of",
    "horizontal_sum",
    "lane_numbers",
    "lanes_of",
    "larger",
    "load",
    "load_four",
    "narrow",
    "narrow_lanes_of",
    "power_of_two_inverse",
    "reciprocal",
    "reciprocal_for",
    "reciprocal_root",
    "reciprocal_root_rounded",
    "restore_denormals",
    "root",
    "select",
    "splat",
    "store",
    "store_four",
    "suspend_denormals",
    "transpose",
    "unsigned_zero",
    "width",
]

_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_INDEX = ir.IntType(32)
_CONTRACT = ("contract", "nsz")


def _cpu_features() -> set[str]:
    """What this CPU can do, or what NUMBA_CPU_FEATURES says that it can."""
    chosen = config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()
    return {feature[1:] for feature in chosen.split(",") if feature.startswith("+")}


_FEATURES = _cpu_features()
AVX512 = "avx512f" in _FEATURES and "avx512vl" in _FEATURES
X86 = "sse2" in _FEATURES
BYTES = 64 if AVX512 else 32 if "avx2" in _FEATURES else 16


class Lanes(types.Type):
    """The type of an empty value that says: vectors of ``width`` numbers of type ``dtype``."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")

    @property
    def vector(self) -> Vector:
        """The type of such a vector."""
        return Vector(self.dtype, self.width)


class Vector(types.Type):
    """``width`` numbers of type ``dtype`` in one register, or in a few."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        self.llvm = ir.VectorType(_LLVM[dtype], width)
        self.bytes = 4 if dtype == types.float32 else 8
        super().__init__(name=f"Vector({dtype}, {width})")

    def constant(self, x: float) -> Any:
        """``x`` in every lane."""
        return ir.Constant(self.llvm, [x] * self.width)

    def intrinsic(self, builder: Any, name: str, *arguments: Any) -> Any:
        """Call LLVM's function ``name`` on vectors of this type."""
        suffix = f"v{self.width}f{8 * self.bytes}"
        kind = ir.FunctionType(self.llvm, [a.type for a in arguments])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.{suffix}"), arguments)


class Mask(types.Type):
    """One truth value a lane."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"Mask({width})")


@register_model(Lanes)
class _LanesModel(models.OpaqueModel):
    pass


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.llvm)


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), kind.width))


def _operator(symbol: Any, kind: type, arity: int, result: Any, generate: Any) -> None:
    """Teach numba one operator between values of one ``kind``."""

    @infer_global(symbol)
    class _Typing(AbstractTemplate):
        def generic(self, arguments: Any, _: Any) -> Any:
            if len(arguments) == arity and isinstance(arguments[0], kind) and len(set(arguments)) == 1:
                return signature(result(arguments[0]), *arguments)
            return None

    @lower_builtin(symbol, *[kind] * arity)
    def _lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return generate(builder, *arguments)


for _symbols, _name in (
    ((operator.add, operator.iadd), "fadd"),
    ((operator.sub, operator.isub), "fsub"),
    ((operator.mul, operator.imul), "fmul"),
    ((operator.truediv, operator.itruediv), "fdiv"),
):
    for _symbol in _symbols:
        _operator(
            _symbol,
            Vector,
            2,
            lambda vector: vector,
            lambda builder, a, b, name=_name: getattr(builder, name)(a, b, flags=_CONTRACT),
        )
_operator(operator.neg, Vector, 1, lambda vector: vector, lambda builder, a: builder.fneg(a))
for _symbol, _name in ((operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">=")):
    _operator(
        _symbol,
        Vector,
        2,
        lambda vector: Mask(vector.width),
        lambda builder, a, b, name=_name: builder.fcmp_ordered(name, a, b),
    )
_operator(operator.and_, Mask, 2, lambda mask: mask, lambda builder, a, b: builder.and_(a, b))
_operator(operator.or_, Mask, 2, lambda mask: mask, lambda builder, a, b: builder.or_(a, b))
_operator(operator.invert, Mask, 1, lambda mask: mask, lambda builder, a: builder.not_(a))


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """The address of ``array[index]``, with no check and no wrapping of negative indices."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


def _load(context: Any, builder: Any, vector: Vector, kind: Any, array: Any, index: Any) -> Any:
    place = builder.bitcast(_address(context, builder, kind, array, index), vector.llvm.as_pointer())
    return builder.load(place, align=vector.bytes)


def _store(context: Any, builder: Any, vector: Vector, kind: Any, array: Any, index: Any, value: Any) -> None:
    place = builder.bitcast(_address(context, builder, kind, array, index), vector.llvm.as_pointer())
    builder.store(value, place, align=vector.bytes)


def _splat(builder: Any, kind: ir.VectorType, x: Any) -> Any:
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(_INDEX, kind.count), [0] * kind.count))


def _store_first(builder: Any, vector: Vector, address: Any, value: Any, size: Any) -> None:
    """Store the first ``size`` lanes; LLVM makes a plain store of it where that is a constant and all of them."""
    numbers = ir.VectorType(size.type, vector.width)
    chosen = builder.icmp_signed("<", ir.Constant(numbers, list(range(vector.width))), _splat(builder, numbers, size))
    place = builder.bitcast(address, vector.llvm.as_pointer())
    arguments = [value, place, ir.Constant(_INDEX, vector.bytes), chosen]
    kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
    name = f"llvm.masked.store.v{vector.width}f{8 * vector.bytes}.p0"
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _vectors_of(width: Callable[[Any], int]) -> Any:
    """From a number to vectors of its type, with as many lanes as ``width`` says for it."""

    def lanes_of(typing_context: Any, number: Any) -> Any:
        number = types.unliteral(number)
        lanes = Lanes(number, width(number))
        return lanes(number), lambda context, builder, signature, arguments: context.get_dummy_value()

    return intrinsic(lanes_of)


#: Vectors of the type of a number, of this CPU's width.
lanes_of = _vectors_of(lambda number: BYTES * 8 // number.bitwidth)
#: Vectors of the type of a number, of half this CPU's width.
half_lanes_of = _vectors_of(lambda number: max(2, BYTES * 4 // number.bitwidth))
#: Vectors of the type of a number, with as many lanes as those of float64 have: half a register of float32.
narrow_lanes_of = _vectors_of(lambda number: BYTES // 8)


@intrinsic
def doubled(typing_context: Any, lanes: Any) -> Any:
    """Vectors of twice the width: for chains that wait for each result, which two registers do at once."""
    wide = Lanes(lanes.dtype, 2 * lanes.width)
    return wide(lanes), lambda context, builder, signature, arguments: context.get_dummy_value()


@intrinsic
def width(typing_context: Any, lanes: Any) -> Any:
    """The number of lanes, as a constant."""
    return types.intp(lanes), lambda context, builder, signature, arguments: context.get_constant(
        types.intp, signature.args[0].width
    )


@intrinsic
def lane_numbers(typing_context: Any, lanes: Any) -> Any:
    """0, 1, … W − 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(lanes.vector.llvm, [float(w) for w in range(lanes.width)])

    return lanes.vector(lanes), generate


@intrinsic
def splat(typing_context: Any, lanes: Any, x: Any) -> Any:
    """``x`` in every lane."""
    number = lanes.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = context.cast(builder, arguments[1], signature.args[1], number)
        return _splat(builder, lanes.vector.llvm, x)

    return lanes.vector(lanes, x), generate


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


@intrinsic
def root(typing_context: Any, a: Any) -> Any:
    """The square root."""
    return a(a), lambda context, builder, signature, arguments: a.intrinsic(builder, "sqrt", *arguments)


@intrinsic
def absolute(typing_context: Any, a: Any) -> Any:
    """The absolute value."""
    return a(a), lambda context, builder, signature, arguments: a.intrinsic(builder, "fabs", *arguments)


@intrinsic
def copy_sign(typing_context: Any, a: Any, b: Any) -> Any:
    """The first, with the sign of the second."""
    return a(a, b), lambda context, builder, signature, arguments: a.intrinsic(builder, "copysign", *arguments)


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""
    return a(a, b, c), lambda context, builder, signature, arguments: a.intrinsic(builder, "fma", *arguments)


@intrinsic
def larger(typing_context: Any, a: Any, b: Any) -> Any:
    """The larger of two; the second where the first is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return a(a, b), generate


@intrinsic
def unsigned_zero(typing_context: Any, a: Any) -> Any:
    """The number itself, but +0 for −0: a lane that waits for others turns by no angle, which can flip such a sign."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = a.constant(0.0)
        return builder.select(builder.fcmp_unordered("!=", arguments[0], zero), arguments[0], zero)

    return a(a), generate


@intrinsic
def select(typing_context: Any, mask: Any, a: Any, b: Any) -> Any:
    """The first where the mask holds, else the second."""
    return a(mask, a, b), lambda context, builder, signature, arguments: builder.select(*arguments)


@intrinsic
def narrow(typing_context: Any, lanes: Any, value: Any) -> Any:
    """``value`` in the number type of ``lanes``, which is its own or a smaller one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[1] if value.dtype == lanes.dtype else builder.fptrunc(arguments[1], lanes.vector.llvm)

    return lanes.vector(lanes, value), generate


@intrinsic
def any_lane(typing_context: Any, mask: Any) -> Any:
    """Whether the mask holds in some lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = ir.IntType(mask.width)
        return builder.icmp_unsigned("!=", builder.bitcast(arguments[0], bits), ir.Constant(bits, 0))

    return types.boolean(mask), generate


@intrinsic
def horizontal_sum(typing_context: Any, value: Any) -> Any:
    """The sum over the lanes, by halves."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, n = arguments[0], value.width
        while n > 1:
            n //= 2
            low = ir.Constant(ir.VectorType(_INDEX, n), list(range(n)))
            high = ir.Constant(ir.VectorType(_INDEX, n), list(range(n, 2 * n)))
            x = builder.fadd(builder.shuffle_vector(x, x, low), builder.shuffle_vector(x, x, high))
        return builder.extract_element(x, ir.Constant(_INDEX, 0))

    return value.dtype(value), generate


@intrinsic
def reciprocal_root(typing_context: Any, value: Any) -> Any:
    """1/√x as a product of two factors (y, k), for x > 0 and not denormal.

    With AVX-512: an estimate to 14 bits, improved by Newton steps y ← y (3/2 − x y²/2); the factor of the last step is
    handed out unmultiplied, because in a chain of dependent operations the caller hides its latency behind products.
    Elsewhere y is the correctly rounded quotient and k is 1.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        y, k = _reciprocal_root(builder, value, arguments[0], 1.0)
        return context.make_tuple(builder, signature.return_type, (y, k))

    return types.UniTuple(value, 2)(value), generate


@intrinsic
def reciprocal_root_rounded(typing_context: Any, value: Any) -> Any:
    """1/√x to an ulp, for x > 0 and not denormal: the last step adds a correction, which is more accurate."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        y, k = _reciprocal_root(builder, value, arguments[0], 0.0)
        return value.intrinsic(builder, "fma", y, k, y)

    return value(value), generate


def _reciprocal_root(builder: Any, value: Vector, x: Any, one: float) -> Any:
    """(y, k) such that 1/√x is y·k if ``one`` is 1, and y + y·k if it is 0."""
    if not AVX512:
        y = builder.fdiv(value.constant(1.0), value.intrinsic(builder, "sqrt", x))
        return y, value.constant(one)
    y, half_x = _estimate(builder, value, x, "rsqrt14"), builder.fmul(x, value.constant(0.5))
    for last in (True,) if value.bytes == 4 else (False, True):
        target = value.constant(0.5 + (one if last else 1.0))
        k = value.intrinsic(builder, "fma", builder.fneg(builder.fmul(half_x, y)), y, target)
        y = y if last else builder.fmul(y, k)
    return y, k


def _reciprocal(builder: Any, value: Vector, x: Any, precise: int) -> Any:
    """1/x as precise as numbers of so many bytes: by Newton steps from an estimate to 14 bits, where that is faster."""
    one = value.constant(1.0)
    if not AVX512:
        return builder.fdiv(one, x)
    y = _estimate(builder, value, x, "rcp14")
    for _ in range(precise // 4):
        error = value.intrinsic(builder, "fma", builder.fneg(x), y, one)
        y = value.intrinsic(builder, "fma", y, error, y)
    return y


@intrinsic
def reciprocal(typing_context: Any, value: Any) -> Any:
    """1/x to an ulp or two, for x neither zero nor denormal."""
    return value(value), lambda context, builder, signature, arguments: _reciprocal(
        builder, value, arguments[0], value.bytes
    )


@intrinsic
def reciprocal_for(typing_context: Any, lanes: Any, value: Any) -> Any:
    """:func:`reciprocal` to the precision of ``lanes``, whatever that of x is."""
    return value(lanes, value), lambda context, builder, signature, arguments: _reciprocal(
        builder, value, arguments[1], lanes.vector.bytes
    )


def _estimate(builder: Any, vector: Vector, x: Any, what: str) -> Any:
    """The CPU's 14-bit estimate of 1/√x ("rsqrt14") or 1/x ("rcp14"), register by register."""
    n = min(vector.width, 64 // vector.bytes)
    register, mask = ir.VectorType(_LLVM[vector.dtype], n), ir.IntType(max(8, n))
    letter = "s" if vector.bytes == 4 else "d"
    name = f"llvm.x86.avx512.{what}.p{letter}.{8 * n * vector.bytes}"
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(register, [register, register, mask]), name
    )
    zero, every = ir.Constant(register, [0.0] * n), ir.Constant(mask, -1)
    parts = []
    for start in range(0, vector.width, n):
        lanes = ir.Constant(ir.VectorType(_INDEX, n), list(range(start, start + n)))
        parts.append(builder.call(function, [builder.shuffle_vector(x, x, lanes), zero, every]))
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        joined = ir.Constant(ir.VectorType(_INDEX, count), list(range(count)))
        parts = [builder.shuffle_vector(a, b, joined) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@intrinsic
def power_of_two_inverse(typing_context: Any, value: Any) -> Any:
    """A power of two p with 1 ≤ p·|x| < 4 for normal x; the largest there is for zero and denormal x."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shift, top = (23, 254) if value.bytes == 4 else (52, 2046)
        integers = ir.VectorType(ir.IntType(8 * value.bytes), value.width)

        def constant(exponent: int) -> Any:
            return ir.Constant(integers, [exponent << shift] * value.width)

        exponent = builder.and_(builder.bitcast(arguments[0], integers), constant(top + 1))
        exponent = builder.select(builder.icmp_unsigned(">", exponent, constant(top - 1)), constant(top - 1), exponent)
        return builder.bitcast(builder.sub(constant(top), exponent), value.llvm)

    return value(value), generate


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
def suspend_denormals(typing_context: Any) -> Any:
    """Treat denormal numbers, which are many times slower, as zero; gives what :func:`restore_denormals` takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not X86:
            return ir.Constant(_INDEX, 0)
        slot = cgutils.alloca_once(builder, _INDEX)
        _control_register(builder, "stmxcsr", slot)
        before = builder.load(slot)
        builder.store(builder.or_(before, ir.Constant(_INDEX, 0x8040)), slot)
        _control_register(builder, "ldmxcsr", slot)
        return before

    return types.uint32(), generate


@intrinsic
def restore_denormals(typing_context: Any, before: Any) -> Any:
    """Undo :func:`suspend_denormals`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if X86:
            slot = cgutils.alloca_once(builder, _INDEX)
            builder.store(arguments[0], slot)
            _control_register(builder, "ldmxcsr", slot)
        return context.get_dummy_value()

    return types.void(types.uint32), generate


def _control_register(builder: Any, instruction: str, slot: Any) -> None:
    bytes_pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [bytes_pointer])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{instruction}")
    builder.call(function, [builder.bitcast(slot, bytes_pointer)])


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
