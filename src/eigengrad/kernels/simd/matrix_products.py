"""Products of matrices that fit a cache, one pair at a time, vectors along the rows.

C = A B is a sum over k of column k of A times row k of B. A part of C stays in registers meanwhile: 8 rows of two
vectors, for which a step costs ten loads and 16 fused operations, or 16 rows of one where no second vector is left.
The rows of B that such a column of blocks needs, n by two vectors, are in the first cache, for n ≤ 256.

Matrices are *padded*: rows begin a multiple of W apart, there are :func:`padded_rows` of them, and what is in the
padding is any number, in which no result is interested.
"""

from __future__ import annotations

from typing import Any

from ..runtime.compile import device_function, inline
from .arrays import rounded
from .blocks import add_outer, store_block, zero_block
from .memory import load, store
from .transposes import transpose
from .vectors import splat, width

__all__ = ["add_outers", "copy_matrix", "multiply", "padded_rows", "transpose_in"]

_HEIGHT = 16  # rows of a block, at most


@device_function
def padded_rows(n: int) -> int:
    """How many rows there is room for."""
    return rounded(n, _HEIGHT)


@inline
def add_outers(
    lanes: Any, block: Any, columns: int, count: int, vectors: Any, place: int, further: int, factors: Any, index: int,
    across: int, down: int,
) -> Any:  # fmt: skip
    """Σ_k of a column of numbers times a row of ``columns`` (a literal) vectors, added to a block.

    Row k begins at ``vectors[place + k·further]``, the number for row i of the block is
    ``factors[index + k·across + i·down]``.
    """
    none = splat(lanes, 0.0)
    for _ in range(count):
        block = add_outer(lanes, block, columns, vectors, place, none, factors, index, down)
        place += further
        index += across
    return block


@device_function
def multiply(lanes: Any, scratch: Any, a: int, down: int, across: int, b: int, c: int, stride: int, n: int) -> None:
    """The product of two matrices within ``scratch``, given by their places, to a third place.

    A[i, k] is at ``a + i·down + k·across``; rows of B and C are ``stride`` apart.
    """
    W = width(lanes)
    column = 0
    while column < n:
        pair = column + W < n
        for row in range(0, n, _HEIGHT // 2 if pair else _HEIGHT):
            left, right, place = a + row * down, b + column, c + row * stride + column
            block = zero_block(lanes, 16)
            if pair:
                block = add_outers(lanes, block, 2, n, scratch, right, stride, scratch, left, across, down)
                store_block(lanes, scratch, place, stride, block, 2, n < 0)
            else:
                block = add_outers(lanes, block, 1, n, scratch, right, stride, scratch, left, across, down)
                store_block(lanes, scratch, place, stride, block, 1, n < 0)
        column += 2 * W if pair else W


@device_function
def copy_matrix(lanes: Any, source: Any, first: int, step: int, target: Any, place: int, stride: int, n: int) -> None:
    """The n×n matrix at ``source[first]``, whose rows are ``step`` apart, to ``target[place]``, with another stride."""
    W = width(lanes)
    whole = n - n % W
    for i in range(n):
        here, there = first + i * step, place + i * stride
        for j in range(0, whole, W):
            store(target, there + j, load(lanes, source, here + j))
        for j in range(whole, n):
            target[there + j] = source[here + j]


@device_function
def transpose_in(lanes: Any, source: Any, first: int, step: int, scratch: Any, place: int, stride: int, n: int) -> None:
    """Pad the transpose of the n×n matrix at ``source[first]``, whose rows are ``step`` apart."""
    W = width(lanes)
    whole = n - n % W
    for i in range(0, whole, W):
        for j in range(0, whole, W):
            transpose(lanes, source, first + i * step + j, step, scratch, place + j * stride + i, stride, W, W)
    for i in range(n):
        for j in range(whole if i < whole else 0, n):
            scratch[place + j * stride + i] = source[first + i * step + j]
