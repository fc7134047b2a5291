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
from .ql import SWEEPS, apply_rotation, find_blocks, finish_sweep, rotate, start_sweep

__all__ = ["KEPT_SWEEPS", "diagonalise"]

KEPT_SWEEPS = 8  # an even number: their rotations are kept, and applied together


@device_function
def diagonalise(
    lanes: Any, chain: Any, n: int, diagonal: Any, off: Any, v: Any, size: int, stride: int, epsilon: float,
    rotations: Any, starts: Any,
) -> bool:  # fmt: skip
    """Turn ``diagonal`` into eigenvalues and the columns of ``v`` into eigenvectors. False if sweeps were not enough.

    Args:
        lanes: the vectors of ``v``.
        chain: those of the tridiagonal matrices: the same, or twice as wide, for a second block of vectors.
        diagonal, off: entries of the tridiagonal matrices.
        v: a block of n rows, ``stride`` vectors apart, with room for four at a time; the second begins at ``size``.
        rotations: room for those of KEPT_SWEEPS sweeps, three numbers each.
        starts: room for KEPT_SWEEPS + 1 numbers.
    """
    W, S = width(lanes), width(chain)
    start: Any = np.int64(0)  # a literal 0 would be a type of its own, and what is called compiled for it as well
    kept: Any = start
    for sweep in range(SWEEPS * n):
        start_row, shift = find_blocks(chain, diagonal, off, start, n, sweep == 0, epsilon)
        if start_row < 0 or kept == KEPT_SWEEPS:
            starts[kept] = n - 1  # no rotation, if the last sweep has no partner
            for half in range(0, S, W):
                _apply_rotations(lanes, n, v[half // W * size :], stride * W, rotations[half:], S, starts, kept)
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
            store(rotations, place, first)
            store(rotations, place + S, second)
            store(rotations, place + 2 * S, third)
        finish_sweep(chain, diagonal, off, start, g, p, restarted)
        starts[kept] = start
        kept += 1
    return False


@device_function
def _apply_rotations(lanes: Any, n: int, v: Any, row: int, rotations: Any, S: int, starts: Any, sweeps: int) -> None:
    """Apply the rotations of some sweeps to the columns of ``v``, in four rows at a time, by pairs of sweeps.

    The second of a pair follows one column behind the first. Each carries the column that its next rotation changes.
    """
    W = width(lanes)
    for top in range(0, n, 4):
        for sweep in range(0, sweeps, 2):
            start, later = starts[sweep], starts[sweep + 1]
            place = top * row + (n - 2) * W
            rotation, other = (sweep * n + n - 2) * 3 * S, ((sweep + 1) * n + n - 1) * 3 * S
            x, y = load_four(lanes, v, place, row), load_four(lanes, v, place + W, row)
            near, far = _rotate_four(lanes, rotations, rotation, S, x, y)
            for _ in range(n - 2 - max(start, later - 1)):
                place, rotation, other = place - W, rotation - 3 * S, other - 3 * S
                near, between = _rotate_four(lanes, rotations, rotation, S, load_four(lanes, v, place, row), near)
                far, done = _rotate_four(lanes, rotations, other, S, between, far)
                store_four(v, place + 2 * W, row, done)
            if later <= start:  # the second has one rotation left
                near, far = _rotate_four(lanes, rotations, other - 3 * S, S, near, far)
            store_four(v, place + W, row, far)
            for _ in range(later - 1 - start):  # that are left of the first
                place, rotation = place - W, rotation - 3 * S
                near, done = _rotate_four(lanes, rotations, rotation, S, load_four(lanes, v, place, row), near)
                store_four(v, place + W, row, done)
            store_four(v, place, row, near)


@device_function
def _rotate_four(lanes: Any, rotations: Any, place: int, S: int, x: Any, y: Any) -> Any:
    """One rotation of two columns, x and y, in four rows; its three numbers begin at ``place``, S apart."""
    f, s, t = load(lanes, rotations, place), load(lanes, rotations, place + S), load(lanes, rotations, place + 2 * S)
    x0, y0 = apply_rotation(f, s, t, x[0], y[0])
    x1, y1 = apply_rotation(f, s, t, x[1], y[1])
    x2, y2 = apply_rotation(f, s, t, x[2], y[2])
    x3, y3 = apply_rotation(f, s, t, x[3], y[3])
    return (x0, x1, x2, x3), (y0, y1, y2, y3)
