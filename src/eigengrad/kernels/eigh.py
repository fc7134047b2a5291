"""The eigensolvers from addresses: one entry a kernel and number type.

Each takes the addresses of A (b, n, n), L (b, n) and V (b, n, n), all contiguous, and works on the matrices ``first``
to ``last``, or on those of them that it gets from a ledger (:mod:`.parts`). A's lower triangles are read; L gets the
eigenvalues, ascending, and V the eigenvectors as rows. The result is the sum of 1, if some matrix was not finite, and
2, if some did not converge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from .addresses import pointer
from .compiled import compiled
from .eigh_divided import eigh_divided
from .eigh_lanes import eigh_lanes
from .jacobi import jacobi
from .parts import first_part, next_part
from .vectors import FLOAT32, FLOAT64, THIN32

__all__ = ["divided32", "divided64", "jacobi32", "jacobi64", "lanes32", "lanes64"]


@compiled
def _arrays(A: int, L: int, V: int, batch: int, n: int, dtype: Any) -> Any:
    matrices, values = carray(pointer(A), (batch * n * n,), dtype), carray(pointer(L), (batch * n,), dtype)
    return matrices, values, carray(pointer(V), (batch * n * n,), dtype)


@compiled
def jacobi32(A: int, L: int, V: int, first: int, last: int, n: int, ledger: int) -> int:
    """:func:`.jacobi.jacobi` of float32: n ≤ 4."""
    matrices, values, vectors = _arrays(A, L, V, last, n, np.float32)
    total = 0
    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = jacobi(FLOAT32(), matrices, values, vectors, begin, end, n)
        total |= status
        begin, end = next_part(ledger, begin, end, last, status)
    return total


@compiled
def jacobi64(A: int, L: int, V: int, first: int, last: int, n: int, ledger: int) -> int:
    """:func:`.jacobi.jacobi` of float64: n ≤ 4."""
    matrices, values, vectors = _arrays(A, L, V, last, n, np.float64)
    total = 0
    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = jacobi(FLOAT64(), matrices, values, vectors, begin, end, n)
        total |= status
        begin, end = next_part(ledger, begin, end, last, status)
    return total


@compiled
def lanes32(A: int, L: int, V: int, first: int, last: int, n: int, ledger: int) -> int:
    """:func:`.eigh_lanes.eigh_lanes` of float32: n ≥ 2."""
    matrices, values, vectors = _arrays(A, L, V, last, n, np.float32)
    total = 0
    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = eigh_lanes(FLOAT32(), matrices, values, vectors, begin, end, n)
        total |= status
        begin, end = next_part(ledger, begin, end, last, status)
    return total


@compiled
def lanes64(A: int, L: int, V: int, first: int, last: int, n: int, ledger: int) -> int:
    """:func:`.eigh_lanes.eigh_lanes` of float64: n ≥ 2."""
    matrices, values, vectors = _arrays(A, L, V, last, n, np.float64)
    total = 0
    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = eigh_lanes(FLOAT64(), matrices, values, vectors, begin, end, n)
        total |= status
        begin, end = next_part(ledger, begin, end, last, status)
    return total


@compiled
def divided32(A: int, L: int, V: int, first: int, last: int, n: int, ledger: int) -> int:
    """:func:`.eigh_divided.eigh_divided` of float32: n ≥ 2."""
    matrices, values, vectors = _arrays(A, L, V, last, n, np.float32)
    total = 0
    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = eigh_divided(FLOAT32(), THIN32(), FLOAT64(), matrices, values, vectors, begin, end, n)
        total |= status
        begin, end = next_part(ledger, begin, end, last, status)
    return total


@compiled
def divided64(A: int, L: int, V: int, first: int, last: int, n: int, ledger: int) -> int:
    """:func:`.eigh_divided.eigh_divided` of float64: n ≥ 2."""
    matrices, values, vectors = _arrays(A, L, V, last, n, np.float64)
    total = 0
    begin, end = first_part(ledger, first, last)
    while begin < end:
        status = eigh_divided(FLOAT64(), FLOAT64(), FLOAT64(), matrices, values, vectors, begin, end, n)
        total |= status
        begin, end = next_part(ledger, begin, end, last, status)
    return total
