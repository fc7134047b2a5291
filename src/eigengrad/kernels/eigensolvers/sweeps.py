"""QL sweeps until every lane is diagonal, with their rotations applied to the eigenvectors.

The rotations depend on the tridiagonal matrix alone. So those of a few sweeps are computed first and kept, and then
applied to a few rows of the vectors at a time, which stay in the first-level cache. The chain of a sweep is latency: it
may run in vectors of two registers, for two blocks of matrices at once. Applying it is throughput, 6n flops a rotation:
two sweeps share each load and store, because on some CPUs a store takes as long as two multiplications.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function
from ..simd.memory import load, load_four, store, store_four
from ..simd.vectors import width
from .ql import SWEEPS, find_blocks, finish_sweep, rotate, start_sweep, turned

__all__ = ["TOGETHER", "diagonalise"]

TOGETHER = 8  # sweeps whose rotations are kept, an even number


@device_function
def diagonalise(
    lanes: Any, chain: Any, n: int, diagonal: Any, off: Any, v: Any, size: int, stride: int, epsilon: float, turns: Any,
    starts: Any,
) -> bool:  # fmt: skip
    """Turn ``diagonal`` into eigenvalues and the columns of ``v`` into eigenvectors. False if sweeps were not enough.

    Args:
        lanes: the vectors of ``v``.
        chain: those of the tridiagonal matrices: the same, or twice as wide, for a second block of vectors.
        diagonal, off: entries of the tridiagonal matrices.
        v: a block of n rows, ``stride`` vectors apart, with room for four at a time; the second begins at ``size``.
        turns: room for the rotations of TOGETHER sweeps.
        starts: room for TOGETHER + 1 numbers.
    """
    W, S = width(lanes), width(chain)
    start: Any = np.int64(0)  # a literal 0 would be a type of its own, and what is called compiled for it as well
    kept: Any = start
    for sweep in range(SWEEPS * n):
        start_row, shift = find_blocks(chain, diagonal, off, start, n, sweep == 0, epsilon)
        if start_row < 0 or kept == TOGETHER:
            starts[kept] = n - 1  # no rotation, if the last sweep has no partner
            for half in range(0, S, W):
                _turn(lanes, n, v[half // W * size :], stride * W, turns[half:], S, starts, kept)
            kept = 0
        if start_row < 0:
            return True
        start = start_row
        g, sin, cos, p, restarted, distance = start_sweep(chain, diagonal, shift, n)
        for i in range(n - 2, start - 1, -1):
            g, sin, cos, p, restarted, distance, first, second, third = rotate(
                chain, diagonal, off, i, shift, epsilon, g, sin, cos, p, restarted, distance
            )
            place = (kept * n + i) * 3 * S
            store(turns, place, first)
            store(turns, place + S, second)
            store(turns, place + 2 * S, third)
        finish_sweep(chain, diagonal, off, start, g, p, restarted)
        starts[kept] = start
        kept += 1
    return False


@device_function
def _turn(lanes: Any, n: int, v: Any, row: int, turns: Any, S: int, starts: Any, sweeps: int) -> None:
    """Apply the rotations of some sweeps to the columns of ``v``, in four rows at a time, by pairs of sweeps.

    The second of a pair follows one column behind the first. Each carries the column that its next rotation changes.
    """
    W = width(lanes)
    for top in range(0, n, 4):
        for sweep in range(0, sweeps, 2):
            start, later = starts[sweep], starts[sweep + 1]
            place = top * row + (n - 2) * W
            turn, other = (sweep * n + n - 2) * 3 * S, ((sweep + 1) * n + n - 1) * 3 * S
            x, y = load_four(lanes, v, place, row), load_four(lanes, v, place + W, row)
            near, far = _turn_four(lanes, turns, turn, S, x, y)
            for _ in range(n - 2 - max(start, later - 1)):
                place, turn, other = place - W, turn - 3 * S, other - 3 * S
                near, between = _turn_four(lanes, turns, turn, S, load_four(lanes, v, place, row), near)
                far, done = _turn_four(lanes, turns, other, S, between, far)
                store_four(v, place + 2 * W, row, done)
            if later <= start:  # the second has one rotation left
                near, far = _turn_four(lanes, turns, other - 3 * S, S, near, far)
            store_four(v, place + W, row, far)
            for _ in range(later - 1 - start):  # that are left of the first
                place, turn = place - W, turn - 3 * S
                near, done = _turn_four(lanes, turns, turn, S, load_four(lanes, v, place, row), near)
                store_four(v, place + W, row, done)
            store_four(v, place, row, near)


@device_function
def _turn_four(lanes: Any, turns: Any, turn: int, S: int, x: Any, y: Any) -> Any:
    """One rotation of two columns, in four rows."""
    f, s, t = load(lanes, turns, turn), load(lanes, turns, turn + S), load(lanes, turns, turn + 2 * S)
    x0, y0 = turned(f, s, t, x[0], y[0])
    x1, y1 = turned(f, s, t, x[1], y[1])
    x2, y2 = turned(f, s, t, x[2], y[2])
    x3, y3 = turned(f, s, t, x[3], y[3])
    return (x0, x1, x2, x3), (y0, y1, y2, y3)
