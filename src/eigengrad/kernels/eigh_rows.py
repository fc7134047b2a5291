"""Eigendecomposition for larger n, or few matrices: vectors run along the rows of one matrix.

The same algorithm as in ``eigh_lanes``, laid out for matrices that do not fit side by side:

* Householder reduction on the full symmetric matrix: the rank-two update that step k leaves is applied while step k + 1
  forms its matrix-vector product, so the matrix is read once a step (8/3 n³ flops, memory-bound beyond the L1 cache).
* The product of the reflectors in panels of 2W columns that stay in the L1 cache.
* The QL chains of up to W matrices in lockstep (``ql``), because one chain alone is pure latency. Their rotations are
  kept for some sweeps, then applied panel by panel, two sweeps at a time so that a vector is loaded and stored once for
  two rotations: 3 n³ fused operations at nearly peak rate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiled import compiled
from .ql import SWEEPS, find_blocks, finish_sweep, rotate, start_sweep
from .vectors import (
    absolute,
    aligned,
    broadcast,
    fma,
    horizontal_sum,
    larger,
    load,
    narrow,
    power_of_two_inverse,
    restore_denormals,
    splat,
    store,
    suspend_denormals,
    transpose,
    width,
)

__all__ = ["eigh_rows"]


@compiled
def eigh_rows(lanes: Any, chain: Any, A: Any, L: Any, V: Any, first: int, last: int, n: int) -> int:
    """Eigenvalues into L and eigenvectors, as rows, into V, for the matrices ``first`` to ``last``; n ≥ 2.

    ``chain`` are the lanes of the QL chains, as many as ``lanes`` has, in double precision: its thousands of dependent
    rotations are where single precision would lose a digit, and they are the smaller part of the work. Reads the lower
    triangles. Returns the sum of 1, if some matrix was not finite (its result is NaN), and 2, if some did not converge.
    """
    W = width(lanes)
    P = 2 * W  # columns of a panel
    panels = (n + P - 1) // P
    stride = (n + W - 1) // W * W
    kept = 16 if n <= 96 else 6  # sweeps whose rotations are kept before they are applied
    square, reflectors = aligned(lanes, panels * P * stride), aligned(lanes, n * stride)
    product, vectors = aligned(lanes, panels * n * P + 2 * W * P), aligned(lanes, W * panels * n * P + 2 * W * W)
    x, w, p, tau = aligned(lanes, stride), aligned(lanes, stride), aligned(lanes, stride), aligned(lanes, n)
    diagonal, off = aligned(chain, n * W), aligned(chain, n * W)
    rotations, sequence = aligned(lanes, (kept * n + W) * 2 * W), aligned(lanes, W * kept * (n + W) * 2)
    rows, order = np.empty(kept, np.int64), np.empty(n, np.int64)
    tile, back, again = aligned(lanes, W * W), aligned(lanes, W), aligned(lanes, W)
    ramp = aligned(lanes, 6 * W)  # W·2 zeros then ones; and one 1 among zeros: to mask the head of a row
    ramp[:] = 0
    ramp[2 * W : 3 * W] = 1
    ramp[4 * W] = 1
    span = kept * (n + W) * 2
    status = 0
    for begin in range(first, last, W):
        count = min(W, last - begin)
        for lane in range(count):
            finite = _read(lanes, A, (begin + lane) * n * n, n, stride, panels * P, square, tile, back, again, lane)
            if not finite:
                status |= 1
            mode = suspend_denormals()
            _tridiagonalise(lanes, n, stride, square, reflectors, x, w, p, diagonal, off, tau, lane, ramp)
            _accumulate(lanes, n, stride, reflectors, tau, product)
            _into_panels(lanes, n, product, vectors, lane * panels * n * P, tile)
            restore_denormals(mode)
        for lane in range(count, W):  # idle lanes follow the first
            for i in range(n):
                diagonal[i * W + lane], off[i * W + lane] = diagonal[i * W], off[i * W]
        mode = suspend_denormals()
        start, sweeps, done = 0, 0, False
        while not done and sweeps < SWEEPS * n:
            made, done, start = _chain(lanes, chain, n, diagonal, off, start, sweeps == 0, kept, rotations, rows)
            sweeps += made
            _sequence(lanes, n, count, made, rows, rotations, sequence, span)
            for lane in range(count):
                _turn(lanes, n, vectors, lane * panels * n * P, panels, made, rows, sequence, lane * span, span // 2)
        restore_denormals(mode)
        if not done:
            status |= 2
        for lane in range(count):
            _write(lanes, n, panels, diagonal, vectors, lane, back, again, begin + lane, L, V, order)
    return status


@compiled
def _read(
    lanes: Any,
    A: Any,
    start: int,
    n: int,
    stride: int,
    height: int,
    square: Any,
    tile: Any,
    back: Any,
    again: Any,
    lane: int,
) -> bool:
    """Fill the padded square from the lower triangle, scaled by powers of two to size about 1. False if not finite."""
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
    back[lane], again[lane] = 1 / factor, 1 / second
    more = splat(lanes, second)
    for i in range(0, n * stride, W):
        t = load(lanes, square, i) * scale * more
        store(square, i, t if finite else zero)
    if not finite:
        back[lane] = np.nan
    return finite


@compiled
def _tridiagonalise(
    lanes: Any, n: int, stride: int, square: Any, reflectors: Any,
    x: Any, w: Any, p: Any, diagonal: Any, off: Any, tau: Any, lane: int, ramp: Any,
) -> None:  # fmt: skip
    """Reduce the square; row k of ``reflectors`` gets reflector k, zero before its leading 1 at k + 1.

    (x, w) is the update S ← S − x wᵀ − w xᵀ that the previous step left to do.
    """
    W = width(lanes)
    zero = splat(lanes, 0.0)
    blocks = stride // W
    number = square.dtype.type
    tiny = number(1e-36) if square.itemsize == 4 else number(1e-300)
    for j in range(0, stride, W):
        store(x, j, zero)
        store(w, j, zero)
    for k in range(n - 2):
        top, h, head = k * stride, k * stride, (k + 1) // W
        if k > 0:
            x_k, w_k = broadcast(lanes, x, k), broadcast(lanes, w, k)
            for j in range(k // W * W, stride, W):
                store(square, top + j, load(lanes, square, top + j) - x_k * load(lanes, w, j) - w_k * load(lanes, x, j))
        diagonal[k * W + lane] = square[top + k]
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
            t_k, scale, off[k * W + lane] = number(0), number(0), alpha
        else:
            length = np.sqrt(alpha * alpha + norm2)
            beta = -length if alpha >= 0 else length
            t_k, scale, off[k * W + lane] = (beta - alpha) / beta, 1 / (alpha - beta), beta
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
    diagonal[(n - 2) * W + lane] = square[(n - 2) * stride + n - 2]
    diagonal[(n - 1) * W + lane] = square[(n - 1) * stride + n - 1]
    off[(n - 2) * W + lane] = square[(n - 1) * stride + n - 2]
    off[(n - 1) * W + lane] = 0


@compiled
def _update_and_multiply_4(
    lanes: Any, n: int, stride: int, k: int, o: int, square: Any, reflectors: Any, x: Any, w: Any, p: Any
) -> None:
    """Four vectors of columns from o: S ← S − x wᵀ − w xᵀ below row k, and p = Sᵀ h on the way."""
    W = width(lanes)
    zero = splat(lanes, 0.0)
    w0, w1, w2, w3 = load(lanes, w, o), load(lanes, w, o + W), load(lanes, w, o + 2 * W), load(lanes, w, o + 3 * W)
    x0, x1, x2, x3 = load(lanes, x, o), load(lanes, x, o + W), load(lanes, x, o + 2 * W), load(lanes, x, o + 3 * W)
    p0, p1, p2, p3 = zero, zero, zero, zero
    for i in range(k + 1, n):
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
    store(p, o, p0)
    store(p, o + W, p1)
    store(p, o + 2 * W, p2)
    store(p, o + 3 * W, p3)


@compiled
def _update_and_multiply_1(
    lanes: Any, n: int, stride: int, k: int, o: int, square: Any, reflectors: Any, x: Any, w: Any, p: Any
) -> None:
    """The same for one vector of columns; even and odd rows are summed apart, to overlap."""
    w0, x0 = load(lanes, w, o), load(lanes, x, o)
    p0, p1 = splat(lanes, 0.0), splat(lanes, 0.0)
    i = k + 1
    while i + 2 <= n:
        r, h = i * stride + o, k * stride + i
        a0 = load(lanes, square, r) - broadcast(lanes, x, i) * w0 - broadcast(lanes, w, i) * x0
        a1 = load(lanes, square, r + stride) - broadcast(lanes, x, i + 1) * w0 - broadcast(lanes, w, i + 1) * x0
        store(square, r, a0)
        store(square, r + stride, a1)
        p0, p1 = p0 + broadcast(lanes, reflectors, h) * a0, p1 + broadcast(lanes, reflectors, h + 1) * a1
        i += 2
    if i < n:
        a0 = load(lanes, square, i * stride + o) - broadcast(lanes, x, i) * w0 - broadcast(lanes, w, i) * x0
        store(square, i * stride + o, a0)
        p0 = p0 + broadcast(lanes, reflectors, k * stride + i) * a0
    store(p, o, p0 + p1)


@compiled
def _accumulate(lanes: Any, n: int, stride: int, reflectors: Any, tau: Any, product: Any) -> None:
    """The product of the reflectors in panels of 2W columns: row i of panel c at ``product[(c·n + i)·2W]``.

    A panel's reflectors are applied from the last that reaches it; reflector k updates a row while reflector k − 1
    takes its sums from it.
    """
    W = width(lanes)
    P = 2 * W
    zero = splat(lanes, 0.0)
    for base in range(0, n, P):
        panel = base * n
        for i in range(n):
            store(product, panel + i * P, zero)
            store(product, panel + i * P + W, zero)
        for i in range(base, min(n, base + P)):
            product[panel + i * P + i - base] = 1
        last = min(n - 3, base + P - 2)  # reflector k touches columns from k + 1
        if last < 0:
            continue
        s0, s1 = zero, zero
        for i in range(last + 1, n):
            h, r = broadcast(lanes, reflectors, last * stride + i), panel + i * P
            s0, s1 = fma(h, load(lanes, product, r), s0), fma(h, load(lanes, product, r + W), s1)
        for k in range(last, 0, -1):
            t = splat(lanes, tau[k])
            t0, t1 = -(s0 * t), -(s1 * t)
            here, following = k * stride, (k - 1) * stride
            h, r = broadcast(lanes, reflectors, following + k), panel + k * P
            s0, s1 = h * load(lanes, product, r), h * load(lanes, product, r + W)
            u0, u1 = zero, zero
            i = k + 1
            while i + 2 <= n:
                h, g, r = (
                    broadcast(lanes, reflectors, here + i),
                    broadcast(lanes, reflectors, following + i),
                    panel + i * P,
                )
                q0, q1 = fma(h, t0, load(lanes, product, r)), fma(h, t1, load(lanes, product, r + W))
                store(product, r, q0)
                store(product, r + W, q1)
                s0, s1 = fma(g, q0, s0), fma(g, q1, s1)
                i += 1
                h, g, r = broadcast(lanes, reflectors, here + i), broadcast(lanes, reflectors, following + i), r + P
                q0, q1 = fma(h, t0, load(lanes, product, r)), fma(h, t1, load(lanes, product, r + W))
                store(product, r, q0)
                store(product, r + W, q1)
                u0, u1 = fma(g, q0, u0), fma(g, q1, u1)
                i += 1
            if i < n:
                h, g, r = (
                    broadcast(lanes, reflectors, here + i),
                    broadcast(lanes, reflectors, following + i),
                    panel + i * P,
                )
                q0, q1 = fma(h, t0, load(lanes, product, r)), fma(h, t1, load(lanes, product, r + W))
                store(product, r, q0)
                store(product, r + W, q1)
                s0, s1 = fma(g, q0, s0), fma(g, q1, s1)
            s0, s1 = s0 + u0, s1 + u1
        t = splat(lanes, tau[0])
        t0, t1 = -(s0 * t), -(s1 * t)
        for i in range(1, n):
            h, r = broadcast(lanes, reflectors, i), panel + i * P
            store(product, r, fma(h, t0, load(lanes, product, r)))
            store(product, r + W, fma(h, t1, load(lanes, product, r + W)))


@compiled
def _into_panels(lanes: Any, n: int, product: Any, vectors: Any, place: int, tile: Any) -> None:
    """Transpose: vector k (column k of the product) becomes row k of each panel of 2W components."""
    W = width(lanes)
    P = 2 * W
    zero = splat(lanes, 0.0)
    for i0 in range(0, (n + P - 1) // P * P, W):
        target = place + i0 // P * n * P + i0 % P
        if i0 >= n:
            for k in range(n):
                store(vectors, target + k * P, zero)
            continue
        for k0 in range(0, n, W):
            transpose(lanes, product, k0 // P * n * P + i0 * P + k0 % P, P, tile, 0, W)
            for k in range(min(W, n - k0)):
                store(vectors, target + (k0 + k) * P, load(lanes, tile, k * W))


@compiled
def _chain(
    lanes: Any,
    chain: Any,
    n: int,
    diagonal: Any,
    off: Any,
    start: int,
    fresh: bool,
    kept: int,
    rotations: Any,
    rows: Any,
) -> Any:
    """Up to ``kept`` sweeps of the chains; rotation r of sweep s at ``rotations[(s·n + r)·2W]``: cosines, then sines.

    ``rows[s]`` is the row where sweep s ended. Returns the number of sweeps, whether all lanes are done, and that row.
    """
    W = width(lanes)
    epsilon = 2.0**-28 if rotations.itemsize == 4 else 2.0**-53
    for sweep in range(kept):
        row, shift = find_blocks(chain, diagonal, off, start, n, fresh and sweep == 0, epsilon)
        if row < 0:
            return sweep, True, start
        start = row
        rows[sweep] = row
        g, sin, cos, p, restarted, size = start_sweep(chain, diagonal, shift, n)
        o = sweep * n * 2 * W
        for i in range(n - 2, row - 1, -1):
            g, sin, cos, p, restarted, size, turn_cos, turn_sin = rotate(
                chain, diagonal, off, i, shift, epsilon, g, sin, cos, p, restarted, size
            )
            store(rotations, o, narrow(lanes, turn_cos))
            store(rotations, o + W, narrow(lanes, turn_sin))
            o += 2 * W
        finish_sweep(chain, diagonal, off, row, g, p, restarted)
    return kept, False, start


@compiled
def _sequence(lanes: Any, n: int, count: int, sweeps: int, rows: Any, rotations: Any, sequence: Any, span: int) -> None:
    """Sort the rotations by lane: cosines at ``sequence[lane·span]``, sines half a span later, sweeps padded to W."""
    W = width(lanes)
    place, half = 0, span // 2
    for sweep in range(sweeps):
        length, source = n - 1 - rows[sweep], sweep * n * 2 * W
        if count > 4:
            for r in range(0, length, W):
                transpose(lanes, rotations, source + r * 2 * W, 2 * W, sequence, place + r, span)
                transpose(lanes, rotations, source + r * 2 * W + W, 2 * W, sequence, place + r + half, span)
        else:
            for lane in range(count):
                for r in range(length):
                    sequence[lane * span + place + r] = rotations[source + r * 2 * W + lane]
                    sequence[lane * span + place + r + half] = rotations[source + r * 2 * W + W + lane]
        place += (length + W - 1) // W * W


@compiled
def _turn(
    lanes: Any,
    n: int,
    vectors: Any,
    place: int,
    panels: int,
    sweeps: int,
    rows: Any,
    sequence: Any,
    cosines: int,
    half: int,
) -> None:
    """Apply one matrix's rotations to its panels; two sweeps of equal length go together, one row apart."""
    W = width(lanes)
    for panel in range(panels):
        bottom = place + panel * n * 2 * W + (n - 1) * 2 * W
        at, sweep = cosines, 0
        while sweep < sweeps:
            length = n - 1 - rows[sweep]
            padded = (length + W - 1) // W * W
            if sweep + 1 < sweeps and rows[sweep + 1] == rows[sweep] and length >= 2:
                _turn_twice(lanes, vectors, bottom, length, sequence, at, at + padded, half)
                at += 2 * padded
                sweep += 2
            else:
                _turn_once(lanes, vectors, bottom, length, sequence, at, half)
                at += padded
                sweep += 1


