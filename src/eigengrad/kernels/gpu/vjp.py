"""Backward passes of ``eigh`` and of matrix roots for n ≤ 64, a matrix a program, with no result in between in memory.

rule_vjp        gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ,  X = Vᵀ gV
function_vjp    gA = V [F ∘ (Vᵀ E V)] Vᵀ,  E the symmetric part of G
                F_ij = 1/(p_i + p_j), or −1/(p_i p_j (p_i + p_j)) of the inverse root, with p = √λ
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
    v = tl.load(V + matrix * v_matrix + i * v_row + j * v_column, mask=(i < n) & (j < n), other=0.0)
    g = tl.load(GV + matrix * g_matrix + i * g_row + j * g_column, mask=(i < n) & (j < n), other=0.0)
    values = tl.load(L + matrix * n + k, mask=inside, other=0.0)
    dtype: tl.constexpr = values.dtype
    factor = tl.full((), 1.0, dtype)
    if LIFT > 0:
        largest = tl.max(tl.where(inside, tl.abs(values), 0.0))
        factor = tl.where((largest > 0) & (largest < 2.0**-LIFT), 2.0**LIFT, 1.0).to(dtype)
        values = values * factor
    x = product(tl.trans(v), g)
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
    out = product(product(v, bracket), tl.trans(v))
    if LIFT > 0:  # infinities would turn into NaN when gradients are clipped
        limit = tl.full((), 1.7976931348623157e308 if dtype == tl.float64 else 3.4028234663852886e38, dtype)
        lowered = out * factor
        limited = tl.minimum(tl.maximum(lowered, -limit), limit)
        out = tl.where(tl.abs(out) <= limit, limited, lowered)
    tl.store(OUT + matrix * n * n + i * n + j, out, mask=(i < n) & (j < n))


@triton.jit
def function_vjp(
    L, V, G, OUT, n, v_matrix, v_row, v_column, g_matrix, g_row, g_column, FUNCTION: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    """The gradient of A through A^(±½), whose eigenvalues L and eigenvectors V are given; arguments as above."""
    matrix = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, N)
    i, j, here = k[:, None], k[None, :], (k[:, None] < n) & (k[None, :] < n)
    v = tl.load(V + matrix * v_matrix + i * v_row + j * v_column, mask=here, other=0.0)
    g = tl.load(G + matrix * g_matrix + i * g_row + j * g_column, mask=here, other=0.0)
    p = tl.sqrt(tl.load(L + matrix * n + k, mask=k < n, other=1.0))
    g = 0.5 * (g + tl.trans(g))
    e = product(product(tl.trans(v), g), v)
    e = e / (p[:, None] + p[None, :])
    if FUNCTION == _INVERSE:
        # Not by F at once, whose p³ leaves the range of the type long before p² does.
        reciprocal = 1.0 / p
        e = -e * (reciprocal[:, None] * reciprocal[None, :])
    e = tl.where(here, e, 0.0)
    out = product(product(v, e), tl.trans(v))
    tl.store(OUT + matrix * n * n + i * n + j, out, mask=here)
