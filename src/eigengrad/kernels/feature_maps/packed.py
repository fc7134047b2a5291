"""Any channels, any points: through tiles (:mod:`.packing`), which have points along the vectors.

Within a tile 4×4 products at a time are summed in registers: 8 loads for 16 fused operations, over rows of some hundred
points; then the lanes are added up and go to the partial sums, in double precision. Results
are computed four rows by four vectors of points: each row of the input costs four loads, four broadcast weights and 16
fused operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.compile import device_function, inline, kernel
from ..simd.arrays import rounded
from ..simd.blocks import add_lane_sums, add_products, block_of_rows, store_block, zero_block
from ..simd.matrix_products import add_outers
from ..simd.vectors import width
from .harness import Affine, Maps, apply_to_tiles, partial_sums_size, sum_tiles
from .packing import channel_places, gather, new_tile, prefetch_rows, scatter, worth_prefetching

__all__ = ["apply_affine", "moments"]


@device_function
def _moments_scratch(lanes: Any, maps: Maps) -> Any:
    """A tile, of the left map's rows and then of the right one's, and where its channels are."""
    rows, stride = rounded(maps.d, 4), maps.length + width(lanes)
    tile = new_tile(lanes, maps.sides * maps.groups_per_tile * rows, maps.d, stride)
    return tile, channel_places(lanes, maps.groups_per_tile * maps.d, maps.d, rows, stride)


@device_function
def _ahead(maps: Maps, group: int, first: int, following: int) -> int:
    """Where in the maps the numbers are that are read after these groups of a tile; 0 if there are none."""
    if group + maps.groups_per_tile < maps.C // maps.d:
        return (first // maps.P * maps.C + (group + maps.groups_per_tile) * maps.d) * maps.P + first % maps.P
    return following // maps.P * maps.C * maps.P + following % maps.P if following >= 0 else int(np.int64(0))


@inline
def _add_tile(
    lanes: Any, maps: Maps, scratch: Any, first: int, count: int, following: int, partial_sums: Any, start: int
) -> None:
    """Add the products and sums of the points ``first`` to ``first + count`` to the partial sums from ``start`` on."""
    d, (tile, places) = maps.d, scratch
    rows, stride = rounded(d, 4), maps.length + width(lanes)
    half = maps.groups_per_tile * rows * stride
    far = worth_prefetching(maps.inputs[0], maps.fast)
    for group in range(0, maps.C // d, maps.groups_per_tile):
        groups = min(maps.groups_per_tile, maps.C // d - group)
        for side in range(maps.sides):
            gather(lanes, maps, side, first, count, group * d, groups * d, tile, places, side * half)
        ahead = _ahead(maps, group, first, following) if far else int(np.int64(0))
        for g in range(groups):
            place, here = g * rows * stride, start + (group + g) * partial_sums_size(d)
            _add_group(
                lanes, maps, tile, place, stride, rows // 4, half if maps.sides == 2 else 0, count, partial_sums, here,
                ahead,
            )  # fmt: skip


@device_function
def _add_group(
    lanes: Any, maps: Maps, tile: Any, place: int, stride: int, blocks: int, half: int, count: int, partial_sums: Any,
    start: int, ahead: int,
) -> None:  # fmt: skip
    """Add the partial sums of one group in one tile. Where both maps are one, ``half`` is 0.

    Meanwhile the rows of the next tile, which the maps have from ``ahead`` on, if that is not 0, are fetched.
    """
    W, inputs, sides, P, none = width(lanes), maps.inputs, maps.sides, maps.P, zero_block(lanes, 4)
    row, done, share = 0, 0, 0
    if ahead:  # with every block of products a share of the next tile, but rows should not alternate all the time
        share = max(16 * W, rounded(4 * blocks * count // (blocks * (blocks if half else (blocks + 1) // 2)), W))
    for i in range(blocks):
        left = place + 4 * i * stride
        for j in range(0 if half else i, blocks):
            right = place + half + 4 * j * stride
            if ahead and row < 4 * blocks:
                prefetch_rows(inputs, sides, ahead + row * P + done, P, 1, share)
                done += share
                if done >= count:
                    row, done = row + 1, 0
            here = start + (i * blocks + j) * 16
            if i == j:
                block = zero_block(lanes, 20)
                for x in range(left, left + count, W):
                    block = add_products(lanes, block, tile, x, stride, none, tile, x + right - left, stride, none)
                add_lane_sums(lanes, block, 0, partial_sums, here)
                add_lane_sums(lanes, block, 16, partial_sums, start + (blocks * blocks + i) * 16)
            else:
                products = zero_block(lanes, 16)
                for x in range(left, left + count, W):
                    products = add_products(
                        lanes, products, tile, x, stride, none, tile, x + right - left, stride, none
                    )
                add_lane_sums(lanes, products, 0, partial_sums, here)


@device_function
def _affine_scratch(lanes: Any, maps: Maps, affine: Affine) -> Any:
    """A tile for what is read and where its channels are, and another for results that are not whole."""
    d, groups, rows, stride = maps.d, maps.groups_per_tile, rounded(maps.d, 4), maps.length + width(lanes)
    depth = maps.sides * rows
    tile = new_tile(lanes, groups * depth, d, stride)
    spare = new_tile(lanes, 0 if maps.whole else groups * rows, d, stride)
    sources = channel_places(lanes, groups * d, d, depth, stride)
    return tile, sources, spare, channel_places(lanes, groups * d, d, rows, stride)


@inline
def _apply_tile(lanes: Any, maps: Maps, affine: Affine, scratch: Any, first: int, count: int, following: int) -> None:
    """Apply the map to the points ``first`` to ``first + count``."""
    d, (tile, sources, spare, targets) = maps.d, scratch
    rows, stride = rounded(d, 4), maps.length + width(lanes)
    depth = maps.sides * rows
    far = maps.whole and worth_prefetching(affine.y, maps.fast)
    for group in range(0, maps.C // d, maps.groups_per_tile):
        groups = min(maps.groups_per_tile, maps.C // d - group)
        for side in range(maps.sides):
            gather(lanes, maps, side, first, count, group * d, groups * d, tile, sources, side * rows * stride)
        ahead = _ahead(maps, group, first, following) if far else int(np.int64(0))
        for g in range(group, group + groups):
            out, place, step = spare, (g - group) * rows * stride, stride
            if maps.whole:
                out, place, step = affine.y, (first // maps.P * maps.C + g * d) * maps.P + first % maps.P, maps.P
            _apply_to_rows(
                lanes, maps, affine, tile, (g - group) * depth * stride, stride, depth, count, g * rows, rows, out,
                place, step, ahead,
            )  # fmt: skip
        if not maps.whole:
            scatter(lanes, spare, targets, maps, affine, first, count, group * d, groups * d)


@device_function
def _apply_to_rows(
    lanes: Any, maps: Maps, affine: Affine, tile: Any, source: int, stride: int, depth: int, count: int, offset: int,
    rows: int, y: Any, target: int, step: int, ahead: int,
) -> None:  # fmt: skip
    """Apply the map to one group: ``rows`` rows of y, ``step`` apart, from ``depth`` rows of a tile.

    ``count`` columns, rounded up to whole vectors. ``offset`` is the group's first among all rows. Meanwhile the rows
    of the next tile, which the maps have from ``ahead`` on, if that is not 0, are fetched.
    """
    W, streaming = width(lanes), maps.whole and affine.streaming
    weights, offsets = affine.weights, affine.offsets
    inputs, sides, P = maps.inputs, maps.sides, maps.P  # not in the loop, where all of ``maps`` would be counted
    for row in range(0, rows, 4):
        column = 0
        while column < count:
            p, w, q = source + column, (offset + row) * depth, target + row * step + column
            if column + 3 * W < count:
                if ahead:
                    prefetch_rows(inputs, sides, ahead + row * P + column, P, 4, 4 * W)
                wide = block_of_rows(lanes, offsets, offset + row, 4)
                wide = add_outers(lanes, wide, 4, depth, tile, p, stride, weights, w, 4, 1)
                store_block(lanes, y, q, step, wide, 4, streaming)
                column += 4 * W
            else:
                narrow = block_of_rows(lanes, offsets, offset + row, 1)
                narrow = add_outers(lanes, narrow, 1, depth, tile, p, stride, weights, w, 4, 1)
                store_block(lanes, y, q, step, narrow, 1, streaming)
                column += W


_sum = sum_tiles(_moments_scratch, _add_tile)
_apply = apply_to_tiles(_affine_scratch, _apply_tile)


@kernel
def moments(number: Any, work: int) -> int:
    """Compute Σ l and Σ l rᵀ within each group; see :mod:`.backends`."""
    return int(_sum(number, work))


@kernel
def apply_affine(number: Any, work: int) -> int:
    """Compute y = M x + c within each group; see :mod:`.backends`.

    Where rows of samples are whole vectors, what a tile gives goes straight to the result.
    """
    return int(_apply(number, work))
