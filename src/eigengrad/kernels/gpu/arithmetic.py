"""What the eigensolvers share: a matrix's scale as a power of two, the rotation of a pair, and small products.

Square roots and divisions of float32 are approximate on GPUs (to 2 ulp). Nothing here relies on them being exact:
scales are made from exponent bits, and the tangent and the norm of a rotation are corrected by multiplications.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Status of a matrix: decomposed; NaN or infinity in the triangle that is read; sweeps did not suffice.
DECOMPOSED, NOT_FINITE, NOT_CONVERGED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def machine_epsilon(dtype: tl.constexpr):
    """Distance from 1 to the next larger number of the type."""
    if dtype == tl.float64:
        return tl.full((), 2.0**-52, dtype)
    else:
        return tl.full((), 2.0**-23, dtype)


@triton.jit
def power_of_two_scale(largest):
    """Factors (lift, shrink, restore, drop): the first two bring the largest entry into [1, 4), the others undo it.

    All are powers of two, so that scaling rounds nothing and cA is decomposed exactly as A. ``lift`` takes what is tiny
    or denormal into the normal range first; the largest exponent is left out, because its reciprocal is denormal.

    Args:
        largest: the largest absolute value of a matrix, finite, or several of them. Zero counts as 1.
    """
    largest = tl.where(largest == 0, 1.0, largest)
    if largest.dtype == tl.float64:
        lift = tl.where(largest < 2.0**-500, 2.0**512, 1.0).to(tl.float64)
        bits = (largest * lift).to(tl.int64, bitcast=True) & 0x7FF0000000000000
        bits = tl.minimum(bits, 0x7FD0000000000000)
        one_over = 0x7FE0000000000000 - bits
        drop = tl.where(lift > 1, 2.0**-512, 1.0).to(tl.float64)
        return lift, one_over.to(tl.float64, bitcast=True), bits.to(tl.float64, bitcast=True), drop
    else:
        lift = tl.where(largest < 2.0**-60, 2.0**64, 1.0).to(tl.float32)
        bits = (largest * lift).to(tl.int32, bitcast=True) & 0x7F800000
        bits = tl.minimum(bits, 0x7E800000)
        one_over = 0x7F000000 - bits
        drop = tl.where(lift > 1, 2.0**-64, 1.0).to(tl.float32)
        return lift, one_over.to(tl.float32, bitcast=True), bits.to(tl.float32, bitcast=True), drop


@triton.jit
def rotation(gap, off, turn, first):
    """(cos, sin, change) of the Jacobi rotation that annihilates ``off`` between two diagonal entries ``gap`` apart.

    The angle is at most 45°, so that converged pairs keep their places. Where ``turn`` is false it is zero.

    Args:
        gap: a_qq − a_pp of a pair, as its member p sees it.
        off: a_pq.
        turn: whether the pair is turned at all.
        first: at a tie, whether p is the first of the two: one must turn up and the other down.

    Returns:
        x_p ← cos · x_p − sin · x_q for the columns, and a_pp ← a_pp − change.
    """
    twice = off + off
    h = tl.where(turn, tl.sqrt(gap * gap + twice * twice), 1.0)
    tan = twice / (tl.abs(gap) + h)
    tan += (off - tan * (tl.abs(gap) + off * tan)) / h  # a Newton step, which leaves nothing of the roots' errors
    tan = tl.where(turn, tan, 0.0)
    tan = tl.where((gap > 0) | ((gap == 0) & first), tan, -tan)
    cos = tl.rsqrt(tan * tan + 1.0)
    sin = tan * cos
    excess = 0.5 * ((1.0 - cos * cos) - sin * sin)
    return cos + cos * excess, sin + sin * excess, tan * off


@triton.jit
def product(a, b):
    """a @ b for square blocks in full precision, the type's own."""
    if a.shape[0] < 16:  # the least that tl.dot takes
        return tl.sum(a[:, :, None] * b[None, :, :], 1)
    else:
        return tl.dot(a, b, input_precision="ieee", out_dtype=a.dtype)
