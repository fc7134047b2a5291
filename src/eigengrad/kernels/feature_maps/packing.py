"""Tiles of feature maps: some channels by some points, a row a channel, copied to where the first caches can hold them.

A tile is the same whether channels are slow or fast (see :mod:`.harness`), so what is computed on tiles is
written once: points along the vectors, rows at given places, a constant subtracted from each channel on the way. Where
channels are fast, W×W blocks are transposed in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..costs import FETCHED
from ..runtime.compile import device_function
from ..simd.arrays import rounded
from ..simd.memory import aligned, broadcast, fetch, load, load_part, store, store_part
from ..simd.transposes import transpose_block
from ..simd.vectors import splat, width
from .harness import Affine, Maps

__all__ = ["channel_places", "fetch_rows", "gather", "new_tile", "scatter", "worth_fetching"]


@device_function
def new_tile(lanes: Any, count: int, d: int, stride: int) -> Any:
    """Room for ``count`` rows, ``stride`` apart, of which d at a time are followed by zeros up to a multiple of 4.

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
def worth_fetching(x: Any, fast: bool) -> bool:
    """Whether :func:`fetch_rows` makes tiles come sooner; where channels are fast, the CPU foresees them."""
    return not fast and x.size * x.itemsize >= FETCHED


@device_function
def fetch_rows(inputs: Any, sides: int, place: int, P: int, rows: int, length: int) -> None:
    """Fetch ``length`` numbers of some rows, P apart, of one or two maps.

    A tile is filled faster if it was asked for while the one before was worked on.
    """
    for row in range(place, place + rows * P, P):
        fetch(inputs[0], row, row + length)
        if sides == 2:
            fetch(inputs[1], row, row + length)


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
                store(tile, target + i, load_part(lanes, x, source + i, part) - shift)
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
            store(tile, place, load_part(lanes, tile, place, part))


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
                store_part(y, target + i, load(lanes, tile, source + i), part)
        column += length
    while column < count:
        for k in range(0, channels, W):
            target = (first + column) * C + channel + k
            transpose_block(
                lanes, tile, places[k:], column, none, y, target, C, channels - k, count - column, affine.streaming
            )
        column += W
