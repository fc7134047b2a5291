"""Arrays for kernels that are specialised on the type of a number: what they get as addresses, and their own scratch.

The first argument of such a kernel is a NumPy number; only its type matters. ``lanes_of`` makes vectors of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from .addresses import pointer
from .compiled import compiled
from .vectors import BYTES, Lanes, _dtype_of, aligned, splat, store, width

__all__ = ["array_at", "doubles_at", "lanes_of", "rounded", "zeros"]


@intrinsic
def lanes_of(typing_context: Any, number: Any) -> Any:
    """Vectors of the type of ``number``, of this CPU's width."""
    number = types.unliteral(number)
    lanes = Lanes(number, BYTES * 8 // number.bitwidth)
    return lanes(number), lambda context, builder, signature, arguments: context.get_dummy_value()


@compiled
def array_at(lanes: Any, address: int, count: int) -> Any:
    """The array of numbers of the lanes' type at an address."""
    return carray(pointer(address), (count,), _dtype_of(lanes))


@compiled
def doubles_at(address: int, count: int) -> Any:
    """The float64 array at an address."""
    return carray(pointer(address), (count,), np.float64)


@compiled
def rounded(count: int, unit: int) -> int:
    """``count``, rounded up to a multiple of ``unit``."""
    return (count + unit - 1) // unit * unit


@compiled
def zeros(lanes: Any, count: int) -> Any:
    """An array of zeros that starts on a cache line and has room for a vector behind its end."""
    W = width(lanes)
    array = aligned(lanes, rounded(count + W, W))
    for i in range(0, array.size, W):
        store(array, i, splat(lanes, 0.0))
    return array
