"""Eigendecomposition for n ≤ 4: cyclic Jacobi, a whole matrix and its eigenvectors in registers, W matrices at a time.

A rotation zeroes one entry: with δ = a_qq − a_pp and h = √(δ² + 4a²), its angle has cos²θ = (1 + |δ|/h)/2 and
sin θ = ±a/(h cos θ). Six rotations make a sweep over a 4×4 matrix, by pairs that share no index; four sweeps are
typical, as convergence is quadratic. A sweep is about 6·(20 + 6·6) flops, some 1,400 a matrix in all; nothing but the
input and the result touches memory. Angles are latency and turns are throughput, so a pair's angles are computed before
the vectors are turned by those of the pair before. Smaller matrices run as 4×4 ones with zero rows: a zero entry gives
exactly no rotation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, inline, kernel
from ..runtime.work import DONE, add_status, next_chunk
from ..simd.arrays import decomposition_at
from ..simd.denormals import restore_denormals, suspend_denormals
from ..simd.interleave import interleave, normalise
from ..simd.memory import aligned, load, store, store_in_turns
from ..simd.transposes import transpose
from ..simd.vectors import (
    absolute,
    any_lane,
    copy_sign,
    fma,
    lanes_of,
    reciprocal_root_rounded,
    select,
    splat,
    unsigned_zero,
    width,
)

__all__ = ["jacobi"]

_SWEEPS = 15


@device_function
def _rotation(lanes: Any, p: Any, q: Any, a: Any, tiny: Any, negligible: Any) -> Any:
    """(cos, sin, tan·a) of the rotation that zeroes a = a_pq between the diagonal entries p and q.

    ``tiny`` keeps the square root from zero; a ``negligible`` a, next to which it would count, is dropped instead, as
    is every one of a matrix that has converged: it must not depend on how long its neighbours take.
    """
    zero, one, half = splat(lanes, 0.0), splat(lanes, 1.0), splat(lanes, 0.5)
    gap, twice = q - p, a + a
    over_h = reciprocal_root_rounded(fma(gap, gap, fma(twice, twice, tiny)))
    cos2 = fma(half * absolute(gap), over_h, half)
    over_cos = reciprocal_root_rounded(cos2)
    nothing = absolute(a) <= negligible
    sin = copy_sign(over_h, gap) * select(nothing, zero, a) * over_cos
    return select(nothing, one, cos2 * over_cos), sin, sin * over_cos * a


@device_function
def _turn(cos: Any, sin: Any, x: Any, y: Any) -> Any:
    return cos * x - sin * y, sin * x + cos * y


@device_function
def _turn_vectors(cos: Any, sin: Any, x0: Any, x1: Any, x2: Any, x3: Any, y0: Any, y1: Any, y2: Any, y3: Any) -> Any:
    x0, y0 = _turn(cos, sin, x0, y0)
    x1, y1 = _turn(cos, sin, x1, y1)
    x2, y2 = _turn(cos, sin, x2, y2)
    x3, y3 = _turn(cos, sin, x3, y3)
    return x0, x1, x2, x3, y0, y1, y2, y3


@device_function
def _unit(lanes: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> Any:
    """A vector of nearly unit length, brought to it: in the rotations cos² + sin² is only nearly 1."""
    excess = splat(lanes, -0.5) * fma(x0, x0, fma(x1, x1, fma(x2, x2, fma(x3, x3, splat(lanes, -1.0)))))
    return fma(excess, x0, x0), fma(excess, x1, x1), fma(excess, x2, x2), fma(excess, x3, x3)


@device_function
def _order(x: Any, y: Any, x0: Any, x1: Any, x2: Any, x3: Any, y0: Any, y1: Any, y2: Any, y3: Any) -> Any:
    """Two eigenpairs, the smaller first."""
    swap = x > y
    return (
        select(swap, y, x), select(swap, x, y),
        select(swap, y0, x0), select(swap, y1, x1), select(swap, y2, x2), select(swap, y3, x3),
        select(swap, x0, y0), select(swap, x1, y1), select(swap, x2, y2), select(swap, x3, y3),
    )  # fmt: skip


@inline
def _jacobi(lanes: Any, A: Any, L: Any, V: Any, first: int, last: int, n: int) -> int:
    """Eigenvalues into L and eigenvectors, as rows, into V, for the matrices ``first`` to ``last``; n ≤ 4.

    Reads the lower triangles. Returns 1 if some matrix was not finite (its result is NaN), else 0.
    """
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    single = L.itemsize == 4
    tiny, least = splat(lanes, 1e-30 if single else 1e-290), splat(lanes, 1e-11 if single else 1e-130)
    infinite = splat(lanes, np.inf)
    close = splat(lanes, 1e-15 if single else 1e-32)
    block, pairs = aligned(lanes, 16 * W), aligned(lanes, 16 * W)
    offsets = np.empty(W, np.int64)
    status = 0
    for begin in range(first, last, W):
        count = min(W, last - begin)
        interleave(lanes, A, begin, count, n * n, block, offsets)
        back, again, marks = normalise(lanes, block, n, n)
        mode = suspend_denormals()
        a = load(lanes, block, 0)
        b = c = d = ab = ac = ad = bc = bd = cd = zero
        if n > 1:
            ab, b = load(lanes, block, n * W), load(lanes, block, (n + 1) * W)
        if n > 2:
            ac, bc = load(lanes, block, 2 * n * W), load(lanes, block, (2 * n + 1) * W)
            c = load(lanes, block, (2 * n + 2) * W)
        if n > 3:
            ad, bd = load(lanes, block, 12 * W), load(lanes, block, 13 * W)
            cd, d = load(lanes, block, 14 * W), load(lanes, block, 15 * W)
        a0, a1, a2, a3 = one, zero, zero, zero
        b0, b1, b2, b3 = zero, one, zero, zero
        c0, c1, c2, c3 = zero, zero, one, zero
        d0, d1, d2, d3 = zero, zero, zero, one
        off = (ab * ab + ac * ac + ad * ad) + (bc * bc + bd * bd + cd * cd)
        limit = ((a * a + b * b) + (c * c + d * d) + (off + off)) * close + tiny
        for _ in range(_SWEEPS):
            going_on = off > limit
            if not any_lane(going_on):
                break
            negligible = select(going_on, least, infinite)
            cos1, sin1, t = _rotation(lanes, a, d, ad, tiny, negligible)
            cos2, sin2, u = _rotation(lanes, b, c, bc, tiny, negligible)
            a, d, ad = a - t, d + t, zero
            ab, bd = _turn(cos1, sin1, ab, bd)
            ac, cd = _turn(cos1, sin1, ac, cd)
            b, c, bc = b - u, c + u, zero
            ab, ac = _turn(cos2, sin2, ab, ac)
            bd, cd = _turn(cos2, sin2, bd, cd)
            cos3, sin3, t = _rotation(lanes, a, c, ac, tiny, negligible)
            cos4, sin4, u = _rotation(lanes, b, d, bd, tiny, negligible)
            a0, a1, a2, a3, d0, d1, d2, d3 = _turn_vectors(cos1, sin1, a0, a1, a2, a3, d0, d1, d2, d3)
            b0, b1, b2, b3, c0, c1, c2, c3 = _turn_vectors(cos2, sin2, b0, b1, b2, b3, c0, c1, c2, c3)
            a, c, ac = a - t, c + t, zero
            ab, bc = _turn(cos3, sin3, ab, bc)
            ad, cd = _turn(cos3, sin3, ad, cd)
            b, d, bd = b - u, d + u, zero
            ab, ad = _turn(cos4, sin4, ab, ad)
            bc, cd = _turn(cos4, sin4, bc, cd)
            cos5, sin5, t = _rotation(lanes, a, b, ab, tiny, negligible)
            cos6, sin6, u = _rotation(lanes, c, d, cd, tiny, negligible)
            a0, a1, a2, a3, c0, c1, c2, c3 = _turn_vectors(cos3, sin3, a0, a1, a2, a3, c0, c1, c2, c3)
            b0, b1, b2, b3, d0, d1, d2, d3 = _turn_vectors(cos4, sin4, b0, b1, b2, b3, d0, d1, d2, d3)
            a, b, ab = a - t, b + t, zero
            ac, bc = _turn(cos5, sin5, ac, bc)
            ad, bd = _turn(cos5, sin5, ad, bd)
            c, d, cd = c - u, d + u, zero
            ac, ad = _turn(cos6, sin6, ac, ad)
            bc, bd = _turn(cos6, sin6, bc, bd)
            off = (ab * ab + ac * ac + ad * ad) + (bc * bc + bd * bd + cd * cd)
            a0, a1, a2, a3, b0, b1, b2, b3 = _turn_vectors(cos5, sin5, a0, a1, a2, a3, b0, b1, b2, b3)
            c0, c1, c2, c3, d0, d1, d2, d3 = _turn_vectors(cos6, sin6, c0, c1, c2, c3, d0, d1, d2, d3)
        a0, a1, a2, a3 = _unit(lanes, a0, a1, a2, a3)
        b0, b1, b2, b3 = _unit(lanes, b0, b1, b2, b3)
        c0, c1, c2, c3 = _unit(lanes, c0, c1, c2, c3)
        d0, d1, d2, d3 = _unit(lanes, d0, d1, d2, d3)
        restore_denormals(mode)
        a, b, c, d = unsigned_zero(a), unsigned_zero(b), unsigned_zero(c), unsigned_zero(d)
        if n < 4:  # what only fills the 4×4 matrix up goes last
            d = splat(lanes, np.inf)
        if n < 3:
            c = splat(lanes, np.inf)
        if n < 2:
            b = splat(lanes, np.inf)
        a, b, a0, a1, a2, a3, b0, b1, b2, b3 = _order(a, b, a0, a1, a2, a3, b0, b1, b2, b3)
        c, d, c0, c1, c2, c3, d0, d1, d2, d3 = _order(c, d, c0, c1, c2, c3, d0, d1, d2, d3)
        a, c, a0, a1, a2, a3, c0, c1, c2, c3 = _order(a, c, a0, a1, a2, a3, c0, c1, c2, c3)
        b, d, b0, b1, b2, b3, d0, d1, d2, d3 = _order(b, d, b0, b1, b2, b3, d0, d1, d2, d3)
        b, c, b0, b1, b2, b3, c0, c1, c2, c3 = _order(b, c, b0, b1, b2, b3, c0, c1, c2, c3)
        if any_lane(~(marks >= zero)):
            status = 1
            a, b, c, d = a + marks, b + marks, c + marks, d + marks
            a0, a1, a2, a3 = a0 + marks, a1 + marks, a2 + marks, a3 + marks
            b0, b1, b2, b3 = b0 + marks, b1 + marks, b2 + marks, b3 + marks
            c0, c1, c2, c3 = c0 + marks, c1 + marks, c2 + marks, c3 + marks
            d0, d1, d2, d3 = d0 + marks, d1 + marks, d2 + marks, d3 + marks
        _store_row(lanes, pairs, 0, a0, a1, a2, a3)
        _store_row(lanes, pairs, 4 * W, b0, b1, b2, b3)
        _store_row(lanes, pairs, 8 * W, c0, c1, c2, c3)
        _store_row(lanes, pairs, 12 * W, d0, d1, d2, d3)
        a, b, c, d = a * back * again, b * back * again, c * back * again, d * back * again
        if n == 4 and count == W and W <= 16:
            for j in range(0, 16, W):
                transpose(lanes, pairs, j * W, W, V, begin * 16 + j, 16, W)
            store_in_turns(L, begin * 4, a, b, c, d)
            continue
        store(block, 0, a), store(block, W, b), store(block, 2 * W, c), store(block, 3 * W, d)
        _put(lanes, block, pairs, L, V, begin, count, n)
    return status


@device_function
def _store_row(lanes: Any, pairs: Any, place: int, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    W = width(lanes)
    store(pairs, place, unsigned_zero(x0)), store(pairs, place + W, unsigned_zero(x1))
    store(pairs, place + 2 * W, unsigned_zero(x2)), store(pairs, place + 3 * W, unsigned_zero(x3))


@device_function
def _put(lanes: Any, values: Any, vectors: Any, L: Any, V: Any, begin: int, count: int, n: int) -> None:
    """Empty the registers' blocks, number by number."""
    W = width(lanes)
    for w in range(count):
        for k in range(n):
            for i in range(n):
                V[(begin + w) * n * n + k * n + i] = vectors[(4 * k + i) * W + w]
    for w in range(count):
        for k in range(n):
            L[(begin + w) * n + k] = values[k * W + w]


@kernel
def jacobi(number: Any, A: int, L: int, V: int, batch: int, n: int, work: int) -> int:
    """Decompose matrices, n ≤ 4; :mod:`..eigensolvers` says what the arguments are."""
    lanes = lanes_of(number)
    matrices, values, vectors = decomposition_at(lanes, A, L, V, batch, n)
    begin, end = next_chunk(work, batch)
    while begin < end:
        add_status(work, _jacobi(lanes, matrices, values, vectors, begin, end, n))
        begin, end = next_chunk(work, batch)
    return DONE
