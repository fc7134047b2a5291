"""Products of small matrices, a pair a lane: C = A B for W pairs.

n³ fused operations for all W matrices; blocks of 4×4 entries are kept in registers, so that eight loads feed sixteen
operations. Strides say how a factor is stored, so a transposed one needs no copy.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function
from .blocks import add_products, store_block, zero_block
from .memory import load, store
from .vectors import fma, splat, width

__all__ = ["product"]


@device_function
def product(lanes: Any, n: int, A: Any, a0: int, a1: int, B: Any, b0: int, b1: int, C: Any) -> None:
    """C[i, j] = Σ_k A[i, k] B[k, j], with A[i, k] at vector i·a0 + k·a1, B[k, j] at k·b0 + j·b1 and C by rows."""
    W, none = width(lanes), zero_block(lanes, 4)
    whole = n - n % 4
    for i in range(0, whole, 4):
        for j in range(0, whole, 4):
            block = zero_block(lanes, 16)
            for k in range(n):
                a, b = (i * a0 + k * a1) * W, (k * b0 + j * b1) * W
                block = add_products(lanes, block, A, a, a0 * W, none, B, b, b1 * W, none)
            store_block(lanes, C, (i * n + j) * W, n * W, block, 4, n < 0)
    for i in range(n):
        for j in range(whole if i < whole else 0, n):
            total = splat(lanes, 0.0)
            for k in range(n):
                total = fma(load(lanes, A, (i * a0 + k * a1) * W), load(lanes, B, (k * b0 + j * b1) * W), total)
            store(C, (i * n + j) * W, total)
