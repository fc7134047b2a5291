"""The algebra of whitening and colouring in d × d matrices: what happens between the passes over the feature maps.

Of matrices there are those of all contents first, then those of all styles; content i goes with style i mod styles.

    S_i = M_i^(−½) of a content, M_i^½ of a style, with ε added: :mod:`..vjp.matrix_roots`
    T_i = α S_style S_content + (1 − α) I
    gM  through the root, of α S_style G for a content, and of Σ α G S_content for a style, with G the gradient of T

A content takes two products forward and five backward, a style one, and four more than it has contents
(:mod:`..simd.matrix_products`). The kernels take a number of the matrices' type (see :mod:`..simd.arrays`), addresses,
and how many matrices there are, and work on chunks of them (:mod:`..runtime.work`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import kernel
from ..runtime.work import DONE, next_chunk
from ..simd.arrays import array_at, rounded, zeros
from ..simd.matrix_products import copy_matrix, multiply, padded_rows
from ..simd.vectors import lanes_of, width
from ..vjp.matrix_roots import root_vjp, symmetrise

__all__ = ["transfer_gradients", "transfers"]


@kernel
def transfers(number: Any, S: int, alpha: float, styles: int, T: int, last: int, d: int, work: int) -> int:
    """T of all contents, of which there are ``last``."""
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes = lanes_of(number)
    matrices, out = array_at(lanes, S, (last + styles) * d * d), array_at(lanes, T, last * d * d)
    stride = rounded(d, width(lanes))
    size = padded_rows(d) * stride
    scratch, a = zeros(lanes, 3 * size), out.dtype.type(alpha)
    left, right, product = int(np.int64(0)), size, 2 * size
    while begin < end:
        for i in range(begin, end):
            copy_matrix(lanes, matrices, (last + i % styles) * d * d, d, scratch, left, stride, d)
            copy_matrix(lanes, matrices, i * d * d, d, scratch, right, stride, d)
            multiply(lanes, scratch, left, stride, int(np.int64(1)), right, product, stride, d)
            for row in range(d):
                for column in range(d):
                    out[(i * d + row) * d + column] = a * scratch[product + row * stride + column]
                out[(i * d + row) * d + row] += 1 - a
        begin, end = next_chunk(work, last)
    return DONE


@kernel
def transfer_gradients(
    number: Any, G: int, S: int, L: int, V: int, eps: float, alpha: float, contents: int, gM: int, last: int,
    d: int, work: int,
) -> int:  # fmt: skip
    """gM of all covariances, from G of all contents."""
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes, styles = lanes_of(number), last - contents
    gradients, matrices = array_at(lanes, G, contents * d * d), array_at(lanes, S, last * d * d)
    values, vectors = array_at(lanes, L, last * d), array_at(lanes, V, last * d * d)
    out = array_at(lanes, gM, last * d * d)
    stride = rounded(d, width(lanes))
    size = padded_rows(d) * stride
    scratch, p = zeros(lanes, 5 * size), zeros(lanes, stride)
    least, a = out.dtype.type(eps), out.dtype.type(alpha)
    X, Y, left, right, E = int(np.int64(0)), size, 2 * size, 3 * size, 4 * size
    for k in range(stride):
        p[k] = 1
    while begin < end:
        for i in range(begin, end):
            content = i < contents
            for k in range(d * stride):
                scratch[E + k] = 0
            for other in range(i if content else i - contents, i + 1 if content else contents, styles):
                copy_matrix(lanes, gradients, other * d * d, d, scratch, right if content else left, stride, d)
                place = contents + i % styles if content else other
                copy_matrix(lanes, matrices, place * d * d, d, scratch, left if content else right, stride, d)
                multiply(lanes, scratch, left, stride, int(np.int64(1)), right, X, stride, d)
                for k in range(d * stride):
                    scratch[E + k] += a * scratch[X + k]
            for k in range(d):
                p[k] = np.sqrt(max(values[i * d + k] + least, least))
            symmetrise(lanes, scratch, E, Y, stride, d)
            root_vjp(lanes, vectors, i, p, content, scratch, E, Y, left, right, stride, d)
            copy_matrix(lanes, scratch, E, stride, out, i * d * d, d, d)
        begin, end = next_chunk(work, last)
    return DONE
