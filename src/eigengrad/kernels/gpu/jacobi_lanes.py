"""Eigendecomposition for n ≤ 4, a matrix in each lane: cyclic Jacobi in registers, with no exchange between lanes.

A is kept as its lower triangle and V as its n² entries, tuples of vectors over the lanes. Sweeps go on until all
matrices of a program have converged; those that have are turned no more, so a result does not depend on its neighbours.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import DECOMPOSED, NOT_CONVERGED, NOT_FINITE, machine_epsilon, power_of_two_scale, rotation

__all__ = ["jacobi_lanes"]

_SWEEPS = tl.constexpr(12)  # float64 needs five for n = 4


@triton.jit
def _replace(entries, k: tl.constexpr, x):
    """The tuple with ``x`` as its k-th entry."""
    return entries[:k] + (x,) + entries[k + 1 :]


@triton.jit
def _lower(i: tl.constexpr, j: tl.constexpr):
    """Where entry (i, j) of a symmetric matrix is in the tuple of its lower triangle."""
    return max(i, j) * (max(i, j) + 1) // 2 + min(i, j)


@triton.jit
def _turn(a, v, p: tl.constexpr, q: tl.constexpr, least, n: tl.constexpr):
    """Annihilate a_pq, p < q, where it is larger than ``least``."""
    off = a[_lower(p, q)]
    turn = tl.abs(off) > least
    low, high = a[_lower(p, p)], a[_lower(q, q)]
    cos, sin, change = rotation(high - low, off, turn, True)
    a = _replace(a, _lower(p, p), low - change)
    a = _replace(a, _lower(q, q), high + change)
    a = _replace(a, _lower(p, q), tl.where(turn, 0.0, off))
    for k in tl.static_range(n):
        if k != p and k != q:
            x, y = a[_lower(k, p)], a[_lower(k, q)]
            a = _replace(a, _lower(k, p), cos * x - sin * y)
            a = _replace(a, _lower(k, q), sin * x + cos * y)
        x, y = v[k * n + p], v[k * n + q]
        v = _replace(v, k * n + p, cos * x - sin * y)
        v = _replace(v, k * n + q, sin * x + cos * y)
    return a, v


@triton.jit
def _largest_off(a, n: tl.constexpr):
    """The largest absolute value off the diagonal, for each lane."""
    largest = tl.zeros_like(a[0])
    for i in tl.static_range(n):
        for j in tl.static_range(i):
            largest = tl.maximum(largest, tl.abs(a[_lower(i, j)]))
    return largest


@triton.jit
def _orthonormalise(v, n: tl.constexpr):
    """A Newton–Schulz step, V ← V (3I − VᵀV)/2: columns that are orthonormal to ε become so to ε²."""
    half = ()
    for i in tl.static_range(n):
        for j in tl.static_range(i + 1):
            gram = tl.zeros_like(v[0])
            for k in tl.static_range(n):
                gram += v[k * n + i] * v[k * n + j]
            half = half + ((1.5 if i == j else 0.0) - 0.5 * gram,)
    result = ()
    for i in tl.static_range(n):
        for j in tl.static_range(n):
            x = tl.zeros_like(v[0])
            for k in tl.static_range(n):
                x += v[i * n + k] * half[_lower(k, j)]
            result = result + (x,)
    return result


@triton.jit
def jacobi_lanes(
    A, L, V, STATUS, batch, stride_matrix, stride_row, stride_column, n: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices, of which the lower triangles are read.

    Args:
        A: (batch, n, n) with any strides.
        L: (batch, n), contiguous.
        V: (batch, n, n), contiguous, the eigenvectors as rows.
        STATUS: (batch,), int32. L and V are NaN where it is not DECOMPOSED.
    """
    matrix = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    here = matrix < batch
    dtype: tl.constexpr = A.dtype.element_ty
    zero = tl.zeros([LANES], dtype)
    a, largest, finite = (), zero, matrix >= 0
    for i in tl.static_range(n):
        for j in tl.static_range(i + 1):
            x = tl.load(A + matrix * stride_matrix + i * stride_row + j * stride_column, mask=here, other=0.0)
            finite = finite & (tl.abs(x) < float("inf"))
            largest = tl.maximum(largest, tl.abs(x))
            a = a + (x,)
    lift, shrink, restore, drop = power_of_two_scale(tl.where(finite, largest, 0.0))
    norm2, scaled, v = zero, (), ()
    for i in tl.static_range(n):
        for j in tl.static_range(i + 1):
            x = tl.where(finite, a[_lower(i, j)] * lift * shrink, 0.0)
            norm2 += x * x * (1.0 if i == j else 2.0)
            scaled = scaled + (x,)
        for j in tl.static_range(n):
            v = v + (zero + (1.0 if i == j else 0.0),)
    a = scaled
    # What is smaller than a share of round-off is let alone: at a tie it would be turned by 45° for ever.
    least = tl.sqrt(norm2) * (machine_epsilon(dtype) * (0.25 / n))
    sweep = 0
    while (sweep < _SWEEPS) & (tl.max((_largest_off(a, n) > least).to(tl.int32), 0) > 0):
        for p in tl.static_range(n - 1):
            for q in tl.static_range(p + 1, n):
                a, v = _turn(a, v, p, q, least, n)
        sweep += 1
    v = _orthonormalise(v, n)
    converged = _largest_off(a, n) <= least
    status = tl.where(finite, tl.where(converged, DECOMPOSED, NOT_CONVERGED), NOT_FINITE)
    tl.store(STATUS + matrix, status, mask=here)
    for j in tl.static_range(n):
        value = a[_lower(j, j)]
        rank = tl.zeros([LANES], tl.int32)
        for k in tl.static_range(n):
            other = a[_lower(k, k)]
            if k < j:
                rank += (other <= value).to(tl.int32)
            if k > j:
                rank += (other < value).to(tl.int32)
        value = tl.where(status == DECOMPOSED, value * restore * drop, float("nan"))
        tl.store(L + matrix * n + rank, value, mask=here)
        for i in tl.static_range(n):
            x = tl.where(status == DECOMPOSED, v[i * n + j], float("nan"))
            tl.store(V + matrix * (n * n) + rank * n + i, x, mask=here)
