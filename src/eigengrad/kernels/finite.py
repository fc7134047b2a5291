"""Whether all numbers are finite: 0·x is 0 for those and NaN for the others, so one sum tells.

One call where torch takes two and an allocation, which for small matrices is a tenth of their decomposition.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from .addresses import pointer

_OPTIONS: Any = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}


@njit(**_OPTIONS)
def finite32(A: int, count: int) -> bool:
    """For float32, from an address."""
    total = np.float32(0.0)
    for x in carray(pointer(A), (count,), np.float32):
        total += x * np.float32(0.0)
    return bool(total == 0)


@njit(**_OPTIONS)
def finite64(A: int, count: int) -> bool:
    """For float64, from an address."""
    total = 0.0
    for x in carray(pointer(A), (count,), np.float64):
        total += x * 0.0
    return bool(total == 0)
