"""The algebra of whitening in d × d matrices: what happens between the passes over the feature maps.

From partial sums (see :mod:`.backends`) to mean and covariance; from its eigenpairs to S = (M + εI)^(−½) and back
through it, by divided differences; and from these to the weights of ``apply_affine`` there. In torch operations this is
some fifty calls, more than the passes themselves take for a small map. There is one product
(:mod:`..simd.matrix_products`) for S, and four for its gradient.

The kernels take addresses, and as their first argument a number of the matrices' type (see :mod:`..simd.arrays`); means
and partial sums are float64. The address of γ, β or a shift may be 0, for none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, kernel
from ..runtime.work import DONE
from ..simd.arrays import array_at, clear, doubles_at, rounded, zeros
from ..simd.matrix_products import copy_matrix, padded_rows
from ..simd.vectors import lanes_of, width
from ..vjp.matrix_roots import root_vjp, roots_of
from .harness import partial_sums_size

__all__ = ["backward_weights", "forward_weights", "mean_and_covariance", "pivots"]


_PIVOT_POINTS = 16


@kernel
def pivots(number: Any, x: int, points: int, C: int, P: int, fast: int, centre: int, work: int) -> int:
    """Estimate the mean of each channel from a few points, into a float64 array.

    One-pass moments of numbers far from zero cancel; relative to one of their own they do not. The least and the
    greatest of the points are left out, because a single one may lie far off.
    """
    lanes = lanes_of(number)
    numbers, middle = array_at(lanes, x, points * C), doubles_at(centre, C)
    count = min(points, _PIVOT_POINTS)
    places = np.empty(count, np.int64)
    for k in range(count):
        q = k * points // count
        places[k] = q * C if fast else q // P * C * P + q % P
    for c in range(C):
        total, least, greatest = 0.0, np.inf, -np.inf
        for k in range(count):
            x_k = numbers[places[k] + (c if fast else c * P)]
            total, least, greatest = total + x_k, min(least, x_k), max(greatest, x_k)
        middle[c] = numbers.dtype.type((total - least - greatest) / (count - 2) if count > 2 else total / count)
    return DONE


@device_function
def _joined(partial_sums: int, splits: int, size: int) -> Any:
    """The partial sums of all splits, added to those of the first."""
    sums = doubles_at(partial_sums, splits * size)
    for split in range(1, splits):
        for i in range(size):
            sums[i] += sums[split * size + i]
    return sums


@device_function
def _product_at(blocks: int, i: int, j: int) -> int:
    """Where Σ lᵢ rⱼ is among the partial sums of a group."""
    return (i // 4 * blocks + j // 4) * 16 + i % 4 * 4 + j % 4


@device_function
def _sum_at(blocks: int, i: int) -> int:
    """Where Σ lᵢ is among the partial sums of a group."""
    return (blocks * blocks + i // 4) * 16 + i % 4


@kernel
def mean_and_covariance(
    number: Any, partial_sums: int, splits: int, points: int, C: int, d: int, mean: int, rounded_mean: int,
    covariance: int, work: int,
) -> int:  # fmt: skip
    """Compute both from the partial sums of a map with itself, relative to the pivots, which become the mean."""
    lanes, size, blocks = lanes_of(number), partial_sums_size(d), rounded(d, 4) // 4
    sums, means = _joined(partial_sums, splits, C // d * size), doubles_at(mean, C)
    short, result = array_at(lanes, rounded_mean, C), array_at(lanes, covariance, C * d)
    for group in range(C // d):
        start, first = group * size, group * d
        for i in range(d):
            shift = sums[start + _sum_at(blocks, i)] / points
            means[first + i] += shift
            short[first + i] = means[first + i]
            for j in range(i + 1):
                other = sums[start + _sum_at(blocks, j)] / points
                entry = sums[start + _product_at(blocks, j, i)] / points - shift * other
                result[(first + i) * d + j] = entry
                result[(first + j) * d + i] = entry
    return DONE


@device_function
def _products_and_sums(
    number: Any, partial_sums: int, splits: int, mean: int, S: int, C: int, d: int, products: int, sums: int,
    weight_gradient: int,
) -> None:  # fmt: skip
    """From the partial sums of dy with x less its rounded mean: G = Σ dy (x − μ)ᵀ, Σ dy and diag(G Sᵀ)."""
    lanes, size, blocks = lanes_of(number), partial_sums_size(d), rounded(d, 4) // 4
    every = _joined(partial_sums, splits, C // d * size)
    means, matrices = doubles_at(mean, C), array_at(lanes, S, C * d)
    G, s, slopes = array_at(lanes, products, C * d), array_at(lanes, sums, C), array_at(lanes, weight_gradient, C)
    for c in range(C):
        start, i, slope = c // d * size, c % d, 0.0
        row = every[start + _sum_at(blocks, i)]
        for j in range(d):
            centre = means[c - i + j]
            g = every[start + _product_at(blocks, i, j)] - row * (centre - s.dtype.type(centre))
            G[c * d + j] = g
            slope += g * matrices[c * d + j]
        s[c], slopes[c] = row, slope


@device_function
def _inverse_root_gradient(
    number: Any, G: int, weight: int, L: int, V: int, eps: float, groups: int, d: int, gM: int
) -> None:
    """The gradient of M from that of S, the symmetric part of diag(γ) G."""
    lanes, count = lanes_of(number), groups * d * d
    products, gamma = array_at(lanes, G, count), array_at(lanes, weight, groups * d)
    values, vectors, result = array_at(lanes, L, groups * d), array_at(lanes, V, count), array_at(lanes, gM, count)
    stride, size = rounded(d, width(lanes)), padded_rows(d) * rounded(d, width(lanes))
    scratch, p = zeros(lanes, 4 * size), zeros(lanes, stride)
    least, half, one = result.dtype.type(eps), result.dtype.type(0.5), result.dtype.type(1.0)
    X, Y, Vt, Vs = int(np.int64(0)), size, 2 * size, 3 * size  # not a literal: functions would be compiled once more
    for k in range(d, stride):
        p[k] = 1
    for g in range(groups):
        for i in range(d):
            p[i] = np.sqrt(max(values[g * d + i] + least, least))
            for j in range(d):
                left = products[(g * d + i) * d + j] * (gamma[g * d + i] if weight else one)
                right = products[(g * d + j) * d + i] * (gamma[g * d + j] if weight else one)
                scratch[X + i * stride + j] = half * (left + right)
        root_vjp(lanes, vectors, g, p, True, scratch, X, Y, Vt, Vs, stride, d)
        copy_matrix(lanes, scratch, X, stride, result, g * d * d, d, d)


@kernel
def forward_weights(
    number: Any, L: int, V: int, eps: float, S: int, weight: int, bias: int, mean: int, groups: int, d: int,
    weights: int, offsets: int, work: int,
) -> int:  # fmt: skip
    """Weights and offsets of y = A x + c for x less its rounded mean: A = diag(γ) S, c = β − A (μ − rounded μ).

    If the eigenpairs of M are given, S = (M + εI)^(−½) is computed first.
    """
    if L:
        roots_of(lanes_of(number), L, V, eps, groups, S, int(np.int64(0)), groups, d)
    lanes, C, rows = lanes_of(number), groups * d, rounded(d, 4)
    matrices, gamma, beta = array_at(lanes, S, C * d), array_at(lanes, weight, C), array_at(lanes, bias, C)
    means, one, none = doubles_at(mean, C), matrices.dtype.type(1.0), matrices.dtype.type(0.0)
    packed, shifts = array_at(lanes, weights, C // d * rows * rows), array_at(lanes, offsets, C // d * rows)
    clear(packed)
    clear(shifts)
    for c in range(C):
        i, total = c % d, 0.0
        place = c // d * rows * rows + i // 4 * 4 * rows + i % 4
        for j in range(d):
            a = matrices[c * d + j] * (gamma[c] if weight else one)
            packed[place + 4 * j] = a
            total += a * (means[c - i + j] - matrices.dtype.type(means[c - i + j]))
        shifts[c // d * rows + i] = (beta[c] if bias else none) - total
    return DONE


@device_function
def _backward_weights(
    number: Any, S: int, gM: int, weight: int, sums: int, shift: int, mean: int, points: int, groups: int, d: int,
    weights: int, offsets: int,
) -> None:  # fmt: skip
    """Weights and offsets of dx = Aᵀ dy + B x + c for x less its rounded mean.

    B = (gM + gMᵀ)/m and c = −Aᵀ Σdy/m − B (μ − rounded μ), and the shift if there is one.
    """
    lanes, C, rows = lanes_of(number), groups * d, rounded(d, 4)
    matrices, gradients, gamma = array_at(lanes, S, C * d), array_at(lanes, gM, C * d), array_at(lanes, weight, C)
    s, means, one = array_at(lanes, sums, C), doubles_at(mean, C), matrices.dtype.type(1.0)
    shifted, none = array_at(lanes, shift, C), matrices.dtype.type(0.0)
    packed, shifts = array_at(lanes, weights, 2 * C // d * rows * rows), array_at(lanes, offsets, C // d * rows)
    clear(packed)
    clear(shifts)
    for c in range(C):
        i, total = c % d, 0.0
        place = 2 * (c // d) * rows * rows + i // 4 * 8 * rows + i % 4
        for j in range(d):
            k = c - i + j
            a = matrices[k * d + i] * (gamma[k] if weight else one)
            b = (gradients[c * d + j] + gradients[k * d + i]) / points
            packed[place + 4 * j] = a
            packed[place + 4 * (rows + j)] = b
            total += a * (s[k] / points) + b * (means[k] - matrices.dtype.type(means[k]))
        shifts[c // d * rows + i] = (shifted[c] if shift else none) - total


@kernel
def backward_weights(
    number: Any, partial_sums: int, splits: int, mean: int, S: int, weight: int, L: int, V: int, eps: float,
    points: int, groups: int, d: int, G: int, gM: int, sums: int, weight_gradient: int, shift: int, weights: int,
    offsets: int, work: int,
) -> int:  # fmt: skip
    """What is between the two passes of the backward direction, step by step.

    With partial sums: G, the sums and the gradient of γ from them. With eigenpairs: gM from G. With room for weights:
    those of the second pass.
    """
    if partial_sums:
        _products_and_sums(number, partial_sums, splits, mean, S, groups * d, d, G, sums, weight_gradient)
    if L:
        _inverse_root_gradient(number, G, weight, L, V, eps, groups, d, gM)
    if weights:
        _backward_weights(number, S, gM, weight, sums, shift, mean, points, groups, d, weights, offsets)
    return DONE
