"""Backward passes of larger decompositions, one matrix at a time, its products in the cache.

The formulas are those of :mod:`.batched`: three products for ``eigh``, four for a matrix function, 2 n³ flops each
(:mod:`..simd.matrix_products`); R and F are filled along the rows between them. Threads take whole matrices. Of a
single large one the products are better left to the library, whose threads share it; :func:`fill_bracket` does what is
between them.

The kernels take a number of the matrices' type (see :mod:`..simd.arrays`), addresses, and how many matrices there are,
and work on chunks of them (:mod:`..runtime.work`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE, add_status, next_chunk
from ..simd.arrays import array_at, rounded, zeros
from ..simd.matrix_products import copy_matrix, multiply, padded_rows, transpose_in
from ..simd.memory import aligned, broadcast, load, load_n, store, store_n
from ..simd.vectors import absolute, lanes_of, maximum, reduce_sum, splat, width
from .codes import FUNCTIONS
from .matrix_roots import root_vjp, symmetrise
from .rules import Rule, eps_of, much_removed, prepare, size_and_spread, tiny, weigh

__all__ = ["fill_bracket", "function_vjp_single", "rule_vjp_single"]

_SQRT = FUNCTIONS["sqrt"]


@device_function
def _bracket(
    lanes: Any, X: Any, base: int, stride: int, L: Any, gL: Any, with_gL: bool, matrix: int, n: int, rule: Rule,
    workspace: Any,
) -> int:  # fmt: skip
    """Overwrite X = Vᵀ gV (n, n), rows ``stride`` apart, by ½ (X − Xᵀ) ∘ R + diag(gλ). Returns status bits.

    Vectors are along the rows; the lower triangle mirrors the upper. ``workspace`` is from :func:`_bracket_scratch`.
    """
    W = width(lanes)
    zero, eps = splat(lanes, 0.0), eps_of(L)
    row = n + W
    values, ready, rows = workspace[: n * W], workspace[n * W :], workspace[2 * n * W :]
    plain, p, column, sizes, slopes = rows[:row], rows[row:], rows[2 * row :], rows[3 * row :], rows[4 * row :]
    for j in range(n):
        store(values, j * W, broadcast(lanes, L, matrix * n + j))
    scale, reach = prepare(lanes, rule, n, values, ready)
    size, spread = size_and_spread(lanes, n, values)
    for j in range(row):
        plain[j] = values[min(j, n - 1) * W]
        p[j] = ready[min(j, n - 1) * W]
        slopes[j] = gL[matrix * n + j] if with_gL and j < n else 0
    _column_sizes(lanes, X, base, stride, n, sizes)
    status, exact, removed = tiny(lanes, n, values), zero, zero
    for i in range(n):
        here = base + i * stride
        for j in range(i + 1, n):
            column[j] = X[base + j * stride + i]
        low, ready_low = broadcast(lanes, plain, i), broadcast(lanes, p, i)
        own_size, slope = broadcast(lanes, sizes, i), absolute(broadcast(lanes, slopes, i))
        for j in range(i + 1, n, W):
            rest = n - j
            if rest >= W:
                above, below = load(lanes, X, here + j), load(lanes, column, j)
            else:
                above, below = load_n(lanes, X, here + j, rest), load_n(lanes, column, j, rest)
            gap = load(lanes, plain, j) - low
            t, exact, removed, found = weigh(
                lanes, rule, eps, n, above, below, own_size + load(lanes, sizes, j),
                slope + absolute(load(lanes, slopes, j)), ready_low, load(lanes, p, j), gap, scale, reach, size, spread,
                exact, removed,
            )  # fmt: skip
            status |= found
            if rest >= W:
                store(X, here + j, t)
                store(column, j, t)
            else:
                store_n(X, here + j, t, rest)
                store_n(column, j, t, rest)
        for j in range(i + 1, n):
            X[base + j * stride + i] = column[j]
    for i in range(n):
        X[base + i * stride + i] = slopes[i]
    return status | much_removed(lanes, splat(lanes, reduce_sum(exact)), splat(lanes, reduce_sum(removed)))


@device_function
def _column_sizes(lanes: Any, X: Any, base: int, stride: int, n: int, sizes: Any) -> None:
    """The largest absolute value in each column of X, and zeros for the W columns behind them."""
    W = width(lanes)
    for j in range(0, n, W):
        rest, size = n - j, splat(lanes, 0.0)
        for i in range(n):
            place = base + i * stride + j
            size = maximum(size, absolute(load(lanes, X, place) if rest >= W else load_n(lanes, X, place, rest)))
        store(sizes, j, size)


@device_function
def _bracket_scratch(lanes: Any, n: int) -> Any:
    """An array for :func:`_bracket` to work in."""
    return aligned(lanes, 2 * n * width(lanes) + 5 * (n + width(lanes)))


@kernel
def fill_bracket(
    number: Any, X: int, L: int, gL: int, last: int, n: int, code: int, parameter: float, epsilon: float, work: int
) -> int:
    """½ (X − Xᵀ) ∘ R + diag(gλ) in place of X; gL may be 0, for none."""
    lanes, rule, count = lanes_of(number), Rule(code, parameter, epsilon), last * n
    products, values, slopes = array_at(lanes, X, count * n), array_at(lanes, L, count), array_at(lanes, gL, count)
    workspace = _bracket_scratch(lanes, n)
    begin, end = next_chunk(work, last)
    while begin < end:
        status = 0
        for matrix in range(begin, end):
            base = matrix * n * n
            status |= _bracket(lanes, products, base, n, values, slopes, gL != 0, matrix, n, rule, workspace)
        add_status(work, status)
        begin, end = next_chunk(work, last)
    return DONE


@kernel
def rule_vjp_single(
    number: Any, V: int, gV: int, by_rows: int, L: int, gL: int, gA: int, last: int, n: int, code: int,
    parameter: float, epsilon: float, work: int,
) -> int:  # fmt: skip
    """V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV; arguments as :func:`.batched.rule_vjp_batched` has them."""
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes, rule, size, count = lanes_of(number), Rule(code, parameter, epsilon), last * n * n, last * n
    vectors, gradients = array_at(lanes, V, size), array_at(lanes, gV, size)
    values, slopes, out = array_at(lanes, L, count), array_at(lanes, gL, count), array_at(lanes, gA, size)
    stride, matrix_size = rounded(n, width(lanes)), padded_rows(n) * rounded(n, width(lanes))
    scratch, workspace = zeros(lanes, 3 * matrix_size), _bracket_scratch(lanes, n)
    Vt, Y, X = int(np.int64(0)), matrix_size, 2 * matrix_size  # no literal, for which functions are compiled again
    next_one = int(np.int64(1))
    while begin < end:
        status = 0
        for matrix in range(begin, end):
            base = matrix * n * n
            copy_matrix(lanes, vectors, base, n, scratch, Vt, stride, n)
            if by_rows:
                copy_matrix(lanes, gradients, base, n, scratch, Y, stride, n)
            else:
                transpose_in(lanes, gradients, base, n, scratch, Y, stride, n)
            multiply(lanes, scratch, Vt, stride, next_one, Y, X, stride, n)
            status |= _bracket(lanes, scratch, X, stride, values, slopes, gL != 0, matrix, n, rule, workspace)
            multiply(lanes, scratch, X, stride, next_one, Vt, Y, stride, n)
            multiply(lanes, scratch, Vt, next_one, stride, Y, X, stride, n)
            copy_matrix(lanes, scratch, X, stride, out, base, n, n)
        add_status(work, status)
        begin, end = next_chunk(work, last)
    return DONE


@kernel
def function_vjp_single(
    number: Any, V: int, G: int, L: int, gA: int, last: int, n: int, function: int, work: int
) -> int:
    """V [F ∘ (Vᵀ G V)] Vᵀ of the symmetric part of G, with the function's divided differences F."""
    begin, end = next_chunk(work, last)
    if begin >= end:
        return DONE
    lanes, size = lanes_of(number), last * n * n
    vectors, gradients, values = array_at(lanes, V, size), array_at(lanes, G, size), array_at(lanes, L, last * n)
    out = array_at(lanes, gA, size)
    stride, matrix_size = rounded(n, width(lanes)), padded_rows(n) * rounded(n, width(lanes))
    scratch, roots = zeros(lanes, 4 * matrix_size), zeros(lanes, stride)
    X, Y, Vt, Vs = int(np.int64(0)), matrix_size, 2 * matrix_size, 3 * matrix_size
    for j in range(n, stride):
        roots[j] = 1
    while begin < end:
        for matrix in range(begin, end):
            for j in range(n):
                roots[j] = np.sqrt(values[matrix * n + j])
            copy_matrix(lanes, gradients, matrix * n * n, n, scratch, X, stride, n)
            symmetrise(lanes, scratch, X, Y, stride, n)
            inverse = function != _SQRT
            root_vjp(lanes, vectors, matrix, roots, inverse, scratch, X, Y, Vt, Vs, stride, n)
            copy_matrix(lanes, scratch, X, stride, out, matrix * n * n, n, n)
        begin, end = next_chunk(work, last)
    return DONE
