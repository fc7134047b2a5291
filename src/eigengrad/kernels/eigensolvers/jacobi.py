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
from ..simd.interleave import deinterleave, interleave, normalise
from ..simd.memory import aligned, load, store_four, store_interleaved
from ..simd.vectors import (
    absolute,
    any_lane,
    copy_sign,
    fma,
    lanes_of,
    rsqrt_rounded,
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
    over_h = rsqrt_rounded(fma(gap, gap, fma(twice, twice, tiny)))
    cos2 = fma(half * absolute(gap), over_h, half)
    over_cos = rsqrt_rounded(cos2)
    nothing = absolute(a) <= negligible
    sin = copy_sign(over_h, gap) * select(nothing, zero, a) * over_cos
    return select(nothing, one, cos2 * over_cos), sin, sin * over_cos * a


@device_function
def _rotate(cos: Any, sin: Any, x: Any, y: Any) -> Any:
    return cos * x - sin * y, sin * x + cos * y


@device_function
def _rotations(
    lanes: Any, p: Any, q: Any, r: Any, s: Any, pq: Any, rs: Any, pr: Any, ps: Any, qr: Any, qs: Any, tiny: Any,
    negligible: Any,
) -> Any:  # fmt: skip
    """Zero the entries pq and rs of a matrix with the diagonal p, q, r, s.

    Returns the diagonal, the other four entries in the same order, and cosine and sine of both rotations.
    """
    cos, sin, t = _rotation(lanes, p, q, pq, tiny, negligible)
    other_cos, other_sin, u = _rotation(lanes, r, s, rs, tiny, negligible)
    pr, qr = _rotate(cos, sin, pr, qr)
    ps, qs = _rotate(cos, sin, ps, qs)
    pr, ps = _rotate(other_cos, other_sin, pr, ps)
    qr, qs = _rotate(other_cos, other_sin, qr, qs)
    return p - t, q + t, r - u, s + u, pr, ps, qr, qs, (cos, sin), (other_cos, other_sin)


@device_function
def _rotate_vectors(angle: Any, x: Any, y: Any) -> Any:
    """Two eigenvectors, four entries each, turned by an angle, (cos, sin)."""
    cos, sin = angle
    x0, y0 = _rotate(cos, sin, x[0], y[0])
    x1, y1 = _rotate(cos, sin, x[1], y[1])
    x2, y2 = _rotate(cos, sin, x[2], y[2])
    x3, y3 = _rotate(cos, sin, x[3], y[3])
    return (x0, x1, x2, x3), (y0, y1, y2, y3)


@device_function
def _unit(lanes: Any, x: Any, marks: Any) -> Any:
    """A vector of nearly unit length, brought to it: in the rotations cos² + sin² is only nearly 1. Marks are added."""
    length2 = fma(x[0], x[0], fma(x[1], x[1], fma(x[2], x[2], fma(x[3], x[3], splat(lanes, -1.0)))))
    t = splat(lanes, -0.5) * length2 + marks
    return fma(t, x[0], x[0]), fma(t, x[1], x[1]), fma(t, x[2], x[2]), fma(t, x[3], x[3])


@device_function
def _order(x: Any, y: Any, u: Any, v: Any) -> Any:
    """Two eigenpairs, (x, u) and (y, v), the smaller first: the values, then the vectors."""
    swap = x > y
    return (
        select(swap, y, x), select(swap, x, y),
        (select(swap, v[0], u[0]), select(swap, v[1], u[1]), select(swap, v[2], u[2]), select(swap, v[3], u[3])),
        (select(swap, u[0], v[0]), select(swap, u[1], v[1]), select(swap, u[2], v[2]), select(swap, u[3], v[3])),
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
        u, v = (one, zero, zero, zero), (zero, one, zero, zero)  # the eigenvectors of a, b, c, d
        w, x = (zero, zero, one, zero), (zero, zero, zero, one)
        off = (ab * ab + ac * ac + ad * ad) + (bc * bc + bd * bd + cd * cd)
        limit = ((a * a + b * b) + (c * c + d * d) + (off + off)) * close + tiny
        for _ in range(_SWEEPS):
            going_on = off > limit
            if not any_lane(going_on):
                break
            negligible = select(going_on, least, infinite)
            a, d, b, c, ab, ac, bd, cd, first_angle, second_angle = _rotations(
                lanes, a, d, b, c, ad, bc, ab, ac, bd, cd, tiny, negligible
            )
            a, c, b, d, ab, ad, bc, cd, third_angle, fourth_angle = _rotations(
                lanes, a, c, b, d, ac, bd, ab, zero, zero, cd, tiny, negligible
            )
            u, x = _rotate_vectors(first_angle, u, x)
            v, w = _rotate_vectors(second_angle, v, w)
            a, b, c, d, ac, ad, bc, bd, first_angle, second_angle = _rotations(
                lanes, a, b, c, d, ab, cd, zero, ad, bc, zero, tiny, negligible
            )
            u, w = _rotate_vectors(third_angle, u, w)
            v, x = _rotate_vectors(fourth_angle, v, x)
            ab = cd = zero
            off = (ac * ac + ad * ad) + (bc * bc + bd * bd)
            u, v = _rotate_vectors(first_angle, u, v)
            w, x = _rotate_vectors(second_angle, w, x)
        u, v, w, x = _unit(lanes, u, marks), _unit(lanes, v, marks), _unit(lanes, w, marks), _unit(lanes, x, marks)
        restore_denormals(mode)
        a, b, c, d = unsigned_zero(a), unsigned_zero(b), unsigned_zero(c), unsigned_zero(d)
        if n < 4:  # what only fills the 4×4 matrix up goes last
            d = splat(lanes, np.inf)
        if n < 3:
            c = splat(lanes, np.inf)
        if n < 2:
            b = splat(lanes, np.inf)
        a, b, u, v = _order(a, b, u, v)
        c, d, w, x = _order(c, d, w, x)
        a, c, u, w = _order(a, c, u, w)
        b, d, v, x = _order(b, d, v, x)
        b, c, v, w = _order(b, c, v, w)
        if any_lane(~(marks >= zero)):
            status = 1
            a, b, c, d = a + marks, b + marks, c + marks, d + marks
        _store_row(lanes, pairs, 0, u)  # each row over what the one before has too many
        _store_row(lanes, pairs, n * W, v)
        _store_row(lanes, pairs, 2 * n * W, w)
        _store_row(lanes, pairs, 3 * n * W, x)
        deinterleave(lanes, begin, count, n * n, pairs, V, offsets)
        a, b, c, d = a * back * again, b * back * again, c * back * again, d * back * again
        if n == 4 and count == W:
            store_interleaved(L, begin * 4, a, b, c, d)
        else:
            store_four(block, 0, W, (a, b, c, d))
            deinterleave(lanes, begin, count, n, block, L, offsets)
    return status


@device_function
def _store_row(lanes: Any, pairs: Any, place: int, x: Any) -> None:
    x0, x1, x2, x3 = unsigned_zero(x[0]), unsigned_zero(x[1]), unsigned_zero(x[2]), unsigned_zero(x[3])
    store_four(pairs, place, width(lanes), (x0, x1, x2, x3))


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
