"""Backward passes of small decompositions in one call: everything between the gradients that come in and gA.

For ``eigh``, gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV; for a matrix function, gA = V [F ∘ (Vᵀ G V)] Vᵀ
with its divided differences F. In torch operations these are some twenty, two microseconds and a pass over memory each.
Here each lane has a matrix: 3 n³ or 4 n³ fused operations for all W, in the cache.

Larger matrices are taken one at a time: :mod:`.single`.

The kernels at the end take a number of the matrices' type (see :mod:`..simd.arrays`), addresses, and how many matrices
there are, and work on chunks of them (:mod:`..runtime.work`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE, add_status, next_chunk
from ..simd.arrays import array_at, clear
from ..simd.batched_products import product
from ..simd.interleave import deinterleave, interleave
from ..simd.memory import aligned, load, store
from ..simd.vectors import absolute, lanes_of, maximum, splat, sqrt, width
from .codes import FUNCTIONS
from .rules import Rule, eps_of, much_removed, prepare, size_and_spread, tiny, weigh

__all__ = ["function_vjp_batched", "rule_vjp_batched"]

_SQRT = FUNCTIONS["sqrt"]


@device_function
def _rule(
    lanes: Any, V: Any, gV: Any, by_rows: int, L: Any, gL: Any, with_gL: bool, gA: Any, first: int, last: int, n: int,
    rule: Rule,
) -> int:  # fmt: skip
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ, X = Vᵀ gV, for the matrices ``first`` to ``last``. Returns status bits.

    V holds the eigenvectors as rows; gV is stored by rows, or by columns if not ``by_rows``. All are (batch, n, n), L
    and gL (batch, n).
    """
    W = width(lanes)
    v, x, g = aligned(lanes, n * n * W), aligned(lanes, n * n * W), aligned(lanes, n * n * W)
    values, p, slopes, sizes = (
        aligned(lanes, n * W), aligned(lanes, n * W), aligned(lanes, n * W), aligned(lanes, n * W),
    )  # fmt: skip
    offsets = np.empty(W, np.int64)
    zero, eps = splat(lanes, 0.0), eps_of(L)
    down, across = (n, 1) if by_rows else (1, n)
    status = 0
    for begin in range(first, last, W):
        count = min(W, last - begin)
        interleave(lanes, V, begin, count, n * n, v, offsets)
        interleave(lanes, gV, begin, count, n * n, g, offsets)
        interleave(lanes, L, begin, count, n, values, offsets)
        if with_gL:
            interleave(lanes, gL, begin, count, n, slopes, offsets)
        else:
            clear(slopes)
        scale, reach = prepare(lanes, rule, n, values, p)
        size, spread = size_and_spread(lanes, n, values)
        product(lanes, n, v, n, 1, g, down, across, x)
        _column_sizes(lanes, n, g, down, across, sizes)
        exact, removed = zero, zero
        for i in range(n):
            low, ready_low, own_size = load(lanes, values, i * W), load(lanes, p, i * W), load(lanes, sizes, i * W)
            slope = load(lanes, slopes, i * W)
            store(x, (i * n + i) * W, slope)
            for j in range(i + 1, n):
                gap = load(lanes, values, j * W) - low
                t, exact, removed, found = weigh(
                    lanes, rule, eps, n, load(lanes, x, (i * n + j) * W), load(lanes, x, (j * n + i) * W),
                    own_size + load(lanes, sizes, j * W), absolute(slope) + absolute(load(lanes, slopes, j * W)),
                    ready_low, load(lanes, p, j * W), gap, scale, reach, size, spread, exact, removed,
                )  # fmt: skip
                status |= found
                store(x, (i * n + j) * W, t)
                store(x, (j * n + i) * W, t)
        status |= much_removed(lanes, exact, removed) | tiny(lanes, n, values)
        product(lanes, n, x, n, 1, v, n, 1, g)
        product(lanes, n, v, 1, n, g, n, 1, x)
        deinterleave(lanes, begin, count, n * n, x, gA, offsets)
    return status


