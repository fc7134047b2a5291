"""Eigendecomposition for small n in large batches: W matrices side by side, each lane a matrix.

Householder reflections to tridiagonal form (4/3 n³ flops), their product formed from the last to the first (4/3 n³),
then implicit QL with its rotations applied to the vectors (about n² rotations in lockstep, of 6n flops: the bulk). All
loads and stores are whole vectors and no lane ever waits for a scalar.

What bounds it is memory: from n ≈ 24 on a block of W matrices does not fit the first-level cache. So every pass over a
matrix does as much as it can: the reduction updates and multiplies at once, several reflectors are applied to four
vectors while they are there, and the rotations of several sweeps to eight rows of the vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import rounded
from .compiled import inlined, inner
from .lanes import deinterleave_sorted, interleave, interleave_rows, normalise
from .ql import SWEEPS, find_blocks, finish_sweep, rotate, start_sweep, turned
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

_CACHED = 24  # up to this n the vectors of a block stay in the first-level cache
_REFLECTORS = 8  # that are applied together
_DELAY = 16  # sweeps whose rotations are applied together


@inlined
def eigh_lanes(lanes: Any, A: Any, L: Any, V: Any, first: int, last: int, n: int) -> int:
    """Eigenvalues into L and eigenvectors, as rows, into V, for the matrices ``first`` to ``last``; n ≥ 2.

    Reads the lower triangles. Returns the sum of 1, if some matrix was not finite (its result is NaN), and 2, if some
    did not converge.
    """
    W = width(lanes)
    large = n > _CACHED and n >= W
    # Entry i of eigenvector k is at k·across + i·down, with room for four vectors at a time, and eight entries where
    # they are turned by eights. An odd stride spreads a column over all sets of the cache.
    stride = rounded(n, 4) + 1 if large else n
    across, down = (1, stride) if large else (n, 1)
    room = rounded(n, 8) * stride if large else rounded(n, 4) * n
    a, v, ranks = aligned(lanes, n * stride * W), aligned(lanes, (room + W) * W), aligned(lanes, n * W)
    diagonal, off, tau = aligned(lanes, n * W), aligned(lanes, n * W), aligned(lanes, n * W)
    x, p = aligned(lanes, _REFLECTORS * n * W), aligned(lanes, 2 * n * W)
    turns = aligned(lanes, _DELAY * n * 3 * W) if large else p
    offsets, starts = np.empty(W, np.int64), np.empty(_DELAY, np.int64)
    epsilon = 2.0**-24 if L.itemsize == 4 else 2.0**-53
    zero = splat(lanes, 0.0)
    status = 0
    for begin in range(first, last, W):
        count = min(W, last - begin)
        if large:
            interleave_rows(lanes, A, begin, count, n, stride, a, offsets)
        else:
            interleave(lanes, A, begin, count, n * n, a, offsets)
        back, again, marks = normalise(lanes, a, n, stride)
        mode = suspend_denormals()
        _tridiagonalise(lanes, n, a, stride, diagonal, off, tau, x, p)
        for i in range(room):
            store(v, i * W, zero)
        _accumulate(lanes, n, a, stride, tau, v, across, down, x)
        if large:
            converged = iterate_recorded(lanes, n, diagonal, off, v, stride, epsilon, turns, starts)
        else:
            converged = iterate(lanes, n, diagonal, off, v, epsilon)
        if not converged:
            status |= 2
        restore_denormals(mode)
        for i in range(n):
            store(diagonal, i * W, unsigned_zero(load(lanes, diagonal, i * W)) * back * again)
        for i in range(room):
            store(v, i * W, unsigned_zero(load(lanes, v, i * W)))
        if any_lane(~(marks >= zero)):
            status |= 1
            for i in range(n):
                store(diagonal, i * W, load(lanes, diagonal, i * W) + marks)
            for i in range(room):
                store(v, i * W, load(lanes, v, i * W) + marks)
        deinterleave_sorted(lanes, begin, count, n, diagonal, v, across, down, L, V, ranks, offsets)
    return status


@inner
def _tridiagonalise(lanes: Any, n: int, a: Any, stride: int, diagonal: Any, off: Any, tau: Any, x: Any, p: Any) -> None:
    """Reduce the lower triangle of ``a``; reflector k, with its leading 1 left out, stays in column k.

    The update of the rest by reflector k, S ← S − x pᵀ − p xᵀ, waits until the next reflector is known from its first
    column alone, and is done together with the product S x that this one needs: one pass over ``a`` for each reflector.
    ``x`` and ``p`` hold the vectors of two reflectors in turn.

    The tridiagonal matrix is stored from its end: the reduction leaves the large entries of a graded matrix first, and
    QL is accurate, and quick, when they come last.
    """
    W = width(lanes)
    zero, one, half = splat(lanes, 0.0), splat(lanes, 1.0), splat(lanes, 0.5)
    tiny = splat(lanes, 1e-28 if a.itemsize == 4 else 1e-280)  # above it no square that counts is lost to underflow
    row = stride * W
    for i in range(2 * n):
        store(x, i * W, zero)
        store(p, i * W, zero)
    new: Any = np.int64(0)  # as in :func:`iterate`
    old = n * W
    for k in range(n - 1):
        m = n - k - 1
        _update_column(lanes, m + 1, a, (k * stride + k) * W, row, x, p, old)
        store(diagonal, m * W, load(lanes, a, (k * stride + k) * W))
        alpha, norm2 = load(lanes, a, ((k + 1) * stride + k) * W), zero
        if k == n - 2:
            store(off, 0, alpha)
            break
        for i in range(k + 2, n):
            t = load(lanes, a, (i * stride + k) * W)
            norm2 = norm2 + t * t
        beta = -copy_sign(root(alpha * alpha + norm2), alpha)
        flat = norm2 <= tiny
        t_k = select(flat, zero, (beta - alpha) / select(flat, one, beta))
        scale = select(flat, zero, one / select(flat, one, alpha - beta))
        store(off, (m - 1) * W, select(flat, alpha, beta))
        store(tau, k * W, t_k)
        store(x, new, one)
        for i in range(1, m):
            t = load(lanes, a, ((k + 1 + i) * stride + k) * W) * scale
            store(x, new + i * W, t)
            store(a, ((k + 1 + i) * stride + k) * W, t)
        _update_and_multiply(lanes, m, a, ((k + 1) * stride + k + 1) * W, row, x, p, old + W, new)
        dot = zero
        for i in range(m):
            t = load(lanes, p, new + i * W) * t_k
            store(p, new + i * W, t)
            dot = dot + t * load(lanes, x, new + i * W)
        dot = half * t_k * dot
        for i in range(m):
            store(p, new + i * W, load(lanes, p, new + i * W) - dot * load(lanes, x, new + i * W))
        new, old = old, new
    last = ((n - 1) * stride + n - 1) * W
    x1, p1 = load(lanes, x, old + W), load(lanes, p, old + W)
    store(diagonal, 0, load(lanes, a, last) - x1 * p1 - p1 * x1)
    store(off, (n - 1) * W, zero)


@inner
def _update_column(lanes: Any, m: int, a: Any, corner: int, row: int, x: Any, p: Any, old: int) -> None:
    """The first column of S ← S − x pᵀ − p xᵀ, with x and p from ``old``."""
    W = width(lanes)
    x0, p0 = load(lanes, x, old), load(lanes, p, old)
    for i in range(m):
        place = corner + i * row
        xi, pi = load(lanes, x, old + i * W), load(lanes, p, old + i * W)
        store(a, place, load(lanes, a, place) - xi * p0 - pi * x0)


@inner
def _update_and_multiply(lanes: Any, m: int, a: Any, corner: int, row: int, x: Any, p: Any, old: int, new: int) -> None:
    """S ← S − x pᵀ − p xᵀ with the old x and p, then p = S x with the new ones, for the m×m S starting at ``corner``.

    On the lower triangle, four rows at a time, whose last ones are on the diagonal.
    """
    W = width(lanes)
    zero = splat(lanes, 0.0)
    for i in range(m):
        store(p, new + i * W, zero)
    i = 0
    while i + 4 <= m:
        r0, o, z = corner + i * row, old + i * W, new + i * W
        r1, r2, r3 = r0 + row, r0 + 2 * row, r0 + 3 * row
        x0, x1, x2, x3 = load(lanes, x, o), load(lanes, x, o + W), load(lanes, x, o + 2 * W), load(lanes, x, o + 3 * W)
        p0, p1, p2, p3 = load(lanes, p, o), load(lanes, p, o + W), load(lanes, p, o + 2 * W), load(lanes, p, o + 3 * W)
        y0, y1, y2, y3 = load(lanes, x, z), load(lanes, x, z + W), load(lanes, x, z + 2 * W), load(lanes, x, z + 3 * W)
        s0, s1, s2, s3 = zero, zero, zero, zero
        for j in range(i):
            c = j * W
            xj, pj, yj = load(lanes, x, old + c), load(lanes, p, old + c), load(lanes, x, new + c)
            a0, a1 = load(lanes, a, r0 + c) - x0 * pj - p0 * xj, load(lanes, a, r1 + c) - x1 * pj - p1 * xj
            a2, a3 = load(lanes, a, r2 + c) - x2 * pj - p2 * xj, load(lanes, a, r3 + c) - x3 * pj - p3 * xj
            store(a, r0 + c, a0)
            store(a, r1 + c, a1)
            store(a, r2 + c, a2)
            store(a, r3 + c, a3)
            s0, s1, s2, s3 = s0 + a0 * yj, s1 + a1 * yj, s2 + a2 * yj, s3 + a3 * yj
            store(p, new + c, ((load(lanes, p, new + c) + a0 * y0) + a1 * y1) + (a2 * y2 + a3 * y3))
        c = i * W
        a00 = load(lanes, a, r0 + c) - x0 * p0 - p0 * x0
        a10, a11 = load(lanes, a, r1 + c) - x1 * p0 - p1 * x0, load(lanes, a, r1 + c + W) - x1 * p1 - p1 * x1
        a20, a21 = load(lanes, a, r2 + c) - x2 * p0 - p2 * x0, load(lanes, a, r2 + c + W) - x2 * p1 - p2 * x1
        a22 = load(lanes, a, r2 + c + 2 * W) - x2 * p2 - p2 * x2
        a30, a31 = load(lanes, a, r3 + c) - x3 * p0 - p3 * x0, load(lanes, a, r3 + c + W) - x3 * p1 - p3 * x1
        a32 = load(lanes, a, r3 + c + 2 * W) - x3 * p2 - p3 * x2
        a33 = load(lanes, a, r3 + c + 3 * W) - x3 * p3 - p3 * x3
        store(a, r0 + c, a00)
        store(a, r1 + c, a10)
        store(a, r1 + c + W, a11)
        store(a, r2 + c, a20)
        store(a, r2 + c + W, a21)
        store(a, r2 + c + 2 * W, a22)
        store(a, r3 + c, a30)
        store(a, r3 + c + W, a31)
        store(a, r3 + c + 2 * W, a32)
        store(a, r3 + c + 3 * W, a33)
        store(p, z, s0 + a00 * y0 + a10 * y1 + a20 * y2 + a30 * y3)
        store(p, z + W, s1 + a10 * y0 + a11 * y1 + a21 * y2 + a31 * y3)
        store(p, z + 2 * W, s2 + a20 * y0 + a21 * y1 + a22 * y2 + a32 * y3)
        store(p, z + 3 * W, s3 + a30 * y0 + a31 * y1 + a32 * y2 + a33 * y3)
        i += 4
    while i < m:
        r, s = corner + i * row, zero
        xi, pi, yi = load(lanes, x, old + i * W), load(lanes, p, old + i * W), load(lanes, x, new + i * W)
        for j in range(i + 1):
            c = j * W
            entry = load(lanes, a, r + c) - xi * load(lanes, p, old + c) - pi * load(lanes, x, old + c)
            store(a, r + c, entry)
            s = s + entry * load(lanes, x, new + c)
            if j < i:
                store(p, new + c, load(lanes, p, new + c) + entry * yi)
        store(p, new + i * W, s)
        i += 1


@inner
def _accumulate(lanes: Any, n: int, a: Any, stride: int, tau: Any, v: Any, across: int, down: int, x: Any) -> None:
    """The product of the reflectors in ``v``, which is zero: vector n − 1 − j becomes its column j.

    Some reflectors, copied to ``x``, are applied together to four vectors, which stay in the first-level cache
    meanwhile. A vector that a reflector should not touch is zero where the reflector is not.
    """
    W = width(lanes)
    one = splat(lanes, 1.0)
    for i in range(n):
        store(v, (i * across + (n - 1 - i) * down) * W, one)
    last = n - 3
    while last >= 0:
        first = max(0, last + 1 - _REFLECTORS)
        for k in range(first, last + 1):
            place = (k - first) * n
            store(x, place * W, one)
            for i in range(1, n - k - 1):
                store(x, (place + i) * W, load(lanes, a, ((k + 1 + i) * stride + k) * W))
        for j in range(0, n - 1 - first, 4):  # the vectors of the columns after the first reflector's
            highest = min(last, n - 2 - j)
            _reflect_four(lanes, n, v, j * across * W, across * W, down * W, x, tau, first, highest)
        last = first - 1


@inner
def _reflect_four(
    lanes: Any, n: int, v: Any, v0: int, across: int, down: int, x: Any, tau: Any, first: int, last: int
) -> None:
    """u ← u − τ (u·x) x for four vectors and the reflectors from ``last`` down to ``first``.

    The product with the next reflector is taken as the vectors change: one pass over them for each.
    """
    W = width(lanes)
    v1, v2, v3 = v0 + across, v0 + 2 * across, v0 + 3 * across
    s0 = s1 = s2 = s3 = splat(lanes, 0.0)
    z = (last - first) * n * W
    for i in range(n - last - 1):
        xi, c = load(lanes, x, z + i * W), (last + 1 + i) * down
        s0, s1 = s0 + xi * load(lanes, v, v0 + c), s1 + xi * load(lanes, v, v1 + c)
        s2, s3 = s2 + xi * load(lanes, v, v2 + c), s3 + xi * load(lanes, v, v3 + c)
    for k in range(last, first - 1, -1):
        t = load(lanes, tau, k * W)
        t0, t1, t2, t3 = s0 * t, s1 * t, s2 * t, s3 * t
        z, c = (k - first) * n * W, (k + 1) * down
        if k == first:
            for i in range(n - k - 1):
                xi = load(lanes, x, z + i * W)
                store(v, v0 + c, load(lanes, v, v0 + c) - t0 * xi)
                store(v, v1 + c, load(lanes, v, v1 + c) - t1 * xi)
                store(v, v2 + c, load(lanes, v, v2 + c) - t2 * xi)
                store(v, v3 + c, load(lanes, v, v3 + c) - t3 * xi)
                c += down
        else:
            following = z - n * W + W  # the next reflector begins one row earlier, with a one
            s0, s1 = load(lanes, v, v0 + c - down), load(lanes, v, v1 + c - down)
            s2, s3 = load(lanes, v, v2 + c - down), load(lanes, v, v3 + c - down)
            for i in range(n - k - 1):
                xi, yi = load(lanes, x, z + i * W), load(lanes, x, following + i * W)
                u0, u1 = load(lanes, v, v0 + c) - t0 * xi, load(lanes, v, v1 + c) - t1 * xi
                u2, u3 = load(lanes, v, v2 + c) - t2 * xi, load(lanes, v, v3 + c) - t3 * xi
                store(v, v0 + c, u0)
                store(v, v1 + c, u1)
                store(v, v2 + c, u2)
                store(v, v3 + c, u3)
                s0, s1, s2, s3 = s0 + u0 * yi, s1 + u1 * yi, s2 + u2 * yi, s3 + u3 * yi
                c += down


@inner
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
        first = second = third = splat(lanes, 0.0)
        for i in range(n - 2, start - 1, -1):
            first_before, second_before, third_before = first, second, third
            g, sin, cos, p, restarted, size, first, second, third = rotate(
                lanes, diagonal, off, i, shift, epsilon, g, sin, cos, p, restarted, size
            )
            if i < n - 2:
                _turn_rows(lanes, v, (i + 1) * row, n, first_before, second_before, third_before)
        _turn_rows(lanes, v, start * row, n, first, second, third)
        finish_sweep(lanes, diagonal, off, start, g, p, restarted)
    return False


@inner
def _turn_rows(lanes: Any, v: Any, place: int, n: int, first: Any, second: Any, third: Any) -> None:
    W = width(lanes)
    other = place + n * W
    for k in range(n):
        x, y = turned(first, second, third, load(lanes, v, place + k * W), load(lanes, v, other + k * W))
        store(v, other + k * W, y)
        store(v, place + k * W, x)


@inner
def iterate_recorded(
    lanes: Any, n: int, diagonal: Any, off: Any, v: Any, stride: int, epsilon: float, turns: Any, starts: Any
) -> bool:
    """:func:`iterate` for vectors that do not fit the first-level cache, and stand side by side: columns of ``v``.

    The rotations depend on the tridiagonal matrix alone. So those of a few sweeps are computed and kept in ``turns``,
    and then applied to eight rows of ``v`` at a time, which do stay in the cache.
    """
    W = width(lanes)
    start: Any = np.int64(0)  # as in :func:`iterate`
    kept: Any = start
    for sweep in range(SWEEPS * n):
        start_row, shift = find_blocks(lanes, diagonal, off, start, n, sweep == 0, epsilon)
        if start_row < 0:
            _turn_columns(lanes, n, v, stride * W, turns, starts, kept)
            return True
        start = start_row
        g, sin, cos, p, restarted, size = start_sweep(lanes, diagonal, shift, n)
        for i in range(n - 2, start - 1, -1):
            g, sin, cos, p, restarted, size, first, second, third = rotate(
                lanes, diagonal, off, i, shift, epsilon, g, sin, cos, p, restarted, size
            )
            place = (kept * n + i) * 3 * W
            store(turns, place, first)
            store(turns, place + W, second)
            store(turns, place + 2 * W, third)
        finish_sweep(lanes, diagonal, off, start, g, p, restarted)
        starts[kept] = start
        kept += 1
        if kept == _DELAY:
            _turn_columns(lanes, n, v, stride * W, turns, starts, kept)
            kept = 0
    return False


@inner
def _turn_columns(lanes: Any, n: int, v: Any, row: int, turns: Any, starts: Any, sweeps: int) -> None:
    """Apply the rotations of some sweeps to the columns of ``v``, in eight rows at a time.

    Eight chains hide the latency of a turn. What it leaves of the upper column changes in the next one: it is carried.
    """
    W = width(lanes)
    for first in range(0, n, 8):
        r0 = (first * row) + (n - 1) * W
        r1, r2, r3 = r0 + row, r0 + 2 * row, r0 + 3 * row
        r4, r5, r6, r7 = r3 + row, r3 + 2 * row, r3 + 3 * row, r3 + 4 * row
        for sweep in range(sweeps):
            c0, c1, c2, c3 = load(lanes, v, r0), load(lanes, v, r1), load(lanes, v, r2), load(lanes, v, r3)
            c4, c5, c6, c7 = load(lanes, v, r4), load(lanes, v, r5), load(lanes, v, r6), load(lanes, v, r7)
            turn, o = (sweep * n + n - 2) * 3 * W, 0
            for _ in range(n - 1 - starts[sweep]):
                f, s, t = load(lanes, turns, turn), load(lanes, turns, turn + W), load(lanes, turns, turn + 2 * W)
                h = o - W
                x0, y0 = turned(f, s, t, load(lanes, v, r0 + h), c0)
                x1, y1 = turned(f, s, t, load(lanes, v, r1 + h), c1)
                x2, y2 = turned(f, s, t, load(lanes, v, r2 + h), c2)
                x3, y3 = turned(f, s, t, load(lanes, v, r3 + h), c3)
                x4, y4 = turned(f, s, t, load(lanes, v, r4 + h), c4)
                x5, y5 = turned(f, s, t, load(lanes, v, r5 + h), c5)
                x6, y6 = turned(f, s, t, load(lanes, v, r6 + h), c6)
                x7, y7 = turned(f, s, t, load(lanes, v, r7 + h), c7)
                _store_eight(v, r0 + o, row, y0, y1, y2, y3, y4, y5, y6, y7)
                c0, c1, c2, c3, c4, c5, c6, c7 = x0, x1, x2, x3, x4, x5, x6, x7
                turn, o = turn - 3 * W, h
            _store_eight(v, r0 + o, row, c0, c1, c2, c3, c4, c5, c6, c7)


@inner
def _store_eight(
    v: Any, place: int, row: int, y0: Any, y1: Any, y2: Any, y3: Any, y4: Any, y5: Any, y6: Any, y7: Any
) -> None:
    store(v, place, y0)
    store(v, place + row, y1)
    store(v, place + 2 * row, y2)
    store(v, place + 3 * row, y3)
    store(v, place + 4 * row, y4)
    store(v, place + 5 * row, y5)
    store(v, place + 6 * row, y6)
    store(v, place + 7 * row, y7)
