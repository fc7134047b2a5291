"""Householder reduction of one symmetric matrix to tridiagonal form, vectors along its rows.

A step needs one product of the matrix with a vector, and leaves a rank-two update. Beyond the first-level cache it is
memory that bounds both, so reflectors come in panels: within a panel the matrix is only read, and the products are
corrected for the updates that it lacks; then all of them are made at once, 4×2 vectors at a time in registers. And of
the symmetric matrix only the blocks on and above the diagonal are read and written. 4/3 n³ flops, half of them in the
products and half in the updates; the corrections are 12n² more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function
from ..simd.blocks import add_outer, lane_sums, zero_block
from ..simd.memory import broadcast, load, store
from ..simd.transposes import transpose
from ..simd.vectors import absolute, fma, maximum, power_of_two_inverse, reduce_sum, splat, width

__all__ = ["PANEL", "read_square", "tridiagonalise"]

PANEL = 8  # reflectors between updates
_WHOLE = 512  # bytes of a row, up to which the square is in the cache: both its triangles are then used


@device_function
def read_square(lanes: Any, A: Any, start: int, n: int, stride: int, square: Any, tile: Any) -> Any:
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
    for i in range(n * stride, stride * stride, W):
        store(square, i, zero)
    for i0 in range(0, n, W):  # the upper triangle, tile by tile, then within the tiles on the diagonal
        for j0 in range(0, i0, W):
            transpose(lanes, square, i0 * stride + j0, stride, square, j0 * stride + i0, stride, W, W)
        for i in range(i0, min(i0 + W, n)):
            for j in range(i0, i):
                square[j * stride + i] = square[i * stride + j]
    biggest, marks = zero, zero
    for i in range(0, n * stride, W):
        t = load(lanes, square, i)
        biggest = maximum(absolute(t), biggest)
        marks = fma(t, zero, marks)
    store(tile, 0, biggest)
    top = tile[0]
    for i in range(1, W):
        top = max(top, tile[i])
    finite = reduce_sum(marks) == 0
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


@device_function
def tridiagonalise(
    lanes: Any, n: int, stride: int, square: Any, reflectors: Any,
    w: Any, p: Any, rows: Any, sums: Any, diagonal: Any, off: Any, tau: Any, ramp: Any,
) -> None:  # fmt: skip
    """Reduce the square; row k of ``reflectors`` gets reflector k, zero before its leading 1 at k + 1.

    The square has rows of ``stride``, a multiple of 2W, and as many, zero from n on. ``ramp`` holds 2W zeros, W ones,
    W zeros, a one and zeros: it masks the head of a row. The others are scratch: ``w`` for the second vectors of a
    panel's updates S ← S − h wᵀ − w hᵀ, ``p`` for S h, ``rows`` and ``sums`` for sums over lanes.
    """
    W = width(lanes)
    # The side of the blocks on the diagonal, of which both triangles are used.
    side = stride if stride * square.itemsize <= _WHOLE else 2 * W
    for first in range(0, n - 2, PANEL):
        last = min(first + PANEL, n - 2)
        for k in range(first, last):
            _update_row(lanes, stride, first, k, square, reflectors, w)
            diagonal[k] = square[k * stride + k]
            off[k], tau[k] = _make_reflector(lanes, stride, k, square, reflectors, ramp)
            _multiply(lanes, stride, side, k, square, reflectors, p, rows)
            _complete(lanes, stride, first, k, tau[k], reflectors, w, p, rows, sums)
        _update(lanes, n, stride, side, first, last, square, reflectors, w)
    for k in range(n - 2, n):
        diagonal[k] = square[k * stride + k]
    off[n - 2] = square[(n - 2) * stride + n - 1]
    off[n - 1] = 0


@device_function
def _update_row(lanes: Any, stride: int, first: int, k: int, square: Any, reflectors: Any, w: Any) -> None:
    """Row k, after the updates of its panel so far."""
    W = width(lanes)
    for j in range(k // W * W, stride, W):
        total = splat(lanes, 0.0)
        for t in range(k - first):
            h, u = (first + t) * stride, t * stride
            total = fma(broadcast(lanes, reflectors, h + k), load(lanes, w, u + j), total)
            total = fma(broadcast(lanes, w, u + k), load(lanes, reflectors, h + j), total)
        store(square, k * stride + j, load(lanes, square, k * stride + j) - total)


@device_function
def _make_reflector(lanes: Any, stride: int, k: int, square: Any, reflectors: Any, ramp: Any) -> Any:
    """Reflector k from row k of the square. Returns what it leaves beside the diagonal, and its factor τ."""
    W = width(lanes)
    number = square.dtype.type
    # Above it no square that counts is lost to underflow; below, the column is round-off of the reduction.
    tiny = number(1e-28) if square.itemsize == 4 else number(1e-280)
    row, head = k * stride, (k + 1) // W * W
    alpha = square[row + k + 1]
    for j in range(0, head, W):
        store(reflectors, row + j, splat(lanes, 0.0))
    masked = load(lanes, square, row + head) * load(lanes, ramp, 2 * W - (k + 2 - head))
    store(reflectors, row + head, masked)
    total = masked * masked
    for j in range(head + W, stride, W):
        t = load(lanes, square, row + j)
        store(reflectors, row + j, t)
        total = total + t * t
    norm2 = reduce_sum(total)
    if norm2 <= tiny:
        beta, tau, scale = alpha, number(0), number(0)
    else:
        length = np.sqrt(alpha * alpha + norm2)
        beta = -length if alpha >= 0 else length
        tau, scale = (beta - alpha) / beta, 1 / (alpha - beta)
    factor = splat(lanes, scale)
    for j in range(head + W, stride, W):
        store(reflectors, row + j, load(lanes, reflectors, row + j) * factor)
    unit = load(lanes, ramp, 4 * W - (k + 1 - head))
    store(reflectors, row + head, load(lanes, reflectors, row + head) * factor + unit)
    return beta, tau


@device_function
def _multiply(lanes: Any, stride: int, side: int, k: int, square: Any, reflectors: Any, p: Any, rows: Any) -> None:
    """p = S h for reflector k, two vectors of columns at a time.

    What is above the blocks on the diagonal takes part twice: in the sums of its columns, and in those of its rows, W
    for each. Rows are summed in blocks of 2W: errors of long sums grow with their blocks, not with all their terms.
    """
    W = width(lanes)
    P = 2 * W
    h, begin = k * stride, (k + 1) // P * P
    end = (stride - 1) // side * side  # rows from here on have nothing above the diagonal blocks
    for i in range(begin, end):
        store(rows, i * W, splat(lanes, 0.0))
    for o in range(begin, stride, P):
        s0, s1 = splat(lanes, 0.0), splat(lanes, 0.0)
        h0, h1 = load(lanes, reflectors, h + o), load(lanes, reflectors, h + o + W)
        below = o // side * side
        for block in range(begin, below + side, P):
            a0, a1, b0, b1 = splat(lanes, 0.0), splat(lanes, 0.0), splat(lanes, 0.0), splat(lanes, 0.0)
            for i in range(block, block + P, 2):
                r = i * stride + o
                x0, x1 = load(lanes, square, r), load(lanes, square, r + W)
                y0, y1 = load(lanes, square, r + stride), load(lanes, square, r + stride + W)
                f, g = broadcast(lanes, reflectors, h + i), broadcast(lanes, reflectors, h + i + 1)
                a0, a1, b0, b1 = fma(f, x0, a0), fma(f, x1, a1), fma(g, y0, b0), fma(g, y1, b1)
                if block < below:
                    store(rows, i * W, fma(x1, h1, fma(x0, h0, load(lanes, rows, i * W))))
                    store(rows, (i + 1) * W, fma(y1, h1, fma(y0, h0, load(lanes, rows, (i + 1) * W))))
            s0, s1 = s0 + (a0 + b0), s1 + (a1 + b1)
        store(p, o, s0)
        store(p, o + W, s1)
    for i in range(begin, end, W):
        store(p, i, load(lanes, p, i) + lane_sums(lanes, rows, i * W))


@device_function
def _complete(
    lanes: Any, stride: int, first: int, k: int, tau: Any, reflectors: Any, w: Any, p: Any, rows: Any, sums: Any
) -> None:
    """w = τ (p − τ/2 (pᵀh) h) of reflector k, p = S h after the updates of its panel so far, which S itself lacks."""
    W = width(lanes)
    zero = splat(lanes, 0.0)
    h, begin, here = k * stride, (k + 1) // W * W, (k - first) * stride
    if k > first:
        for t in range(k - first):
            a, b = zero, zero
            for j in range(begin, stride, W):
                x = load(lanes, reflectors, h + j)
                a = fma(x, load(lanes, w, t * stride + j), a)
                b = fma(x, load(lanes, reflectors, (first + t) * stride + j), b)
            store(rows, t * W, a)
            store(rows, (PANEL + t) * W, b)
        for t in range(0, 2 * PANEL, W):
            store(sums, t, lane_sums(lanes, rows, t * W))
    factor, dot = splat(lanes, tau), zero
    for j in range(begin, stride, W):
        total = zero
        for t in range(k - first):
            total = fma(broadcast(lanes, sums, t), load(lanes, reflectors, (first + t) * stride + j), total)
            total = fma(broadcast(lanes, sums, PANEL + t), load(lanes, w, t * stride + j), total)
        u = (load(lanes, p, j) - total) * factor
        store(w, here + j, u)
        dot = dot + u * load(lanes, reflectors, h + j)
    share = splat(lanes, w.dtype.type(0.5) * tau * reduce_sum(dot))
    for j in range(begin, stride, W):
        store(w, here + j, load(lanes, w, here + j) - share * load(lanes, reflectors, h + j))


@device_function
def _update(
    lanes: Any, n: int, stride: int, side: int, first: int, last: int, square: Any, reflectors: Any, w: Any
) -> None:
    """S ← S − Σ h wᵀ + w hᵀ over the panel from ``first`` to ``last``, from row ``last`` on."""
    W = width(lanes)
    zero = splat(lanes, 0.0)
    for o in range(last // (2 * W) * 2 * W, stride, 2 * W):
        for i in range(last // 4 * 4, min(o // side * side + side, n), 4):
            block = zero_block(lanes, 8)
            for t in range(last - first):
                h, u = (first + t) * stride, t * stride
                block = add_outer(lanes, block, 2, w, u + o, zero, reflectors, h + i, 1)
                block = add_outer(lanes, block, 2, reflectors, h + o, zero, w, u + i, 1)
            r = i * stride + o
            _subtract(lanes, square, r, block[0], block[1])
            _subtract(lanes, square, r + stride, block[2], block[3])
            _subtract(lanes, square, r + 2 * stride, block[4], block[5])
            _subtract(lanes, square, r + 3 * stride, block[6], block[7])


@device_function
def _subtract(lanes: Any, square: Any, place: int, x: Any, y: Any) -> None:
    W = width(lanes)
    store(square, place, load(lanes, square, place) - x)
    store(square, place + W, load(lanes, square, place + W) - y)
