"""The bracket of the backward pass, ½ (X − Xᵀ) ∘ R + diag(gλ), with the Taylor rule's R, in one pass over X = Vᵀ gV;
and, for a few small matrices, the whole backward pass in one call.

In torch operations this is some twenty of them, each a pass over memory and two microseconds of overhead; for 16
matrices of size 4 that is more than the decomposition itself. Here it is about n²/2 · (5 + 2 log₂(K+1)) operations per
matrix. The geometric sum is built by doubling, S_2k = S_k (1 + q^k) and S_k+1 = 1 + q S_k, which adds only positive
terms; the loops over a row's entries are innermost so that the compiler vectorises them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from .addresses import pointer

_OPTIONS: Any = {"nogil": True, "cache": True, "error_model": "numpy", "fastmath": {"contract", "nsz", "arcp"}}


@njit(**_OPTIONS)
def bracket32(X: int, L: int, gL: int, batch: int, n: int, terms: int, eps: float) -> None:
    """:func:`_bracket` of float32, for a batch, from addresses; gL may be 0, for none."""
    matrices = carray(pointer(X), (batch, n, n), np.float32)
    values, gradients = carray(pointer(L), (batch, n), np.float32), carray(pointer(gL), (batch, n), np.float32)
    rows = np.empty((4, n), np.float32)
    for b in range(batch):
        _bracket(matrices[b], values[b], gradients[b], gL != 0, terms, eps, rows)


@njit(**_OPTIONS)
def bracket64(X: int, L: int, gL: int, batch: int, n: int, terms: int, eps: float) -> None:
    """:func:`_bracket` of float64, for a batch, from addresses; gL may be 0, for none."""
    matrices = carray(pointer(X), (batch, n, n), np.float64)
    values, gradients = carray(pointer(L), (batch, n), np.float64), carray(pointer(gL), (batch, n), np.float64)
    rows = np.empty((4, n), np.float64)
    for b in range(batch):
        _bracket(matrices[b], values[b], gradients[b], gL != 0, terms, eps, rows)


@njit(**_OPTIONS)
def _bracket(X: Any, L: Any, gL: Any, with_gL: bool, terms: int, eps: float, rows: Any) -> None:
    """Overwrite X (n, n) with the bracket.

    L, gL are (n,), ascending; eps < 0 means relative to round-off; rows is (4, n) of scratch.
    """
    real = X.dtype.type
    n = L.shape[0]
    one, half = real(1.0), real(0.5)
    info = np.finfo(X.dtype)
    p, q, power, total = rows[0], rows[1], rows[2], rows[3]
    lowest = L[0]
    scale = max(abs(lowest), abs(L[n - 1]))
    roundoff = (scale if scale > 0 else one) * real(n * info.eps)
    floor = real(eps) if eps >= 0 else max(roundoff, real(terms * info.tiny))
    shifted = lowest < -roundoff
    for j in range(n):
        p[j] = max((L[j] - lowest) + floor if shifted else L[j], floor)
    for i in range(n):
        if terms == 10:  # the default degree, unrolled: two passes over the row instead of eight
            for j in range(i + 1, n):
                x = min(p[i] / p[j], one)
                x2 = x * x
                x4 = x2 * x2
                total[j] = (one + x) * (one + (x2 + x4) * (one + x4)) / p[j]
        else:
            _geometric_row(p, q, power, total, i, terms)
        X[i, i] = gL[i] if with_gL else real(0.0)
        for j in range(i + 1, n):
            w = half * (X[i, j] - X[j, i]) * total[j]
            X[i, j] = w
            X[j, i] = w


@njit(**_OPTIONS)
def _geometric_row(p: Any, q: Any, power: Any, total: Any, i: int, terms: int) -> None:
    """total[j] = (1 + q + … + q^(terms−1))/p_j with q = p_i/p_j, for j > i, by doubling."""
    n = p.shape[0]
    one = p.dtype.type(1.0)
    digits = 0
    while terms >> (digits + 1):
        digits += 1
    for j in range(i + 1, n):
        q[j] = min(p[i] / p[j], one)
        power[j] = q[j]
        total[j] = one
    for digit in range(digits - 1, -1, -1):
        for j in range(i + 1, n):
            total[j] *= one + power[j]
            power[j] *= power[j]
        if (terms >> digit) & 1:
            for j in range(i + 1, n):
                total[j] = one + q[j] * total[j]
                power[j] *= q[j]
    for j in range(i + 1, n):
        total[j] /= p[j]


@njit(**_OPTIONS)
def pullback32(
    V: int, v: Any, gV: int, g: Any, L: int, gL: int, gA: int, batch: int, n: int, terms: int, eps: float
) -> None:
    """:func:`_pullback` of float32, from addresses and strides; gL may be 0, for none."""
    vectors = carray(pointer(V), (batch * n * n,), np.float32)
    gradients = carray(pointer(gV), (batch * n * n,), np.float32)
    values, slopes = carray(pointer(L), (batch, n), np.float32), carray(pointer(gL), (batch, n), np.float32)
    out = carray(pointer(gA), (batch, n, n), np.float32)
    _pullback(vectors, v, gradients, g, values, slopes, gL != 0, out, terms, eps)


@njit(**_OPTIONS)
def pullback64(
    V: int, v: Any, gV: int, g: Any, L: int, gL: int, gA: int, batch: int, n: int, terms: int, eps: float
) -> None:
    """:func:`_pullback` of float64, from addresses and strides; gL may be 0, for none."""
    vectors = carray(pointer(V), (batch * n * n,), np.float64)
    gradients = carray(pointer(gV), (batch * n * n,), np.float64)
    values, slopes = carray(pointer(L), (batch, n), np.float64), carray(pointer(gL), (batch, n), np.float64)
    out = carray(pointer(gA), (batch, n, n), np.float64)
    _pullback(vectors, v, gradients, g, values, slopes, gL != 0, out, terms, eps)


@njit(**_OPTIONS)
def _pullback(V: Any, v: Any, gV: Any, g: Any, L: Any, gL: Any, with_gL: bool, gA: Any, terms: int, eps: float) -> None:
    """V B Vᵀ into gA (b, n, n), with B the bracket of Vᵀ gV. V and gV are flat, with strides v and g of their own.

    Plain dot products: at these sizes calls and passes cost more than arithmetic.
    """
    batch, n = L.shape
    zero = V.dtype.type(0.0)
    scratch, rows = np.empty((3, n, n), V.dtype), np.empty((4, n), V.dtype)
    W, X, T = scratch[0], scratch[1], scratch[2]
    for b in range(batch):
        for j in range(n):  # the eigenvectors, as rows
            for k in range(n):
                W[j, k] = V[b * v[0] + k * v[1] + j * v[2]]
        for i in range(n):
            for j in range(n):
                total = zero
                for k in range(n):
                    total += W[i, k] * gV[b * g[0] + k * g[1] + j * g[2]]
                X[i, j] = total
        _bracket(X, L[b], gL[b], with_gL, terms, eps, rows)
        for i in range(n):
            for j in range(n):
                total = zero
                for k in range(n):
                    total += W[k, i] * X[k, j]
                T[i, j] = total
        for i in range(n):
            for j in range(n):
                total = zero
                for k in range(n):
                    total += T[i, k] * W[k, j]
                gA[b, i, j] = total
