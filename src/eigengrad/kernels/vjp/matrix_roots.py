"""Square roots of matrices, their eigenpairs given, and the gradient through them, by divided differences.

    S  = V λ^(±½) Vᵀ                                        one product
    gM = V [F ∘ (Vᵀ E V)] Vᵀ  with E the gradient of S      four
    F_ij = 1/(p_i + p_j),  or −1/(p_i p_j (p_i + p_j)) of the inverse root,  p = √λ

The matrices at work are padded and lie in one scratch array (see :mod:`..simd.matrix_products`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE, next_chunk
from ..simd.arrays import array_at, rounded, zeros
from ..simd.matrix_products import copy_matrix, multiply, padded_rows, transpose_in
from ..simd.memory import broadcast, load, store
from ..simd.vectors import lanes_of, splat, width

__all__ = ["root_vjp", "roots", "roots_of", "symmetrise"]


@kernel
def roots(number: Any, L: int, V: int, eps: float, inverses: int, S: int, last: int, n: int, work: int) -> int:
    """S of λ ← max(λ + ε, ε), from eigenvalues and eigenvectors as rows; of the first ``inverses`` the inverse."""
    lanes = lanes_of(number)
    begin, end = next_chunk(work, last)
    while begin < end:
        roots_of(lanes, L, V, eps, inverses, S, begin, end, n)
        begin, end = next_chunk(work, last)
    return DONE


@device_function
def roots_of(lanes: Any, L: int, V: int, eps: float, inverses: int, S: int, begin: int, end: int, n: int) -> None:
    """:func:`roots` for the matrices ``begin`` to ``end``.

    As QᵀQ with Q = λ^(±¼) Vᵀ, which is symmetric to the last bit.
    """
    values, vectors = array_at(lanes, L, end * n), array_at(lanes, V, end * n * n)
    out = array_at(lanes, S, end * n * n)
    stride, size = rounded(n, width(lanes)), padded_rows(n) * rounded(n, width(lanes))
    scratch, least = zeros(lanes, 2 * size), out.dtype.type(eps)
    Q, product = int(np.int64(0)), size  # no literal, for which functions would be compiled once more
    for matrix in range(begin, end):
        for k in range(matrix * n, matrix * n + n):
            root = np.sqrt(np.sqrt(max(values[k] + least, least)))
            factor = 1 / root if matrix < inverses else root
            for j in range(n):
                scratch[Q + (k - matrix * n) * stride + j] = factor * vectors[k * n + j]
        multiply(lanes, scratch, Q, int(np.int64(1)), stride, Q, product, stride, n)
        copy_matrix(lanes, scratch, product, stride, out, matrix * n * n, n, n)


@device_function
def symmetrise(lanes: Any, scratch: Any, X: int, Y: int, stride: int, n: int) -> None:
    """The symmetric part of X in its place, by way of Y."""
    W, half = width(lanes), splat(lanes, 0.5)
    transpose_in(lanes, scratch, X, stride, scratch, Y, stride, n)
    for k in range(0, n * stride, W):
        store(scratch, X + k, half * (load(lanes, scratch, X + k) + load(lanes, scratch, Y + k)))


@device_function
def root_vjp(
    lanes: Any, V: Any, matrix: int, p: Any, inverse: bool, scratch: Any, X: int, Y: int, Vt: int, Vs: int, stride: int,
    n: int,
) -> None:  # fmt: skip
    """gM in place of a symmetric E at X; Y, Vt and Vs are room for three more.

    Args:
        V: the eigenvectors of many matrices, as rows.
        p: roots of the eigenvalues of this one, and ones up to a whole vector.
    """
    W, unit, next_one = width(lanes), splat(lanes, 1.0), int(np.int64(1))
    copy_matrix(lanes, V, matrix * n * n, n, scratch, Vt, stride, n)
    transpose_in(lanes, V, matrix * n * n, n, scratch, Vs, stride, n)
    multiply(lanes, scratch, Vt, stride, next_one, X, Y, stride, n)
    multiply(lanes, scratch, Y, stride, next_one, Vs, X, stride, n)
    for i in range(n):
        root = broadcast(lanes, p, i)
        for j in range(0, n, W):
            other, place = load(lanes, p, j), X + i * stride + j
            t = load(lanes, scratch, place) / (root + other)
            # Not by F at once, whose p³ leaves the range of the type long before p² does.
            store(scratch, place, -t * ((unit / root) * (unit / other)) if inverse else t)
    multiply(lanes, scratch, X, stride, next_one, Vt, Y, stride, n)
    multiply(lanes, scratch, Vt, next_one, stride, Y, X, stride, n)
