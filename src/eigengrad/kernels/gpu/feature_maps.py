"""The passes of whitening over a feature map (N, C, *spatial): two kernels, each of which reads its maps once.

moments    Σ y (x − c)ᵀ and Σ y over the points of each group of d channels; y is x − c itself for a covariance
affine     B (x − c) + A y + b at each point, or without A y

A program has W channels, whole groups of them, padded to D, and P points at a time. Groups narrower than 16 channels,
the least that ``tl.dot`` takes, share a program, and the products across groups are not used. Points are centred in
registers, so that nothing cancels where the mean is far from zero. A map is seen as samples of positions: by sample in
NCHW layout, as one sample in channels_last.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["affine", "moments"]


@triton.jit
def moments(
    X, Y, CENTRE, PRODUCTS, SUMS, samples, positions, channels, d, stride_sample, stride_channel, stride_position, W,
    SAME: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Partial sums over every ``num_programs(1)``-th tile of points.

    Args:
        X, Y: maps of the same strides; Y is not read if it is the SAME.
        CENTRE: c, (channels,).
        PRODUCTS: (parts, channels, d): row by row, groups of d rows.
        SUMS: (parts, channels).
        W: channels of a program, a multiple of d, at most D.
    """
    i, k = tl.arange(0, D), tl.arange(0, P)
    channel = tl.program_id(0) * W + i
    inside = (i < W) & (channel < channels)
    centre = tl.load(CENTRE + channel, mask=inside, other=0.0)[:, None]
    dtype: tl.constexpr = X.dtype.element_ty
    products, sums = tl.zeros([D, D], dtype), tl.zeros([D], dtype)
    tiles = tl.cdiv(positions, P)
    for tile in range(tl.program_id(1), samples * tiles, tl.num_programs(1)):
        point = (tile % tiles) * P + k
        here = inside[:, None] & (point < positions)[None, :]
        at = (tile // tiles).to(tl.int64) * stride_sample + channel.to(tl.int64)[:, None] * stride_channel
        at += point.to(tl.int64)[None, :] * stride_position
        x = tl.where(here, tl.load(X + at, mask=here, other=0.0) - centre, 0.0)
        y = x if SAME else tl.load(Y + at, mask=here, other=0.0)
        products = tl.dot(y, tl.trans(x), products, input_precision="ieee", out_dtype=dtype)
        sums += tl.sum(y, 1)
    row = tl.program_id(1) * channels + channel
    own = (i // d)[:, None] == (i // d)[None, :]
    tl.store(PRODUCTS + row[:, None] * d + (i % d)[None, :], products, mask=own & inside[:, None] & inside[None, :])
    tl.store(SUMS + row, sums, mask=inside)


@triton.jit
def affine(
    X, Y, CENTRE, B, A, OFFSET, OUT, positions, channels, d, stride_sample, stride_channel, stride_position, W,
    TWO: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """B (x − c) + b, and A y if there are TWO maps, for W channels and P positions of one sample.

    Args:
        X, Y, OUT: maps of the same strides.
        CENTRE, OFFSET: c and b, (channels,).
        B, A: (groups, d, d), contiguous.
    """
    i = tl.arange(0, D)
    channel = tl.program_id(1) * W + i
    point = tl.program_id(0) * P + tl.arange(0, P)
    inside = (i < W) & (channel < channels)
    here = inside[:, None] & (point < positions)[None, :]
    at = tl.program_id(2).to(tl.int64) * stride_sample + channel.to(tl.int64)[:, None] * stride_channel
    at += point.to(tl.int64)[None, :] * stride_position
    own = ((i // d)[:, None] == (i // d)[None, :]) & inside[:, None] & inside[None, :]
    entry = channel[:, None] * d + (i % d)[None, :]
    centre = tl.load(CENTRE + channel, mask=inside, other=0.0)[:, None]
    dtype: tl.constexpr = X.dtype.element_ty
    x = tl.where(here, tl.load(X + at, mask=here, other=0.0) - centre, 0.0)
    out = tl.dot(tl.load(B + entry, mask=own, other=0.0), x, input_precision="ieee", out_dtype=dtype)
    if TWO:
        y = tl.load(Y + at, mask=here, other=0.0)
        out = tl.dot(tl.load(A + entry, mask=own, other=0.0), y, out, input_precision="ieee", out_dtype=dtype)
    tl.store(OUT + at, out + tl.load(OFFSET + channel, mask=inside, other=0.0)[:, None], mask=here)
