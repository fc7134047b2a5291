"""W matrices, interleaved: entry j of all in one vector, so that each lane works on a matrix of its own.

An interleaved block of matrices with s entries is ``block[j·W + w]`` = entry j of matrix w. It is filled and emptied by
W×W transposes in registers. What the lanes share is only the instruction stream: no number ever crosses a lane, so a
result does not depend on a matrix's neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function
from .memory import load, store
from .transposes import transpose
from .vectors import absolute, any_lane, fma, maximum, power_of_two_inverse, select, splat, width

__all__ = ["deinterleave", "deinterleave_sorted", "interleave", "interleave_rows", "normalise"]


@device_function
def interleave(lanes: Any, source: Any, first: int, count: int, size: int, block: Any, offsets: Any) -> None:
    """Fill ``block`` with the ``count`` matrices from number ``first``; lanes past them repeat the last one."""
    W = width(lanes)
    for w in range(W):
        offsets[w] = (first + min(w, count - 1)) * size
    whole = size - size % W
    for j in range(0, whole, W):
        transpose(lanes, source, offsets, j, block, j * W, W, W, W)
    if whole < size:
        transpose(lanes, source, offsets, whole, block, whole * W, W, W, size - whole)


@device_function
def interleave_rows(
    lanes: Any, source: Any, first: int, count: int, n: int, stride: int, block: Any, offsets: Any
) -> None:
    """:func:`interleave` of the lower triangles of n×n matrices, to rows that are ``stride`` vectors apart; n ≥ W."""
    W = width(lanes)
    for w in range(W):
        offsets[w] = (first + min(w, count - 1)) * n * n
    for i in range(n):
        for j in range(0, i + 1, W):
            begin = min(j, n - W)
            transpose(lanes, source, offsets, i * n + begin, block, (i * stride + begin) * W, W, W, W)


@device_function
def normalise(lanes: Any, block: Any, n: int, stride: int) -> Any:
    """Scale the lower triangles to size about 1, by powers of two. Matrices with NaN or infinity become zero.

    Returns (1/scale as two factors, marks): denormal matrices need a second factor, because no single power of two is
    large enough; marks are 0, and NaN for a matrix that is not finite.
    """
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    biggest, marks = zero, zero
    for i in range(n):
        for j in range(i + 1):
            x = load(lanes, block, (i * stride + j) * W)
            biggest = maximum(absolute(x), biggest)
            marks = fma(x, zero, marks)
    finite = marks >= zero
    scale = power_of_two_inverse(select(finite, biggest, one))
    again = power_of_two_inverse(select(finite, biggest, one) * scale)
    again = select(again > one, again, one)  # only denormal matrices are still small
    whole = any_lane(again > one) or any_lane(~finite)
    for i in range(n):
        for j in range(i + 1):
            x = load(lanes, block, (i * stride + j) * W) * scale
            if whole:
                x = select(finite, x * again, zero)
            store(block, (i * stride + j) * W, x)
    return one / scale, one / again, marks


@device_function
def deinterleave(lanes: Any, first: int, count: int, size: int, block: Any, target: Any, offsets: Any) -> None:
    """Empty ``block`` into the ``count`` matrices from number ``first``."""
    W = width(lanes)
    for w in range(W):
        offsets[w] = (first + w) * size
    whole = size - size % W if count == W else 0
    for j in range(0, whole, W):
        transpose(lanes, block, j * W, W, target, offsets, j, W, W)
    for j in range(whole, size, W):
        transpose(lanes, block, j * W, W, target, offsets, j, size - j, count)


@device_function
def deinterleave_sorted(
    lanes: Any, first: int, count: int, n: int, values: Any, vectors: Any, stride: int, L: Any, V: Any,
    ranks: Any, offsets: Any,
) -> None:  # fmt: skip
    """Empty a block of eigenvalues and eigenvectors into L and V (as rows), ascending in each matrix.

    Entry i of eigenvector k is ``vectors[(i·stride + k)·W]``. A lane's order is found by counting: the rank of an
    eigenvalue is the number of smaller ones, earlier first at ties.
    """
    W = width(lanes)
    zero, one = splat(lanes, 0.0), splat(lanes, 1.0)
    for k in range(n):
        x, rank = load(lanes, values, k * W), zero
        for j in range(k):
            rank = rank + select(~(load(lanes, values, j * W) > x), one, zero)
        for j in range(k + 1, n):
            rank = rank + select(load(lanes, values, j * W) < x, one, zero)
        store(ranks, k * W, rank)
    for k in range(n):
        for w in range(W):  # lanes past the last matrix repeat it, and write the same once more
            matrix, rank = first + min(w, count - 1), np.int64(ranks[k * W + w])
            L[matrix * n + rank] = values[k * W + w]
            offsets[w] = (matrix * n + rank) * n
        if n < W:
            transpose(lanes, vectors, k * W, stride * W, V, offsets, 0, n, W)
        else:
            for i in range(0, n, W):
                begin = min(i, n - W)
                transpose(lanes, vectors, (k + begin * stride) * W, stride * W, V, offsets, begin, W, W)
