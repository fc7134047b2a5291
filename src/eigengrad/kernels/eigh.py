"""The eigensolvers from addresses: an entry each.

It takes a number of the matrices' type (see :mod:`.arrays`), the addresses of A (b, n, n), L (b, n) and V (b, n, n),
all contiguous, and b, and works on chunks of the matrices (:mod:`.runtime.work`). A's lower triangles are read; L gets
the eigenvalues, ascending, and V the eigenvectors as rows. Status bits: 1, some matrix is not finite; 2, some did not
converge.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import array_at
from .eigh_divided import eigh_divided
from .eigh_lanes import eigh_lanes
from .jacobi import jacobi
from .runtime.compile import device_function, inline, kernel
from .runtime.work import DONE, add_status, next_chunk
from .vectors import AVX512, doubled, half_lanes_of, lanes_of, narrow_lanes_of

__all__ = ["HALVES", "by_jacobi", "divided", "few_side_by_side", "side_by_side"]

#: Whether half registers are used for matrices that do not fill whole ones: some CPUs take those of 64 bytes in halves.
HALVES = AVX512


@device_function
def _arrays(lanes: Any, A: int, L: int, V: int, batch: int, n: int) -> Any:
    size = batch * n * n
    return array_at(lanes, A, size), array_at(lanes, L, batch * n), array_at(lanes, V, size)


@kernel
def by_jacobi(number: Any, A: int, L: int, V: int, last: int, n: int, work: int) -> int:
    """:func:`.jacobi.jacobi`: n ≤ 4."""
    lanes = lanes_of(number)
    matrices, values, vectors = _arrays(lanes, A, L, V, last, n)
    begin, end = next_chunk(work, last)
    while begin < end:
        status = jacobi(lanes, matrices, values, vectors, begin, end, n)
        add_status(work, status)
        begin, end = next_chunk(work, last)
    return DONE


@inline
def _side_by_side(lanes: Any, chains: Any, A: int, L: int, V: int, last: int, n: int, work: int) -> int:
    matrices, values, vectors = _arrays(lanes, A, L, V, last, n)
    begin, end = next_chunk(work, last)
    while begin < end:
        add_status(work, eigh_lanes(lanes, chains, matrices, values, vectors, begin, end, n))
        begin, end = next_chunk(work, last)
    return DONE


@kernel
def side_by_side(number: Any, A: int, L: int, V: int, last: int, n: int, work: int) -> int:
    """:func:`.eigh_lanes.eigh_lanes`: n ≥ 2."""
    lanes = lanes_of(number)
    return _side_by_side(lanes, doubled(lanes), A, L, V, last, n, work)


@kernel
def few_side_by_side(number: Any, A: int, L: int, V: int, last: int, n: int, work: int) -> int:
    """The same in half registers, for so few matrices that half of a whole one would be empty."""
    lanes = half_lanes_of(number)
    return _side_by_side(lanes, lanes, A, L, V, last, n, work)


@kernel
def divided(number: Any, A: int, L: int, V: int, last: int, n: int, work: int) -> int:
    """:func:`.eigh_divided.eigh_divided`: n ≥ 2."""
    lanes, narrow, doubles = lanes_of(number), narrow_lanes_of(number), lanes_of(np.float64(0))
    matrices, values, vectors = _arrays(lanes, A, L, V, last, n)
    begin, end = next_chunk(work, last)
    while begin < end:
        status = eigh_divided(lanes, narrow, doubles, matrices, values, vectors, begin, end, n)
        add_status(work, status)
        begin, end = next_chunk(work, last)
    return DONE
