"""Products of small matrices side by side: C = A B for W pairs, entry by entry in the lanes.

n³ fused operations for all W matrices; blocks of 4×4 entries are kept in registers, so that eight loads feed sixteen
operations. Strides say how a factor is stored, so a transposed one needs no copy.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function
from .memory import load, store
from .vectors import fma, splat, width

__all__ = ["product"]


@device_function
def product(lanes: Any, n: int, A: Any, a0: int, a1: int, B: Any, b0: int, b1: int, C: Any) -> None:
    """C[i, j] = Σ_k A[i, k] B[k, j], with A[i, k] at vector i·a0 + k·a1, B[k, j] at k·b0 + j·b1 and C by rows."""
    W = width(lanes)
    whole = n - n % 4
    for i in range(0, whole, 4):
        for j in range(0, whole, 4):
            _block(lanes, n, A, i * a0 * W, a0 * W, a1 * W, B, j * b1 * W, b0 * W, b1 * W, C, (i * n + j) * W)
    for i in range(n):
        for j in range(whole if i < whole else 0, n):
            total = splat(lanes, 0.0)
            for k in range(n):
                total = fma(load(lanes, A, (i * a0 + k * a1) * W), load(lanes, B, (k * b0 + j * b1) * W), total)
            store(C, (i * n + j) * W, total)


@device_function
def _block(
    lanes: Any, n: int, A: Any, a: int, a0: int, a1: int, B: Any, b: int, b0: int, b1: int, C: Any, c: int
) -> None:
    W = width(lanes)
    z = splat(lanes, 0.0)
    c00, c01, c02, c03, c10, c11, c12, c13 = z, z, z, z, z, z, z, z
    c20, c21, c22, c23, c30, c31, c32, c33 = z, z, z, z, z, z, z, z
    for _ in range(n):
        y0, y1 = load(lanes, B, b), load(lanes, B, b + b1)
        y2, y3 = load(lanes, B, b + 2 * b1), load(lanes, B, b + 3 * b1)
        x = load(lanes, A, a)
        c00, c01, c02, c03 = fma(x, y0, c00), fma(x, y1, c01), fma(x, y2, c02), fma(x, y3, c03)
        x = load(lanes, A, a + a0)
        c10, c11, c12, c13 = fma(x, y0, c10), fma(x, y1, c11), fma(x, y2, c12), fma(x, y3, c13)
        x = load(lanes, A, a + 2 * a0)
        c20, c21, c22, c23 = fma(x, y0, c20), fma(x, y1, c21), fma(x, y2, c22), fma(x, y3, c23)
        x = load(lanes, A, a + 3 * a0)
        c30, c31, c32, c33 = fma(x, y0, c30), fma(x, y1, c31), fma(x, y2, c32), fma(x, y3, c33)
        a += a1
        b += b0
    _store_row(C, c, W, c00, c01, c02, c03)
    _store_row(C, c + n * W, W, c10, c11, c12, c13)
    _store_row(C, c + 2 * n * W, W, c20, c21, c22, c23)
    _store_row(C, c + 3 * n * W, W, c30, c31, c32, c33)


@device_function
def _store_row(C: Any, c: int, W: int, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    store(C, c, x0)
    store(C, c + W, x1)
    store(C, c + 2 * W, x2)
    store(C, c + 3 * W, x3)
