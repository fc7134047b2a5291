"""Arrays for kernels that are specialised on the type of a number: what they get as addresses, and their own scratch.

The first argument of such a kernel is a NumPy number; only its type matters (:func:`.vectors.lanes_of`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from ..runtime.compile import device_function
from ..runtime.work import pointer
from .memory import aligned, dtype_of
from .vectors import width

__all__ = ["array_at", "clear", "decomposition_at", "doubles_at", "rounded", "zeros"]


@device_function
def array_at(lanes: Any, address: int, count: int) -> Any:
    """The array of numbers of the lanes' type at an address."""
    return carray(pointer(address), (count,), dtype_of(lanes))


@device_function
def doubles_at(address: int, count: int) -> Any:
    """The float64 array at an address."""
    return carray(pointer(address), (count,), np.float64)


@device_function
def rounded(count: int, unit: int) -> int:
    """``count``, rounded up to a multiple of ``unit``."""
    return (count + unit - 1) // unit * unit


@device_function
def clear(array: Any) -> None:
    """Fill an array with zeros."""
    for i in range(array.size):
        array[i] = 0


@device_function
def zeros(lanes: Any, count: int) -> Any:
    """An array of zeros that starts on a cache line and has room for a vector behind its end."""
    array = aligned(lanes, rounded(count + width(lanes), width(lanes)))
    clear(array)
    return array


@device_function
def decomposition_at(lanes: Any, A: int, L: int, V: int, batch: int, n: int) -> Any:
    """Matrices (batch, n, n), their eigenvalues (batch, n) and eigenvectors (batch, n, n), as flat arrays."""
    size = batch * n * n
    return array_at(lanes, A, size), array_at(lanes, L, batch * n), array_at(lanes, V, size)