@compiled
def _turn_once(lanes: Any, vectors: Any, q: int, length: int, sequence: Any, at: int, half: int) -> None:
    """The rotations of one sweep on the rows of a panel, from the row at q upwards; one row stays in registers."""
    W = width(lanes)
    P = 2 * W
    y0, y1 = load(lanes, vectors, q), load(lanes, vectors, q + W)
    for r in range(length):
        c, s = broadcast(lanes, sequence, at + r), broadcast(lanes, sequence, at + r + half)
        q -= P
        x0, x1 = load(lanes, vectors, q), load(lanes, vectors, q + W)
        store(vectors, q + P, fma(s, x0, c * y0))
        store(vectors, q + P + W, fma(s, x1, c * y1))
        y0, y1 = fma(-s, y0, c * x0), fma(-s, y1, c * x1)
    store(vectors, q, y0)
    store(vectors, q + W, y1)


@compiled
def _turn_twice(lanes: Any, vectors: Any, q: int, length: int, sequence: Any, at: int, then: int, half: int) -> None:
    """Two sweeps in one pass: the second follows one row behind the first."""
    W = width(lanes)
    P = 2 * W
    y0, y1 = load(lanes, vectors, q), load(lanes, vectors, q + W)
    q -= P
    c, s = broadcast(lanes, sequence, at), broadcast(lanes, sequence, at + half)
    x0, x1 = load(lanes, vectors, q), load(lanes, vectors, q + W)
    z0, z1 = fma(s, x0, c * y0), fma(s, x1, c * y1)
    y0, y1 = fma(-s, y0, c * x0), fma(-s, y1, c * x1)
    for r in range(1, length):
        c, s = broadcast(lanes, sequence, at + r), broadcast(lanes, sequence, at + r + half)
        d, t = broadcast(lanes, sequence, then + r - 1), broadcast(lanes, sequence, then + r - 1 + half)
        q -= P
        x0, x1 = load(lanes, vectors, q), load(lanes, vectors, q + W)
        u0, u1 = fma(s, x0, c * y0), fma(s, x1, c * y1)
        y0, y1 = fma(-s, y0, c * x0), fma(-s, y1, c * x1)
        store(vectors, q + 2 * P, fma(t, u0, d * z0))
        store(vectors, q + 2 * P + W, fma(t, u1, d * z1))
        z0, z1 = fma(-t, z0, d * u0), fma(-t, z1, d * u1)
    d, t = broadcast(lanes, sequence, then + length - 1), broadcast(lanes, sequence, then + length - 1 + half)
    store(vectors, q + P, fma(t, y0, d * z0))
    store(vectors, q + P + W, fma(t, y1, d * z1))
    store(vectors, q, fma(-t, z0, d * y0))
    store(vectors, q + W, fma(-t, z1, d * y1))


@compiled
def _write(
    lanes: Any, n: int, panels: int, diagonal: Any, vectors: Any, lane: int, back: Any, again: Any, matrix: int,
    L: Any, V: Any, order: Any,
) -> None:  # fmt: skip
    """One matrix's eigenpairs, ascending (by insertion: the iteration leaves them nearly sorted)."""
    W = width(lanes)
    P = 2 * W
    for i in range(n):
        value, j = diagonal[i * W + lane], i
        while j > 0 and diagonal[order[j - 1] * W + lane] > value:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
    marks = splat(lanes, back[lane] * 0)  # NaN for a matrix that was not finite
    for k in range(n):
        source = order[k]
        L[matrix * n + k] = diagonal[source * W + lane] * back[lane] * again[lane]
        for panel in range(panels):
            row, target = (lane * panels + panel) * n * P + source * P, matrix * n * n + k * n + panel * P
            if (panel + 1) * P <= n:
                store(V, target, load(lanes, vectors, row) + marks)
                store(V, target + W, load(lanes, vectors, row + W) + marks)
            else:
                for i in range(n - panel * P):
                    V[target + i] = vectors[row + i] + back[lane] * 0
