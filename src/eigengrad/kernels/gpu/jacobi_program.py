"""Eigendecomposition for n ≤ 64, a matrix a program: parallel Jacobi in the XOR ordering.

n is padded to N, a power of two. Step m = 1 … N − 1 turns the N/2 pairs (i, i ^ m) at once; together the steps are a
sweep over all pairs. The diagonal d is kept apart from the rest of A, whose own diagonal is zero. A step turns the
columns of A and of V, for which each column needs its partner (``tl.gather``: shuffles within a warp); the rows of A
are turned as columns of the transpose, because JᵀAJ = ((AJ)ᵀJ)ᵀ and A is symmetric.

Round-off adds up over the steps. So sweeps stop when A is nearly diagonal, V is made orthogonal again, A is computed
anew as VᵀAV from what is in memory, and only the last sweeps' round-off remains; V is made orthogonal once more.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .arithmetic import DECOMPOSED, NOT_CONVERGED, NOT_FINITE, machine_epsilon, power_of_two_scale, rotation

__all__ = ["jacobi_program"]

_SWEEPS = tl.constexpr(30)  # in each phase; random matrices take 8 in all, clusters up to 21 (n = 64, float64)


@triton.jit
def _diagonal(a, i, j):
    return tl.sum(tl.where(i == j, a, 0.0), 0)


@triton.jit
def _step(d, a, v, m, least, i, j, column, N: tl.constexpr):
    """Turn the pairs (k, k ^ m)."""
    partner = column ^ m
    met = i == (j ^ m)
    off = tl.sum(tl.where(met, a, 0.0), 0)
    # Both of a pair must turn alike, and they see entries (p, q) and (q, p), whose round-off differs.
    off = 0.5 * (off + tl.gather(off, partner, 0))
    turn = tl.abs(off) > least
    cos, sin, change = rotation(tl.gather(d, partner, 0) - d, off, turn, column < partner)
    c, s, columns = cos[None, :], sin[None, :], tl.broadcast_to(j ^ m, [N, N])
    v = c * v - s * tl.gather(v, columns, 1)
    a = tl.trans(c * a - s * tl.gather(a, columns, 1))
    a = c * a - s * tl.gather(a, columns, 1)
    a = tl.where(met, tl.where(turn, 0.0, off)[None, :], tl.where(i == j, 0.0, a))
    return d - change, a, v


@triton.jit
def _sweeps(d, a, v, target, least, i, j, column, N: tl.constexpr):
    """Sweep until no entry of ``a`` is larger than ``target``."""
    largest = tl.max(tl.abs(a))
    sweep = 0
    while (sweep < _SWEEPS) & (largest > target):
        for m in range(1, N):
            d, a, v = _step(d, a, v, m, least, i, j, column, N)
        largest = tl.max(tl.abs(a))
        sweep += 1
    return d, a, v, largest


@triton.jit
def _product(x, y, i, j, N: tl.constexpr, TRANSPOSED: tl.constexpr):
    """x y, or xᵀ y, one column at a time: ``tl.dot`` takes more registers than there are."""
    out = tl.zeros_like(x)
    for k in range(N):
        column = tl.sum(tl.where((i if TRANSPOSED else j) == k, x, 0.0), 0 if TRANSPOSED else 1)
        out += column[:, None] * tl.sum(tl.where(i == k, y, 0.0), 0)[None, :]
    return out


@triton.jit
def _orthonormalise(v, i, j, N: tl.constexpr):
    """A Newton–Schulz step: columns that are orthonormal to ε become so to ε²."""
    return 1.5 * v - 0.5 * _product(v, _product(v, v, i, j, N, True), i, j, N, False)


@triton.jit
def _load_scaled(A, n, stride_row, stride_column, i, j):
    """The lower triangle, mirrored, divided by its scale: (a, finite, restore, drop)."""
    row, column = tl.maximum(i, j), tl.minimum(i, j)
    a = tl.load(A + row * stride_row + column * stride_column, mask=(i < n) & (j < n), other=0.0)
    finite = tl.min((tl.abs(a) < float("inf")).to(tl.int32)) > 0
    a = tl.where(finite, a, 0.0)
    lift, shrink, restore, drop = power_of_two_scale(tl.max(tl.abs(a)))
    return a * lift * shrink, finite, restore, drop


@triton.jit
def jacobi_program(A, L, V, STATUS, n, stride_matrix, stride_row, stride_column, N: tl.constexpr):
    """Eigenvalues, ascending, and eigenvectors of symmetric matrices, of which the lower triangles are read.

    Args:
        A: (batch, n, n) with any strides.
        L: (batch, n), contiguous.
        V: (batch, n, n), contiguous, the eigenvectors as rows.
        STATUS: (batch,), int32. L and V are NaN where it is not DECOMPOSED.
        n: at most N, a power of two.
    """
    matrix = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, N)
    i, j = column[:, None], column[None, :]
    A += matrix * stride_matrix
    a, finite, restore, drop = _load_scaled(A, n, stride_row, stride_column, i, j)
    eps = machine_epsilon(a.dtype)
    norm = tl.sqrt(tl.sum(a * a))
    # What is smaller than a share of round-off is let alone: at a tie it would be turned by 45° for ever.
    least = norm * eps * (0.25 / N)
    v = tl.where(i == j, 1.0, 0.0).to(a.dtype)
    d = _diagonal(a, i, j)
    a = tl.where(i == j, 0.0, a)
    # Convergence is quadratic: one or two more sweeps follow.
    d, a, v, _ = _sweeps(d, a, v, norm * (1e-3 / N), least, i, j, column, N)
    v = _orthonormalise(v, i, j, N)
    a, _, _, _ = _load_scaled(A, n, stride_row, stride_column, i, j)
    a = _product(v, _product(a, v, i, j, N, False), i, j, N, True)
    d = _diagonal(a, i, j)
    a = tl.where(i == j, 0.0, 0.5 * (a + tl.trans(a)))
    d, a, v, largest = _sweeps(d, a, v, least, least, i, j, column, N)
    v = _orthonormalise(v, i, j, N)
    status = tl.where(finite, tl.where(largest <= least, DECOMPOSED, NOT_CONVERGED), NOT_FINITE)
    tl.store(STATUS + matrix, status)
    # Padding is behind everything else. The other operand of the comparison has d along the rows.
    d = tl.where(column < n, d, float("inf"))
    across = tl.sum(tl.where(i == j, tl.broadcast_to(d[None, :], [N, N]), 0.0), 1)[:, None]
    rank = tl.sum(((across < d[None, :]) | ((across == d[None, :]) & (i < j))).to(tl.int32), 0)
    nan = float("nan")
    value = tl.where(status == DECOMPOSED, d * restore * drop, nan)
    tl.store(L + matrix * n + rank, value, mask=column < n)
    v = tl.where(status == DECOMPOSED, v, nan)
    tl.store(V + matrix * n * n + rank[None, :] * n + i, v, mask=(i < n) & (j < n))
