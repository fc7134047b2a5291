"""Backward passes of ``eigh`` and of matrix roots for n ≤ 64, a matrix a program, with no result in between in memory.

rule_vjp        gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ,  X = Vᵀ gV
function_vjp    gA = V [F ∘ (Vᵀ E V)] Vᵀ,  E the symmetric part of G
                F_ij = 1/(p_i + p_j), or −1/(p_i p_j (p_i + p_j)) of the inverse root, with p = √λ

For n ≤ 32 everything is in registers. Above, products of whole blocks would not fit there: their factors come from
memory, some columns at a time, and OUT, a matrix that is in the cache, holds what is between two products.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import machine_epsilon, product
from .rules import RULES, magnitudes, measures

__all__ = ["FUNCTIONS", "RULES", "function_vjp", "rule_vjp"]

#: Numbers that stand for the matrix functions in calls of kernels.
FUNCTIONS = {"sqrt": 0, "inv_sqrt": 1}
_INVERSE = tl.constexpr(FUNCTIONS["inv_sqrt"])
_IN_REGISTERS = tl.constexpr(32)  # the largest N whose products are
_COLUMNS = tl.constexpr(16)  # of a factor at a time; the least that tl.dot takes


@triton.jit
def _product_in_memory(A, a_row, a_column, B, b_row, b_column, n, N: tl.constexpr):
    """A B of matrices in memory with these strides, n × n, padded to N."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    dtype: tl.constexpr = A.dtype.element_ty
    out = tl.zeros([N, N], dtype)
    for start in range(0, N, _COLUMNS):
        k = start + tl.arange(0, _COLUMNS)
        a = tl.load(A + i * a_row + k[None, :] * a_column, mask=(i < n) & (k[None, :] < n), other=0.0)
        b = tl.load(B + k[:, None] * b_row + j * b_column, mask=(k[:, None] < n) & (j < n), other=0.0)
        out = tl.dot(a, b, out, input_precision="ieee", out_dtype=dtype)
    return out


@triton.jit
def _write(OUT, block, n, i, j):
    """Put a block into a contiguous matrix, between what all threads read of it before and after."""
    tl.debug_barrier()
    tl.store(OUT + i * n + j, block, mask=(i < n) & (j < n))
    tl.debug_barrier()


@triton.jit
def _conjugated(V, v_row, v_column, v, block, OUT, n, i, j, N: tl.constexpr):
    """V B Vᵀ for a block B: in registers with the block ``v`` of V, or through memory if N is large."""
    if N <= _IN_REGISTERS:
        return product(product(v, block), tl.trans(v))
    else:
        _write(OUT, block, n, i, j)
        half = _product_in_memory(V, v_row, v_column, OUT, n, 1, n, N)
        _write(OUT, half, n, i, j)
        whole = _product_in_memory(OUT, n, 1, V, v_column, v_row, n, N)
        tl.debug_barrier()
        return whole


