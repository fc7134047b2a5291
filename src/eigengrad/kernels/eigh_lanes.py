"""Eigendecomposition for small n in large batches: W matrices side by side, each lane a matrix.

Householder reflections to tridiagonal form (4/3 n³ flops), their product formed from the last to the first (4/3 n³),
then implicit QL with its rotations applied to the vectors (about 1.7 n² rotations of 6n flops: 10 n³ in all, the bulk).
All loads and stores are whole vectors and no lane ever waits for a scalar; rows are taken four at a time in the n³
loops so that each loaded vector is used four times. Up to n ≈ 32 a block of W matrices stays in the second-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiled import compiled, inlined
from .lanes import deinterleave_sorted, interleave, normalise
from .ql import SWEEPS, find_blocks, finish_sweep, rotate, start_sweep
from .vectors import (
    aligned,
    any_lane,
    copy_sign,
    load,
    restore_denormals,
    root,
    select,
    splat,
    store,
    suspend_denormals,
    unsigned_zero,
    width,
)

__all__ = ["eigh_lanes", "iterate"]


@inlined
def eigh_lanes(lanes: Any, A: Any, L: Any, V: Any, first: int, last: int, n: int) -> int:
    """Eigenvalues into L and eigenvectors, as rows, into V, for the matrices ``first`` to ``last``; n ≥ 2.

    Reads the lower triangles. Returns the sum of 1, if some matrix was not finite (its result is NaN), and 2, if some
    did not converge.
    """
    W = width(lanes)
    a, v, spare = aligned(lanes, n * n * W), aligned(lanes, n * n * W), aligned(lanes, n * W)
    diagonal, off, tau = aligned(lanes, n * W), aligned(lanes, n * W), aligned(lanes, n * W)
    x, p = aligned(lanes, n * W), aligned(lanes, n * W)
    offsets = np.empty(W, np.int64)
    zero = splat(lanes, 0.0)
    status = 0
    for begin in range(first, last, W):
        count = min(W, last - begin)
        interleave(lanes, A, begin, count, n * n, a, offsets)
        back, again, marks = normalise(lanes, a, n)
        mode = suspend_denormals()
        _tridiagonalise(lanes, n, a, diagonal, off, tau, x, p)
        _accumulate(lanes, n, a, tau, v, x)
        if not iterate(lanes, n, diagonal, off, v, 2.0**-24 if L.itemsize == 4 else 2.0**-53):
            status |= 2
        restore_denormals(mode)
        for i in range(n):
            store(diagonal, i * W, unsigned_zero(load(lanes, diagonal, i * W)) * back * again)
        for i in range(n * n):
            store(v, i * W, unsigned_zero(load(lanes, v, i * W)))
        if any_lane(~(marks >= zero)):
            status |= 1
            for i in range(n):
                store(diagonal, i * W, load(lanes, diagonal, i * W) + marks)
            for i in range(n * n):
                store(v, i * W, load(lanes, v, i * W) + marks)
        deinterleave_sorted(lanes, begin, count, n, diagonal, v, L, V, spare, offsets, a)
    return status


@compiled
def _tridiagonalise(lanes: Any, n: int, a: Any, diagonal: Any, off: Any, tau: Any, x: Any, p: Any) -> None:
    """Reduce the lower triangle of ``a``; reflector k, with its leading 1 left out, stays in column k.

    The tridiagonal matrix is stored from its end: the reduction leaves the large entries of a graded matrix first, and
    QL is accurate, and quick, when they come last.
    """
    W = width(lanes)
    zero, one, half = splat(lanes, 0.0), splat(lanes, 1.0), splat(lanes, 0.5)
    tiny = splat(lanes, 1e-28 if a.itemsize == 4 else 1e-280)  # above it no square that counts is lost to underflow
    row = n * W
    for k in range(n - 2):
        m = n - k - 1
        alpha, norm2 = load(lanes, a, ((k + 1) * n + k) * W), zero
        for i in range(k + 2, n):
            t = load(lanes, a, (i * n + k) * W)
            norm2 = norm2 + t * t
        beta = -copy_sign(root(alpha * alpha + norm2), alpha)
        flat = norm2 <= tiny
        t_k = select(flat, zero, (beta - alpha) / select(flat, one, beta))
        scale = select(flat, zero, one / select(flat, one, alpha - beta))
        store(off, (n - 2 - k) * W, select(flat, alpha, beta))
        store(tau, k * W, t_k)
        store(diagonal, (n - 1 - k) * W, load(lanes, a, (k * n + k) * W))
        store(x, 0, one)
        for i in range(1, m):
            t = load(lanes, a, ((k + 1 + i) * n + k) * W) * scale
            store(x, i * W, t)
            store(a, ((k + 1 + i) * n + k) * W, t)
        corner = ((k + 1) * n + (k + 1)) * W
        _symmetric_product(lanes, m, a, corner, row, x, p)
        dot = zero
        for i in range(m):
            t = load(lanes, p, i * W) * t_k
            store(p, i * W, t)
            dot = dot + t * load(lanes, x, i * W)
        dot = half * t_k * dot
        for i in range(m):
            store(p, i * W, load(lanes, p, i * W) - dot * load(lanes, x, i * W))
        _rank_two_update(lanes, m, a, corner, row, x, p)
    store(off, 0, load(lanes, a, ((n - 1) * n + n - 2) * W))
    store(diagonal, W, load(lanes, a, ((n - 2) * n + n - 2) * W))
    store(diagonal, 0, load(lanes, a, ((n - 1) * n + n - 1) * W))
    store(off, (n - 1) * W, zero)


@compiled
def _symmetric_product(lanes: Any, m: int, a: Any, corner: int, row: int, x: Any, p: Any) -> None:
    """p = S x for the m×m symmetric S whose lower triangle starts at ``corner``, four rows at a time."""
    W = width(lanes)
    zero = splat(lanes, 0.0)
    for i in range(m):
        store(p, i * W, zero)
    i = 0
    while i + 4 <= m:
        r0 = corner + i * row
        r1, r2, r3 = r0 + row, r0 + 2 * row, r0 + 3 * row
        o = i * W
        x0, x1, x2, x3 = load(lanes, x, o), load(lanes, x, o + W), load(lanes, x, o + 2 * W), load(lanes, x, o + 3 * W)
        s0, s1, s2, s3 = zero, zero, zero, zero
        for j in range(i):
            xj = load(lanes, x, j * W)
            a0, a1 = load(lanes, a, r0 + j * W), load(lanes, a, r1 + j * W)
            a2, a3 = load(lanes, a, r2 + j * W), load(lanes, a, r3 + j * W)
            s0, s1, s2, s3 = s0 + a0 * xj, s1 + a1 * xj, s2 + a2 * xj, s3 + a3 * xj
            store(p, j * W, ((load(lanes, p, j * W) + a0 * x0) + a1 * x1) + (a2 * x2 + a3 * x3))
        a00, a10, a11 = load(lanes, a, r0 + o), load(lanes, a, r1 + o), load(lanes, a, r1 + o + W)
        a20, a21, a22 = load(lanes, a, r2 + o), load(lanes, a, r2 + o + W), load(lanes, a, r2 + o + 2 * W)
        a30, a31 = load(lanes, a, r3 + o), load(lanes, a, r3 + o + W)
        a32, a33 = load(lanes, a, r3 + o + 2 * W), load(lanes, a, r3 + o + 3 * W)
        store(p, o, load(lanes, p, o) + (s0 + a00 * x0 + a10 * x1 + a20 * x2 + a30 * x3))
        store(p, o + W, load(lanes, p, o + W) + (s1 + a10 * x0 + a11 * x1 + a21 * x2 + a31 * x3))
        store(p, o + 2 * W, load(lanes, p, o + 2 * W) + (s2 + a20 * x0 + a21 * x1 + a22 * x2 + a32 * x3))
        store(p, o + 3 * W, load(lanes, p, o + 3 * W) + (s3 + a30 * x0 + a31 * x1 + a32 * x2 + a33 * x3))
        i += 4
    while i < m:
        r, xi, s = corner + i * row, load(lanes, x, i * W), zero
        for j in range(i):
            aij = load(lanes, a, r + j * W)
            s = s + aij * load(lanes, x, j * W)
            store(p, j * W, load(lanes, p, j * W) + aij * xi)
        store(p, i * W, load(lanes, p, i * W) + s + load(lanes, a, r + i * W) * xi)
        i += 1


@compiled
def _rank_two_update(lanes: Any, m: int, a: Any, corner: int, row: int, x: Any, p: Any) -> None:
    """S ← S − x pᵀ − p xᵀ on the lower triangle (and a few entries above it), four rows at a time."""
    W = width(lanes)
    i = 0
    while i + 4 <= m:
        r0, o = corner + i * row, i * W
        r1, r2, r3 = r0 + row, r0 + 2 * row, r0 + 3 * row
        x0, x1, x2, x3 = load(lanes, x, o), load(lanes, x, o + W), load(lanes, x, o + 2 * W), load(lanes, x, o + 3 * W)
        p0, p1, p2, p3 = load(lanes, p, o), load(lanes, p, o + W), load(lanes, p, o + 2 * W), load(lanes, p, o + 3 * W)
        for j in range(i + 4):
            xj, pj, c = load(lanes, x, j * W), load(lanes, p, j * W), j * W
            store(a, r0 + c, load(lanes, a, r0 + c) - x0 * pj - p0 * xj)
            store(a, r1 + c, load(lanes, a, r1 + c) - x1 * pj - p1 * xj)
            store(a, r2 + c, load(lanes, a, r2 + c) - x2 * pj - p2 * xj)
            store(a, r3 + c, load(lanes, a, r3 + c) - x3 * pj - p3 * xj)
        i += 4
    while i < m:
        r, xi, pi = corner + i * row, load(lanes, x, i * W), load(lanes, p, i * W)
        for j in range(i + 1):
            c = j * W
            store(a, r + c, load(lanes, a, r + c) - xi * load(lanes, p, c) - pi * load(lanes, x, c))
        i += 1


@compiled
def _accumulate(lanes: Any, n: int, a: Any, tau: Any, v: Any, x: Any) -> None:
    """The product of the reflectors, as rows of ``v`` (row n − 1 − j is column j), four rows at a time."""
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    row = n * W
    for i in range(n * n):
        store(v, i * W, zero)
    for i in range(n):
        store(v, (i * n + n - 1 - i) * W, one)
    for k in range(n - 3, -1, -1):
        t, m = load(lanes, tau, k * W), n - k - 1
        store(x, 0, one)
        for i in range(1, m):
            store(x, i * W, load(lanes, a, ((k + 1 + i) * n + k) * W))
        j = 0  # the rows of columns k + 1 to n are the first ones
        while j + 4 <= m:
            r0 = (j * n + k + 1) * W
            r1, r2, r3 = r0 + row, r0 + 2 * row, r0 + 3 * row
            s0, s1, s2, s3 = zero, zero, zero, zero
            for i in range(m):
                xi, c = load(lanes, x, i * W), i * W
                s0, s1 = s0 + xi * load(lanes, v, r0 + c), s1 + xi * load(lanes, v, r1 + c)
                s2, s3 = s2 + xi * load(lanes, v, r2 + c), s3 + xi * load(lanes, v, r3 + c)
            s0, s1, s2, s3 = s0 * t, s1 * t, s2 * t, s3 * t
            for i in range(m):
                xi, c = load(lanes, x, i * W), i * W
                store(v, r0 + c, load(lanes, v, r0 + c) - s0 * xi)
                store(v, r1 + c, load(lanes, v, r1 + c) - s1 * xi)
                store(v, r2 + c, load(lanes, v, r2 + c) - s2 * xi)
                store(v, r3 + c, load(lanes, v, r3 + c) - s3 * xi)
            j += 4
        while j < m:
            r, s = (j * n + k + 1) * W, zero
            for i in range(m):
                s = s + load(lanes, x, i * W) * load(lanes, v, r + i * W)
            s = s * t
            for i in range(m):
                store(v, r + i * W, load(lanes, v, r + i * W) - s * load(lanes, x, i * W))
            j += 1


@compiled
def iterate(lanes: Any, n: int, diagonal: Any, off: Any, v: Any, epsilon: float) -> bool:
    """QL sweeps until every lane is diagonal; the rotations turn the rows of ``v``. False if they were not enough.

    A rotation is applied while the next one is computed: the chain is latency, the application is throughput.
    """
    row = n * width(lanes)
    start: Any = np.int64(0)  # a literal 0 would be a type of its own, and what is called compiled for it as well
    for sweep in range(SWEEPS * n):
        start_row, shift = find_blocks(lanes, diagonal, off, start, n, sweep == 0, epsilon)
        if start_row < 0:
            return True
        start = start_row
        g, sin, cos, p, restarted, size = start_sweep(lanes, diagonal, shift, n)
        turn_cos, turn_sin = splat(lanes, 1.0), splat(lanes, 0.0)
        for i in range(n - 2, start - 1, -1):
            before_cos, before_sin = turn_cos, turn_sin
            g, sin, cos, p, restarted, size, turn_cos, turn_sin = rotate(
                lanes, diagonal, off, i, shift, epsilon, g, sin, cos, p, restarted, size
            )
            if i < n - 2:
                _turn_rows(lanes, v, (i + 1) * row, n, before_cos, before_sin)
        _turn_rows(lanes, v, start * row, n, turn_cos, turn_sin)
        finish_sweep(lanes, diagonal, off, start, g, p, restarted)
    return False


@compiled
def _turn_rows(lanes: Any, v: Any, place: int, n: int, cos: Any, sin: Any) -> None:
    W = width(lanes)
    other = place + n * W
    for k in range(n):
        x, y = load(lanes, v, place + k * W), load(lanes, v, other + k * W)
        store(v, other + k * W, sin * x + cos * y)
        store(v, place + k * W, cos * x - sin * y)
