"""Householder reduction and its reflectors for W matrices at a time, each lane a matrix.

Entry (i, j) of a matrix is a vector at i·stride + j, in units of W numbers. What bounds it is memory: from n ≈ 24 on a
block of W matrices does not fit the first-level cache. So every pass over a matrix does as much as it can.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function
from ..simd.memory import load, load_four, store, store_four
from ..simd.vectors import copy_sign, select, splat, sqrt, width

__all__ = ["REFLECTORS", "accumulate", "tridiagonalise"]

REFLECTORS = 8  # that are applied together


@device_function
def tridiagonalise(
    lanes: Any, n: int, a: Any, stride: int, diagonal: Any, off: Any, step: int, tau: Any, x: Any, p: Any
) -> None:
    """Reduce the lower triangle of ``a``; reflector k, with its leading 1 left out, stays in column k.

    The update of the rest by reflector k, S ← S − x pᵀ − p xᵀ, waits until the next reflector is known from its first
    column alone, and is done together with the product S x that this one needs: one pass over ``a`` for each reflector.
    ``x`` and ``p`` hold the vectors of two reflectors in turn.

    The tridiagonal matrix is stored, an entry every ``step`` numbers, from its end: the reduction leaves the large
    entries of a graded matrix first, and QL is accurate, and quick, when they come last.
    """
    W = width(lanes)
    zero, one, half = splat(lanes, 0.0), splat(lanes, 1.0), splat(lanes, 0.5)
    tiny = splat(lanes, 1e-28 if a.itemsize == 4 else 1e-280)  # above it no square that counts is lost to underflow
    row = stride * W
    for i in range(2 * n):
        store(x, i * W, zero)
        store(p, i * W, zero)
    new: Any = np.int64(0)  # a literal 0 would be a type of its own, and what is called compiled for it as well
    old = n * W
    for k in range(n - 1):
        m = n - k - 1
        _update_column(lanes, m + 1, a, (k * stride + k) * W, row, x, p, old)
        store(diagonal, m * step, load(lanes, a, (k * stride + k) * W))
        alpha, norm2 = load(lanes, a, ((k + 1) * stride + k) * W), zero
        if k == n - 2:
            store(off, 0, alpha)
            break
        for i in range(k + 2, n):
            t = load(lanes, a, (i * stride + k) * W)
            norm2 = norm2 + t * t
        beta = -copy_sign(sqrt(alpha * alpha + norm2), alpha)
        flat = norm2 <= tiny
        t_k = select(flat, zero, (beta - alpha) / select(flat, one, beta))
        scale = select(flat, zero, one / select(flat, one, alpha - beta))
        store(off, (m - 1) * step, select(flat, alpha, beta))
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
    store(off, (n - 1) * step, zero)


@device_function
def _update_column(lanes: Any, m: int, a: Any, corner: int, row: int, x: Any, p: Any, old: int) -> None:
    """The first column of S ← S − x pᵀ − p xᵀ, with x and p from ``old``."""
    W = width(lanes)
    x0, p0 = load(lanes, x, old), load(lanes, p, old)
    for i in range(m):
        place = corner + i * row
        xi, pi = load(lanes, x, old + i * W), load(lanes, p, old + i * W)
        store(a, place, load(lanes, a, place) - xi * p0 - pi * x0)


@device_function
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
            store_four(a, r0 + c, row, (a0, a1, a2, a3))
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


@device_function
def accumulate(lanes: Any, n: int, a: Any, stride: int, tau: Any, v: Any, down: int, x: Any, p: Any) -> None:
    """The product of the reflectors in ``v``, which is zero: vector n − 1 − j, a column of ``v``, becomes its column j.

    Some reflectors, copied to ``x``, are applied together to four vectors, which stay in the first-level cache
    meanwhile. A vector that a reflector should not touch is zero where the reflector is not.
    """
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    for i in range(n):
        store(v, (i + (n - 1 - i) * down) * W, one)
    last = n - 3
    while last >= 0:
        first = max(last % 2 - 1, last + 1 - REFLECTORS)  # an even number, if need be with one that is zero
        for k in range(first, last + 1):
            place = (k - first) * n * W
            if k < 0:
                for i in range(n):
                    store(x, place + i * W, zero)
            else:
                store(x, place + k * W, zero)
                store(x, place + (k + 1) * W, one)
                for i in range(k + 2, n):
                    store(x, place + i * W, load(lanes, a, (i * stride + k) * W))
            store(p, (k - first) * W, load(lanes, tau, max(k, 0) * W))
        for k in range(1, last + 1 - first, 2):
            place, cross = k * n * W, zero
            for i in range(first + k + 1, n):
                cross = cross + load(lanes, x, place + i * W) * load(lanes, x, place - (n - i) * W)
            store(p, (REFLECTORS + k) * W, cross)
        for j in range(0, n - 1 - first, 4):  # the vectors of the columns after the first reflector's
            highest = min(last, n - 1 - j)
            _reflect_four(lanes, n, v, j * W, down * W, x, p, first, highest - first)
        last = first - 1


@device_function
def _reflect_four(lanes: Any, n: int, v: Any, place: int, down: int, x: Any, p: Any, first: int, top: int) -> None:
    """Apply the reflectors from ``first + top`` down to ``first`` to four vectors u, from ``place`` on, by pairs h, g:

        u ← u − h τ a − g σ (b − τ a gᵀh)   with a = hᵀu, b = gᵀu.

    The products with the next pair are taken as the vectors change: one pass over them for each pair, because on some
    CPUs a store takes as long as two multiplications.
    """
    W = width(lanes)
    zero = splat(lanes, 0.0)
    nothing = zero, zero, zero, zero
    a, b = nothing, nothing
    for i in range(first + top, n):
        a, b = _add_products(lanes, x, (top * n + i) * W, n * W, load_four(lanes, v, place + i * down, W), a, b)
    for k in range(top, 0, -2):
        t, s, cross = load(lanes, p, k * W), load(lanes, p, (k - 1) * W), load(lanes, p, (REFLECTORS + k) * W)
        a0, a1, a2, a3 = a[0] * t, a[1] * t, a[2] * t, a[3] * t
        b0, b1, b2, b3 = b[0] - a0 * cross, b[1] - a1 * cross, b[2] - a2 * cross, b[3] - a3 * cross
        b0, b1, b2, b3 = b0 * s, b1 * s, b2 * s, b3 * s
        here, following = k * n * W, (k - 2) * n * W
        a, b = nothing, nothing
        if k > 1:
            for i in range(first + k - 2, first + k):
                u = load_four(lanes, v, place + i * down, W)
                a, b = _add_products(lanes, x, following + i * W, n * W, u, a, b)
        for i in range(first + k, n):
            h, g = load(lanes, x, here + i * W), load(lanes, x, here + (i - n) * W)
            u0, u1, u2, u3 = load_four(lanes, v, place + i * down, W)
            u = (u0 - a0 * h - b0 * g, u1 - a1 * h - b1 * g, u2 - a2 * h - b2 * g, u3 - a3 * h - b3 * g)
            store_four(v, place + i * down, W, u)
            if k > 1:
                a, b = _add_products(lanes, x, following + i * W, n * W, u, a, b)


@device_function
def _add_products(lanes: Any, x: Any, place: int, size: int, u: Any, a: Any, b: Any) -> Any:
    """Add h u and g u, with h and g from ``place`` and ``size`` before it, to sums for four vectors."""
    h, g = load(lanes, x, place), load(lanes, x, place - size)
    return (
        (a[0] + h * u[0], a[1] + h * u[1], a[2] + h * u[2], a[3] + h * u[3]),
        (b[0] + g * u[0], b[1] + g * u[1], b[2] + g * u[2], b[3] + g * u[3]),
    )