@triton.jit
def rule_vjp(
    L, V, GL, GV, OUT, n, v_matrix, v_row, v_column, g_matrix, g_row, g_column, RULE: tl.constexpr, first: tl.constexpr,
    second: tl.constexpr, LIFT: tl.constexpr, HAS_GL: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """The gradient of A by a gradient rule.

    Args:
        L, GL: (batch, n), contiguous; GL is not read unless HAS_GL.
        V, GV: (batch, n, n), with any strides.
        OUT: (batch, n, n), contiguous.
        n: at most N, a power of two.
        RULE, first, second: see :func:`.rules.magnitudes`.
        LIFT: matrices smaller than 2^−LIFT are multiplied by 2^LIFT first, see ``gradients.lift``; 0 for never.
    """
    matrix = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, N)
    i, j, inside = k[:, None], k[None, :], k < n
    pairs = (i < n) & (j < n) & (i != j)
    V += matrix * v_matrix
    GV += matrix * g_matrix
    OUT += matrix * n * n
    values = tl.load(L + matrix * n + k, mask=inside, other=0.0)
    dtype: tl.constexpr = values.dtype
    factor = tl.full((), 1.0, dtype)
    if LIFT > 0:
        largest = tl.max(tl.where(inside, tl.abs(values), 0.0))
        factor = tl.where((largest > 0) & (largest < 2.0**-LIFT), 2.0**LIFT, 1.0).to(dtype)
        values = values * factor
    if N <= _IN_REGISTERS:
        v = tl.load(V + i * v_row + j * v_column, mask=(i < n) & (j < n), other=0.0)
        g = tl.load(GV + i * g_row + j * g_column, mask=(i < n) & (j < n), other=0.0)
        x = product(tl.trans(v), g)
    else:
        v = values  # not used
        x = _product_in_memory(V, v_column, v_row, GV, g_row, g_column, n, N)
    xt = tl.trans(x)
    difference = 0.5 * (x - xt)
    # What is no more than the round-off of the products says nothing; see gradients.rule.skew_part. NaN is kept.
    noise = tl.sqrt(tl.full((), 1.0, dtype) * n) * machine_epsilon(dtype)
    column_sizes, row_sizes = tl.max(tl.abs(x), 0), tl.max(tl.abs(xt), 1)
    nothing = tl.abs(difference) <= noise * column_sizes[None, :] + noise * row_sizes[:, None]
    difference = tl.where(nothing, 0.0, difference)
    lowest, size, spread = measures(values, inside, n)
    gaps = tl.abs(values[None, :] - values[:, None])
    R = magnitudes(values, gaps, lowest, size, spread, n, RULE, first, second)
    bracket = tl.where(pairs, tl.where(i < j, difference, -difference) * R, 0.0)
    if HAS_GL:
        slopes = tl.load(GL + matrix * n + k, mask=inside, other=0.0)
        bracket = tl.where(i == j, (slopes / factor)[None, :], bracket)
    out = _conjugated(V, v_row, v_column, v, bracket, OUT, n, i, j, N)
    if LIFT > 0:  # infinities would turn into NaN when gradients are clipped
        limit = tl.full((), 1.7976931348623157e308 if dtype == tl.float64 else 3.4028234663852886e38, dtype)
        lowered = out * factor
        limited = tl.minimum(tl.maximum(lowered, -limit), limit)
        out = tl.where(tl.abs(out) <= limit, limited, lowered)
    tl.store(OUT + i * n + j, out, mask=(i < n) & (j < n))


@triton.jit
def function_vjp(
    L, V, G, OUT, n, v_matrix, v_row, v_column, g_matrix, g_row, g_column, FUNCTION: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The gradient of A through A^(±½), whose eigenvalues L and eigenvectors V are given; arguments as above."""
    matrix = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, N)
    i, j, here = k[:, None], k[None, :], (k[:, None] < n) & (k[None, :] < n)
    V += matrix * v_matrix
    OUT += matrix * n * n
    g = tl.load(G + matrix * g_matrix + i * g_row + j * g_column, mask=here, other=0.0)
    g = 0.5 * (g + tl.trans(g))
    if N <= _IN_REGISTERS:
        v = tl.load(V + i * v_row + j * v_column, mask=here, other=0.0)
        e = product(product(tl.trans(v), g), v)
    else:
        v = g  # not used
        e = _conjugated(V, v_column, v_row, v, g, OUT, n, i, j, N)
    p = tl.sqrt(tl.load(L + matrix * n + k, mask=k < n, other=1.0))
    e = e / (p[:, None] + p[None, :])
    if FUNCTION == _INVERSE:
        # Not by F at once, whose p³ leaves the range of the type long before p² does.
        reciprocal = 1.0 / p
        e = -e * (reciprocal[:, None] * reciprocal[None, :])
    e = tl.where(here, e, 0.0)
    out = _conjugated(V, v_row, v_column, v, e, OUT, n, i, j, N)
    tl.store(OUT + i * n + j, out, mask=here)
