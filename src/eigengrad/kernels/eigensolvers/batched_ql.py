"""Eigendecomposition for small n in large batches: W matrices at a time, each lane a matrix.

Householder reflections to tridiagonal form (4/3 n³ flops), their product formed from the last to the first (4/3 n³),
then implicit QL with its rotations applied to the vectors (about n² rotations in lockstep, of 6n flops: the bulk). All
loads and stores are whole vectors and no lane ever waits for a scalar. Blocks of W matrices are taken by twos where
there are two: their QL chains, which are latency, overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import inline, kernel
from ..runtime.work import DONE, add_status, next_chunk
from ..simd.arrays import decomposition_at, rounded
from ..simd.denormals import restore_denormals, suspend_denormals
from ..simd.interleave import deinterleave_sorted, interleave, interleave_rows, normalise
from ..simd.memory import aligned, load, store
from ..simd.vectors import any_lane, doubled, half_lanes_of, lanes_of, splat, unsigned_zero, width
from .batched_householder import REFLECTORS, accumulate, tridiagonalise
from .sweeps import KEPT_SWEEPS, diagonalise

__all__ = ["batched_ql", "batched_ql_half"]

_CACHED = 24  # up to this n the vectors of a block stay in the first-level cache


@inline
def _batched_ql(lanes: Any, chains: Any, A: Any, L: Any, V: Any, first: int, last: int, n: int) -> int:
    """Eigenvalues into L and eigenvectors, as rows, into V, for the matrices ``first`` to ``last``; n ≥ 2.

    ``chains`` are the lanes of QL chains: twice as many, for blocks by twos, or the same. Reads the lower triangles.
    Returns the sum of 1, if some matrix was not finite (its result is NaN), and 2, if some did not converge.
    """
    W, S = width(lanes), width(chains)
    large = n > _CACHED and n >= W
    # Entry i of eigenvector k is at i·stride + k, with room for four vectors and four entries at a time. An odd
    # multiple of eight vectors spreads rows and columns alike over all sets of the cache.
    stride = rounded(n + 8, 16) - 8 if large else rounded(n, 4)
    pitch = stride if large else n
    room = rounded(n, 4) * stride
    size = max(room, W * stride) * W  # transposes read W rows
    blocks = min(S // W, (last - first + W - 1) // W)
    a, v, tau = aligned(lanes, n * pitch * W), aligned(lanes, blocks * size), aligned(lanes, n * W)
    diagonal, off, rotations = aligned(chains, n * S), aligned(chains, n * S), aligned(chains, KEPT_SWEEPS * n * 3 * S)
    x, p = aligned(lanes, REFLECTORS * n * W), aligned(lanes, 2 * max(n, REFLECTORS) * W)
    values, ranks, scales = aligned(lanes, n * W), aligned(lanes, n * W), aligned(lanes, 6 * W)
    offsets, starts = np.empty(W, np.int64), np.empty(KEPT_SWEEPS + 1, np.int64)
    epsilon = 2.0**-24 if L.itemsize == 4 else 2.0**-53
    zero = splat(lanes, 0.0)
    status = 0
    for begin in range(first, last, blocks * W):
        halves = min(blocks, (last - begin + W - 1) // W)
        step = halves * W
        for half in range(halves):
            here = begin + half * W
            if large:
                interleave_rows(lanes, A, here, min(W, last - here), n, pitch, a, offsets)
            else:
                interleave(lanes, A, here, min(W, last - here), n * n, a, offsets)
            back, again, marks = normalise(lanes, a, n, pitch)
            store(scales, half * 3 * W, back)
            store(scales, half * 3 * W + W, again)
            store(scales, half * 3 * W + 2 * W, marks)
            mode = suspend_denormals()
            tridiagonalise(lanes, n, a, pitch, diagonal[half * W :], off[half * W :], step, tau, x, p)
            for i in range(room):
                store(v, half * size + i * W, zero)
            accumulate(lanes, n, a, pitch, tau, v[half * size :], stride, x, p)
            restore_denormals(mode)
        mode = suspend_denormals()
        if halves == 2:
            converged = diagonalise(lanes, chains, n, diagonal, off, v, size, stride, epsilon, rotations, starts)
        else:
            converged = diagonalise(lanes, lanes, n, diagonal, off, v, size, stride, epsilon, rotations, starts)
        restore_denormals(mode)
        if not converged:
            status |= 2
        for half in range(halves):
            back, again = load(lanes, scales, half * 3 * W), load(lanes, scales, half * 3 * W + W)
            marks = load(lanes, scales, half * 3 * W + 2 * W)  # zero, or NaN
            if any_lane(~(marks >= zero)):
                status |= 1
            for i in range(n):
                store(values, i * W, unsigned_zero(load(lanes, diagonal, i * step + half * W)) * back * again + marks)
            vectors = v[half * size :]
            for i in range(room):
                store(vectors, i * W, unsigned_zero(load(lanes, vectors, i * W) + marks))
            here = begin + half * W
            deinterleave_sorted(lanes, here, min(W, last - here), n, values, vectors, stride, L, V, ranks, offsets)
    return status


@kernel
def batched_ql(number: Any, A: int, L: int, V: int, batch: int, n: int, work: int) -> int:
    """Decompose matrices, n ≥ 2; :mod:`..eigensolvers` says what the arguments are."""
    lanes = lanes_of(number)
    matrices, values, vectors = decomposition_at(lanes, A, L, V, batch, n)
    begin, end = next_chunk(work, batch)
    while begin < end:
        add_status(work, _batched_ql(lanes, doubled(lanes), matrices, values, vectors, begin, end, n))
        begin, end = next_chunk(work, batch)
    return DONE


@kernel
def batched_ql_half(number: Any, A: int, L: int, V: int, batch: int, n: int, work: int) -> int:
    """Decompose matrices, n ≥ 2, in half registers: for so few that half of a whole one would be empty;
    :mod:`..eigensolvers` says what the arguments are.
    """
    lanes = half_lanes_of(number)
    matrices, values, vectors = decomposition_at(lanes, A, L, V, batch, n)
    begin, end = next_chunk(work, batch)
    while begin < end:
        add_status(work, _batched_ql(lanes, lanes, matrices, values, vectors, begin, end, n))
        begin, end = next_chunk(work, batch)
    return DONE
