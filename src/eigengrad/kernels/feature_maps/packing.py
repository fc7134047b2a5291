"""Tiles of feature maps: some channels by some points, a row a channel, copied to where the first caches can hold them.

A tile is the same whether channels are slow or fast (see :mod:`.harness`), so what is computed on tiles is
written once: points along the vectors, rows at given places, a constant subtracted from each channel on the way. Where
channels are fast, W×W blocks are transposed in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..costs import PREFETCHED
from ..runtime.compile import device_function
from ..simd.arrays import rounded
from ..simd.memory import aligned, broadcast, load, load_n, prefetch, store, store_n
from ..simd.transposes import transpose_block
from ..simd.vectors import splat, width
from .harness import Affine, Maps

__all__ = ["channel_places", "gather", "new_tile", "prefetch_rows", "scatter", "worth_prefetching"]


@device_function
def new_tile(lanes: Any, count: int, d: int, stride: int) -> Any:
    """An array of ``count`` rows, ``stride`` apart; every d rows are followed by zeros up to a multiple of 4 rows.

    The others are not initialised.
    """
    W, rows = width(lanes), rounded(d, 4)
    tile = aligned(lanes, count * stride)
    for row in range(count):
        if row % rows >= d:
            for column in range(0, stride, W):
                store(tile, row * stride + column, splat(lanes, 0.0))
    return tile


@device_function
def channel_places(lanes: Any, channels: int, d: int, rows: int, stride: int) -> Any:
    """Where the rows of some channels, rounded up to whole vectors, are in a tile that has ``rows`` for each group."""
    places = np.empty(channels + width(lanes), np.int64)
    for k in range(places.size):
        places[k] = (k // d * rows + k % d) * stride
    return places


@device_function
def worth_prefetching(x: Any, fast: bool) -> bool:
    """Whether tiles are filled faster after :func:`prefetch_rows`: not from a cache, nor in the order of memory."""
    return not fast and x.size * x.itemsize >= PREFETCHED


@device_function
def prefetch_rows(inputs: Any, sides: int, place: int, P: int, rows: int, length: int) -> None:
    """Prefetch ``length`` numbers of some rows, P apart, of one or two maps, while the tile before is computed."""
    for row in range(place, place + rows * P, P):
        prefetch(inputs[0], row, row + length)
        if sides == 2:
            prefetch(inputs[1], row, row + length)


@device_function
def gather(
    lanes: Any, maps: Maps, side: int, first: int, count: int, channel: int, channels: int, tile: Any, places: Any,
    row: int,
) -> None:  # fmt: skip
    """Copy the points ``first`` to ``first + count`` of a map, less the centre, of some channels from ``channel`` on.

    Rows go ``row`` numbers behind their places. Columns up to the end of the last point's vector are zero.
    """
    W, C, P, x, centre = width(lanes), maps.C, maps.P, maps.inputs[side], maps.centres[side]
    column = 0
    while column < count and not maps.fast:
        sample, point = divmod(first + column, P)
        length = min(P - point, count - column)
        part = length % W
        for k in range(channels):
            source, target = (sample * C + channel + k) * P + point, row + places[k] + column
            shift = broadcast(lanes, centre, channel + k)
            for i in range(0, length - part, W):
                store(tile, target + i, load(lanes, x, source + i) - shift)
            if part:
                i = length - part
                store(tile, target + i, load_n(lanes, x, source + i, part) - shift)
        column += length
    while column < count:
        for k in range(0, channels, W):
            source, shift = (first + column) * C + channel + k, load(lanes, centre, channel + k)
            transpose_block(
                lanes, x, source, C, shift, tile, places[k:], row + column, count - column, channels - k, W < 0
            )
        column += W
    part = count % W
    if part:
        for k in range(channels):
            place = row + places[k] + count - part
            store(tile, place, load_n(lanes, tile, place, part))


@device_function
def scatter(
    lanes: Any, tile: Any, places: Any, maps: Maps, affine: Affine, first: int, count: int, channel: int, channels: int
) -> None:  # fmt: skip
    """Copy a tile to the points ``first`` to ``first + count`` of the result; streaming where channels are fast."""
    W, C, P, y, none = width(lanes), maps.C, maps.P, affine.y, splat(lanes, 0.0)
    column = 0
    while column < count and not maps.fast:
        sample, point = divmod(first + column, P)
        length = min(P - point, count - column)
        part = length % W
        for k in range(channels):
            source, target = places[k] + column, (sample * C + channel + k) * P + point
            for i in range(0, length - part, W):
                store(y, target + i, load(lanes, tile, source + i))
            if part:
                i = length - part
                store_n(y, target + i, load(lanes, tile, source + i), part)
        column += length
    while column < count:
        for k in range(0, channels, W):
            target = (first + column) * C + channel + k
            transpose_block(
                lanes, tile, places[k:], column, none, y, target, C, channels - k, count - column, affine.streaming
            )
        column += W
