"""Householder reduction of one symmetric matrix to tridiagonal form, vectors along its rows, and the way back.

* :func:`tridiagonalise` works on the full square: the rank-two update that step k leaves is applied while step k + 1
  forms its matrix-vector product, so the matrix is read and written once a step (8/3 n³ flops; beyond the first-level
  cache it is bound by the second level's bandwidth).
* :func:`reflect` applies the n − 2 reflectors to n vectors (2 n³ flops), stored in panels of 2W columns that stay in
  the first-level cache; reflector k updates a row while reflector k − 1 takes its sums from it, so each row is loaded
  and stored once for two of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiled import inner
from .vectors import (
    absolute,
    broadcast,
    fma,
    horizontal_sum,
    larger,
    load,
    power_of_two_inverse,
    splat,
    store,
    transpose,
    width,
)

__all__ = ["read_square", "reflect", "tridiagonalise"]

_BLOCK = 32  # rows summed at a time: errors of long sums grow with their blocks, not with all their terms


@inner
def read_square(lanes: Any, A: Any, start: int, n: int, stride: int, height: int, square: Any, tile: Any) -> Any:
    """Fill the padded square from the lower triangle at A[start], scaled by powers of two to size about 1.

    Returns 1/scale, as two factors (denormal matrices need more than one power of two); the first is NaN if the matrix
    is not finite, and the square is zero.
    """
    W = width(lanes)
    zero = splat(lanes, 0.0)
    for i in range(n):
        end = i // W * W
        for j in range(0, end, W):
            store(square, i * stride + j, load(lanes, A, start + i * n + j))
        for j in range(end, stride, W):
            store(square, i * stride + j, zero)
        for j in range(end, i + 1):
            square[i * stride + j] = A[start + i * n + j]
    for i in range(n * stride, height * stride, W):
        store(square, i, zero)
    for i0 in range(0, n, W):  # the upper triangle, tile by tile, then within the tiles on the diagonal
        for j0 in range(0, i0, W):
            transpose(lanes, square, i0 * stride + j0, stride, square, j0 * stride + i0, stride)
        for i in range(i0, min(i0 + W, n)):
            for j in range(i0, i):
                square[j * stride + i] = square[i * stride + j]
    biggest, marks = zero, zero
    for i in range(0, n * stride, W):
        t = load(lanes, square, i)
        biggest = larger(absolute(t), biggest)
        marks = fma(t, zero, marks)
    store(tile, 0, biggest)
    top = tile[0]
    for i in range(1, W):
        top = max(top, tile[i])
    finite = horizontal_sum(marks) == 0
    size = splat(lanes, top if finite else 1.0)
    scale = power_of_two_inverse(size)
    store(tile, 0, scale)
    store(tile, W, power_of_two_inverse(size * scale))
    factor = tile[0]
    second = max(tile[W], factor / factor)  # 1, but for denormal matrices, which need more than one power of two
    more = splat(lanes, second)
    for i in range(0, n * stride, W):
        t = load(lanes, square, i) * scale * more
        store(square, i, t if finite else zero)
    back = 1 / factor if finite else factor * np.nan
    return back, 1 / second


@inner
def tridiagonalise(
    lanes: Any, n: int, stride: int, square: Any, reflectors: Any,
    x: Any, w: Any, p: Any, diagonal: Any, off: Any, tau: Any, ramp: Any,
) -> None:  # fmt: skip
    """Reduce the square; row k of ``reflectors`` gets reflector k, zero before its leading 1 at k + 1.

    ``ramp`` holds 2W zeros, W ones, W zeros, a one and zeros: it masks the head of a row. (x, w) is the update
    S ← S − x wᵀ − w xᵀ that the previous step left to do.
    """
    W = width(lanes)
    zero = splat(lanes, 0.0)
    blocks = stride // W
    number = square.dtype.type
    # Above it no square that counts is lost to underflow; below, the column is round-off of the reduction.
    tiny = number(1e-28) if square.itemsize == 4 else number(1e-280)
    for j in range(0, stride, W):
        store(x, j, zero)
        store(w, j, zero)
    for k in range(n - 2):
        top, h, head = k * stride, k * stride, (k + 1) // W
        if k > 0:
            x_k, w_k = broadcast(lanes, x, k), broadcast(lanes, w, k)
            for j in range(k // W * W, stride, W):
                store(square, top + j, load(lanes, square, top + j) - x_k * load(lanes, w, j) - w_k * load(lanes, x, j))
        diagonal[k] = square[top + k]
        alpha = square[top + k + 1]
        for j in range(head):
            store(reflectors, h + j * W, zero)
        masked = load(lanes, square, top + head * W) * load(lanes, ramp, 2 * W - (k + 2 - head * W))
        store(reflectors, h + head * W, masked)
        total = masked * masked
        for j in range(head + 1, blocks):
            t = load(lanes, square, top + j * W)
            store(reflectors, h + j * W, t)
            total = total + t * t
        norm2 = horizontal_sum(total)
        if norm2 <= tiny:
            t_k, scale, off[k] = number(0), number(0), alpha
        else:
            length = np.sqrt(alpha * alpha + norm2)
            beta = -length if alpha >= 0 else length
            t_k, scale, off[k] = (beta - alpha) / beta, 1 / (alpha - beta), beta
        tau[k] = t_k
        factor = splat(lanes, scale)
        for j in range(head + 1, blocks):
            store(reflectors, h + j * W, load(lanes, reflectors, h + j * W) * factor)
        unit = load(lanes, ramp, 4 * W - (k + 1 - head * W))
        store(reflectors, h + head * W, load(lanes, reflectors, h + head * W) * factor + unit)
        j = head
        while j + 4 <= blocks:
            _update_and_multiply_4(lanes, n, stride, k, j * W, square, reflectors, x, w, p)
            j += 4
        while j < blocks:
            _update_and_multiply_1(lanes, n, stride, k, j * W, square, reflectors, x, w, p)
            j += 1
        t, dot = splat(lanes, t_k), zero
        for j in range(head * W, stride, W):
            u = load(lanes, p, j) * t
            store(w, j, u)
            dot = dot + u * load(lanes, reflectors, h + j)
        share = splat(lanes, number(0.5) * t_k * horizontal_sum(dot))
        for j in range(head * W, stride, W):
            u = load(lanes, reflectors, h + j)
            store(x, j, u)
            store(w, j, load(lanes, w, j) - share * u)
    if n > 2:
        for i in range(n - 2, n):
            for j in range(n - 2, n):
                square[i * stride + j] -= x[i] * w[j] + w[i] * x[j]
    diagonal[n - 2] = square[(n - 2) * stride + n - 2]
    diagonal[n - 1] = square[(n - 1) * stride + n - 1]
    off[n - 2] = square[(n - 1) * stride + n - 2]
    off[n - 1] = 0


@inner
def _update_and_multiply_4(
    lanes: Any, n: int, stride: int, k: int, o: int, square: Any, reflectors: Any, x: Any, w: Any, p: Any
) -> None:
    """Four vectors of columns from o: S ← S − x wᵀ − w xᵀ below row k, and p = Sᵀ h on the way."""
    W = width(lanes)
    zero = splat(lanes, 0.0)
    w0, w1, w2, w3 = load(lanes, w, o), load(lanes, w, o + W), load(lanes, w, o + 2 * W), load(lanes, w, o + 3 * W)
    x0, x1, x2, x3 = load(lanes, x, o), load(lanes, x, o + W), load(lanes, x, o + 2 * W), load(lanes, x, o + 3 * W)
    s0, s1, s2, s3 = zero, zero, zero, zero
    for begin in range(k + 1, n, _BLOCK):
        p0, p1, p2, p3 = zero, zero, zero, zero
        for i in range(begin, min(begin + _BLOCK, n)):
            xi, wi, hi = broadcast(lanes, x, i), broadcast(lanes, w, i), broadcast(lanes, reflectors, k * stride + i)
            r = i * stride + o
            a0 = load(lanes, square, r) - xi * w0 - wi * x0
            a1 = load(lanes, square, r + W) - xi * w1 - wi * x1
            a2 = load(lanes, square, r + 2 * W) - xi * w2 - wi * x2
            a3 = load(lanes, square, r + 3 * W) - xi * w3 - wi * x3
            store(square, r, a0)
            store(square, r + W, a1)
            store(square, r + 2 * W, a2)
            store(square, r + 3 * W, a3)
            p0, p1, p2, p3 = p0 + hi * a0, p1 + hi * a1, p2 + hi * a2, p3 + hi * a3
        s0, s1, s2, s3 = s0 + p0, s1 + p1, s2 + p2, s3 + p3
    store(p, o, s0)
    store(p, o + W, s1)
    store(p, o + 2 * W, s2)
    store(p, o + 3 * W, s3)


@inner
def _update_and_multiply_1(
    lanes: Any, n: int, stride: int, k: int, o: int, square: Any, reflectors: Any, x: Any, w: Any, p: Any
) -> None:
    """The same for one vector of columns; even and odd rows are summed apart, to overlap."""
    zero = splat(lanes, 0.0)
    w0, x0, total = load(lanes, w, o), load(lanes, x, o), zero
    for begin in range(k + 1, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        p0, p1, i = zero, zero, begin
        while i + 2 <= end:
            r, h = i * stride + o, k * stride + i
            a0 = load(lanes, square, r) - broadcast(lanes, x, i) * w0 - broadcast(lanes, w, i) * x0
            a1 = load(lanes, square, r + stride) - broadcast(lanes, x, i + 1) * w0 - broadcast(lanes, w, i + 1) * x0
            store(square, r, a0)
            store(square, r + stride, a1)
            p0, p1 = p0 + broadcast(lanes, reflectors, h) * a0, p1 + broadcast(lanes, reflectors, h + 1) * a1
            i += 2
        if i < end:
            a0 = load(lanes, square, i * stride + o) - broadcast(lanes, x, i) * w0 - broadcast(lanes, w, i) * x0
            store(square, i * stride + o, a0)
            p0 = p0 + broadcast(lanes, reflectors, k * stride + i) * a0
        total = total + (p0 + p1)
    store(p, o, total)


@inner
def reflect(lanes: Any, n: int, stride: int, reflectors: Any, tau: Any, panels: Any) -> None:
    """H_0 H_1 … H_(n−3) X in place; row i of X's columns c·2W to (c + 1)·2W is at ``panels[(c·n + i)·2W]``."""
    W = width(lanes)
    P = 2 * W
    zero = splat(lanes, 0.0)
    last = n - 3
    if last < 0:
        return
    for panel in range(0, (n + P - 1) // P * n * P, n * P):
        s0, s1 = zero, zero
        for i in range(last + 1, n):
            h, r = broadcast(lanes, reflectors, last * stride + i), panel + i * P
            s0, s1 = fma(h, load(lanes, panels, r), s0), fma(h, load(lanes, panels, r + W), s1)
        for k in range(last, 0, -1):
            t = splat(lanes, tau[k])
            t0, t1 = -(s0 * t), -(s1 * t)
            here, following = k * stride, (k - 1) * stride
            h, r = broadcast(lanes, reflectors, following + k), panel + k * P
            s0, s1 = h * load(lanes, panels, r), h * load(lanes, panels, r + W)
            for begin in range(k + 1, n, _BLOCK):
                end = min(begin + _BLOCK, n)
                u0, u1, v0, v1, i = zero, zero, zero, zero, begin
                while i + 2 <= end:
                    u0, u1 = _reflect_row(
                        lanes, reflectors, here + i, following + i, panels, panel + i * P, t0, t1, u0, u1
                    )
                    i += 1
                    v0, v1 = _reflect_row(
                        lanes, reflectors, here + i, following + i, panels, panel + i * P, t0, t1, v0, v1
                    )
                    i += 1
                if i < end:
                    u0, u1 = _reflect_row(
                        lanes, reflectors, here + i, following + i, panels, panel + i * P, t0, t1, u0, u1
                    )
                s0, s1 = s0 + (u0 + v0), s1 + (u1 + v1)
        t = splat(lanes, tau[0])
        t0, t1 = -(s0 * t), -(s1 * t)
        for i in range(1, n):
            h, r = broadcast(lanes, reflectors, i), panel + i * P
            store(panels, r, fma(h, t0, load(lanes, panels, r)))
            store(panels, r + W, fma(h, t1, load(lanes, panels, r + W)))


@inner
def _reflect_row(
    lanes: Any, reflectors: Any, here: int, following: int, panels: Any, r: int, t0: Any, t1: Any, s0: Any, s1: Any
) -> Any:
    """Finish one reflector on a row of a panel, and add the row to the sums of the next."""
    W = width(lanes)
    h, g = broadcast(lanes, reflectors, here), broadcast(lanes, reflectors, following)
    q0, q1 = fma(h, t0, load(lanes, panels, r)), fma(h, t1, load(lanes, panels, r + W))
    store(panels, r, q0)
    store(panels, r + W, q1)
    return fma(g, q0, s0), fma(g, q1, s1)