@device_function
def _column_sizes(lanes: Any, n: int, g: Any, down: int, across: int, sizes: Any) -> None:
    """The largest absolute value in each column of gV."""
    W = width(lanes)
    for j in range(n):
        size = splat(lanes, 0.0)
        for i in range(n):
            size = maximum(size, absolute(load(lanes, g, (i * down + j * across) * W)))
        store(sizes, j * W, size)


@device_function
def _function(lanes: Any, V: Any, G: Any, L: Any, gA: Any, first: int, last: int, n: int, function: int) -> None:
    """gA = V [F ∘ (Vᵀ G V)] Vᵀ of the symmetric part of G, for the matrices ``first`` to ``last``.

    V holds the eigenvectors as rows; all are (batch, n, n), L (batch, n).
    """
    W = width(lanes)
    v, x, g = aligned(lanes, n * n * W), aligned(lanes, n * n * W), aligned(lanes, n * n * W)
    roots, inverses = aligned(lanes, n * W), aligned(lanes, n * W)
    offsets = np.empty(W, np.int64)
    half, one = splat(lanes, 0.5), splat(lanes, 1.0)
    for begin in range(first, last, W):
        count = min(W, last - begin)
        interleave(lanes, V, begin, count, n * n, v, offsets)
        interleave(lanes, G, begin, count, n * n, g, offsets)
        interleave(lanes, L, begin, count, n, roots, offsets)
        for i in range(n):
            p = sqrt(load(lanes, roots, i * W))
            store(roots, i * W, p)
            store(inverses, i * W, one / p)
        product(lanes, n, v, n, 1, g, n, 1, x)
        product(lanes, n, x, n, 1, v, 1, n, g)
        for i in range(n):
            p, r = load(lanes, roots, i * W), load(lanes, inverses, i * W)
            for j in range(i, n):
                q = load(lanes, roots, j * W)
                t = half * (load(lanes, g, (i * n + j) * W) + load(lanes, g, (j * n + i) * W)) / (p + q)
                if function != _SQRT:  # not by F at once, whose p³ leaves the range of the type long before p² does
                    t = -t * (r * load(lanes, inverses, j * W))
                store(g, (i * n + j) * W, t)
                store(g, (j * n + i) * W, t)
        product(lanes, n, g, n, 1, v, n, 1, x)
        product(lanes, n, v, 1, n, x, n, 1, g)
        deinterleave(lanes, begin, count, n * n, g, gA, offsets)


@kernel
def rule_vjp_batched(
    number: Any, V: int, gV: int, by_rows: int, L: int, gL: int, gA: int, last: int, n: int, code: int,
    parameter: float, epsilon: float, work: int,
) -> int:  # fmt: skip
    """The backward pass of ``eigh`` by a rule, see :func:`_rule`; gL may be 0, for none."""
    lanes, rule, size, count = lanes_of(number), Rule(code, parameter, epsilon), last * n * n, last * n
    vectors, gradients = array_at(lanes, V, size), array_at(lanes, gV, size)
    values, slopes, out = array_at(lanes, L, count), array_at(lanes, gL, count), array_at(lanes, gA, size)
    begin, end = next_chunk(work, last)
    while begin < end:
        status = _rule(lanes, vectors, gradients, by_rows, values, slopes, gL != 0, out, begin, end, n, rule)
        add_status(work, status)
        begin, end = next_chunk(work, last)
    return DONE


@kernel
def function_vjp_batched(
    number: Any, V: int, G: int, L: int, gA: int, last: int, n: int, function: int, work: int
) -> int:
    """The backward pass of a matrix function; see :func:`_function`."""
    lanes, size = lanes_of(number), last * n * n
    vectors, gradients, values = array_at(lanes, V, size), array_at(lanes, G, size), array_at(lanes, L, last * n)
    out = array_at(lanes, gA, size)
    begin, end = next_chunk(work, last)
    while begin < end:
        _function(lanes, vectors, gradients, values, out, begin, end, n, function)
        begin, end = next_chunk(work, last)
    return DONE
