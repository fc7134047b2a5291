"""Explicit SIMD vectors for numba: a type that is one LLVM vector, so that a kernel says what runs in parallel.

The compiler's own vectoriser does not see through loops over matrices with data-dependent control flow; here a vector
of W numbers is a value like any other, with operators, and a comparison gives a mask. Kernels are written once: they
take ``lanes``, an empty value whose *type* carries the number type and the width W, and are specialised on it.

    lanes = lanes_of(np.float32(0))         # <16 x float> with AVX-512, <8 x float> with AVX2, <4 x float> elsewhere
    x = load(lanes, array, i)               # array[i : i + W]
    store(array, j, fma(x, splat(lanes, 2.0), x))

Loads and stores are in :mod:`.memory`, transposes in :mod:`.transposes`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from .emit import INDEX, call_function, in_every_lane, shuffle

_LLVM = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
_CONTRACT = ("contract", "nsz")


def _cpu_features() -> set[str]:
    """What this CPU can do, or what NUMBA_CPU_FEATURES and NUMBA_ENABLE_AVX say that it can."""
    chosen = config.CPU_FEATURES
    if chosen is None:
        return {
            name
            for name, there in binding.get_host_cpu_features().items()
            if there and (config.ENABLE_AVX or not name.startswith("avx"))
        }
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
        return call_function(builder, f"llvm.{name}.v{self.width}f{8 * self.bytes}", self.llvm, list(arguments))


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

    def of_one(a: Any) -> Any:
        return result(a) if isinstance(a, kind) else None

    def of_two(a: Any, b: Any) -> Any:
        return result(a) if isinstance(a, kind) and a == b else None

    type_callable(symbol)(lambda context: of_one if arity == 1 else of_two)

    @lower_builtin(symbol, *[kind] * arity)
    def _lowering(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return generate(builder, *arguments)


def _same(kind: Any) -> Any:
    return kind


def _arithmetic(name: str, builder: Any, a: Any, b: Any) -> Any:
    return getattr(builder, name)(a, b, flags=_CONTRACT)


def _comparison(name: str, builder: Any, a: Any, b: Any) -> Any:
    return builder.fcmp_ordered(name, a, b)


for _symbols, _name in (
    ((operator.add, operator.iadd), "fadd"),
    ((operator.sub, operator.isub), "fsub"),
    ((operator.mul, operator.imul), "fmul"),
    ((operator.truediv, operator.itruediv), "fdiv"),
):
    for _symbol in _symbols:
        _operator(_symbol, Vector, 2, _same, functools.partial(_arithmetic, _name))
_operator(operator.neg, Vector, 1, _same, lambda builder, a: builder.fneg(a))
for _symbol, _name in ((operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"), (operator.ge, ">=")):
    _operator(_symbol, Vector, 2, lambda vector: Mask(vector.width), functools.partial(_comparison, _name))
_operator(operator.and_, Mask, 2, _same, lambda builder, a, b: builder.and_(a, b))
_operator(operator.or_, Mask, 2, _same, lambda builder, a, b: builder.or_(a, b))
_operator(operator.invert, Mask, 1, _same, lambda builder, a: builder.not_(a))


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
def iota(typing_context: Any, lanes: Any) -> Any:
    """The vector 0, 1, … W − 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(lanes.vector.llvm, [float(w) for w in range(lanes.width)])

    return lanes.vector(lanes), generate


@intrinsic
def splat(typing_context: Any, lanes: Any, x: Any) -> Any:
    """``x`` in every lane."""
    number = lanes.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = context.cast(builder, arguments[1], signature.args[1], number)
        return in_every_lane(builder, lanes.vector.llvm, x)

    return lanes.vector(lanes, x), generate


@intrinsic
def sqrt(typing_context: Any, a: Any) -> Any:
    """√x, rounded correctly."""
    return a(a), lambda context, builder, signature, arguments: a.intrinsic(builder, "sqrt", *arguments)


@intrinsic
def absolute(typing_context: Any, a: Any) -> Any:
    """|x| in every lane."""
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
def maximum(typing_context: Any, a: Any, b: Any) -> Any:
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
def demote(typing_context: Any, lanes: Any, value: Any) -> Any:
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
def reduce_sum(typing_context: Any, value: Any) -> Any:
    """The sum over the lanes, by halves."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, n = arguments[0], value.width
        while n > 1:
            n //= 2
            x = builder.fadd(shuffle(builder, x, x, range(n)), shuffle(builder, x, x, range(n, 2 * n)))
        return builder.extract_element(x, ir.Constant(INDEX, 0))

    return value.dtype(value), generate


@intrinsic
def rsqrt(typing_context: Any, value: Any) -> Any:
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
def rsqrt_rounded(typing_context: Any, value: Any) -> Any:
    """1/√x to about an ulp, for x > 0 and not denormal: the last step adds a correction, which is more accurate."""

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
    """1/x to an ulp, for x neither zero nor denormal."""
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
    zero, every = ir.Constant(register, [0.0] * n), ir.Constant(mask, -1)
    parts = []
    for start in range(0, vector.width, n):
        part = shuffle(builder, x, x, range(start, start + n))
        parts.append(call_function(builder, name, register, [part, zero, every]))
    while len(parts) > 1:
        joined = range(2 * parts[0].type.count)
        parts = [shuffle(builder, a, b, joined) for a, b in zip(parts[::2], parts[1::2], strict=True)]
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
