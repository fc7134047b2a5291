"""The loop over chunks and tiles that all feature-map backends share; see :mod:`.backends`.

A backend has functions for one tile, ``add_tile`` and ``apply_tile``, and functions that make what a thread keeps from
tile to tile, ``new_scratch(lanes, maps)`` and ``new_scratch(lanes, maps, affine)``; :func:`sum_tiles` and
:func:`apply_to_tiles` make the bodies of its two kernels from them.

A map (N, C, *spatial) has m = N·P points, P of them a sample, and C channels in groups of d. In memory its channels are
either slow (NCHW: a row of P numbers for each sample and channel) or fast (channels_last: C numbers for each point).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..runtime.compile import device_function, inline
from ..runtime.work import DONE, arguments_at, block_type, next_chunk
from ..simd.arrays import array_at, doubles_at, rounded, zeros
from ..simd.memory import finish_streaming
from ..simd.vectors import lanes_of, width
from .arguments import AffineArguments, MomentsArguments

__all__ = ["Affine", "Maps", "apply_to_tiles", "partial_sums_size", "sum_tiles"]

_MOMENTS, _AFFINE = block_type(MomentsArguments), block_type(AffineArguments)


class Maps(NamedTuple):
    """One map or two, as arrays."""

    inputs: Any  #: (left, right) or (first, second); of one map only, the second entry is the first, or empty
    centres: Any  #: what is subtracted from each: the rounded mean from the last map, zeros from another
    sides: int  #: how many maps there are
    C: int
    P: int
    fast: bool
    d: int
    length: int
    groups_per_tile: int
    whole: bool  #: rows of samples are whole vectors, four by four, and tiles of results do not cross samples


class Affine(NamedTuple):
    """Where an affine map of feature maps is, as arrays, and where its result goes."""

    weights: Any
    offsets: Any
    y: Any
    streaming: bool


@device_function
def _maps_at(lanes: Any, a: Any, first: int, second: int, count: int) -> Any:
    """The maps of a kernel's arguments."""
    rounded_mean, mean, nothing = zeros(lanes, a.C), doubles_at(a.centre, a.C), zeros(lanes, a.C)
    for c in range(a.C):
        rounded_mean[c] = mean[c]
    inputs = array_at(lanes, first, a.points * a.C), array_at(lanes, second, a.points * a.C)
    centres = rounded_mean if count == 1 else nothing, rounded_mean
    whole = a.fast == 0 and a.P % width(lanes) == 0 and a.d % 4 == 0
    return Maps(inputs, centres, count, a.C, a.P, a.fast != 0, a.d, a.length, a.groups_per_tile, whole)


@device_function
def partial_sums_size(d: int) -> int:
    """How many partial sums a group has.

    16 for every 4×4 block of products, by rows of blocks, then 16 for every 4 channels, the first 4 of them their sums.
    """
    blocks = rounded(d, 4) // 4
    return (blocks + 1) * blocks * 16


def sum_tiles(new_scratch: Any, add_tile: Any) -> Any:
    """Make a function (number, work) that fills the partial sums of all splits, each a share of the tiles.

    ``add_tile(lanes, maps, scratch, first, count, following, sums, start)`` adds those of ``count`` points from
    ``first`` on to ``sums[start:]``; ``following`` is where the next tile begins, or −1.
    """

    @inline
    def sum_all(number: Any, work: int) -> int:
        a = arguments_at(work, _MOMENTS)
        points, splits, length = a.points, a.splits, a.length
        begin, end = next_chunk(work, splits)
        if begin >= end:
            return DONE
        lanes = lanes_of(number)
        maps = _maps_at(lanes, a, a.left, a.right, 1 if a.left == a.right else 2)
        size, tiles = a.C // a.d * partial_sums_size(a.d), rounded(points, length) // length
        sums, scratch = doubles_at(a.partial_sums, splits * size), new_scratch(lanes, maps)
        while begin < end:
            for split in range(begin, end):
                for i in range(split * size, (split + 1) * size):
                    sums[i] = 0
                low, high = tiles * split // splits * length, min(points, tiles * (split + 1) // splits * length)
                for point in range(low, high, length):
                    count, following = min(length, high - point), point + length if point + length < high else -1
                    add_tile(lanes, maps, scratch, point, count, following, sums, split * size)
            begin, end = next_chunk(work, splits)
        return DONE

    return sum_all


@device_function
def _tile_at(maps: Maps, tile: int) -> int:
    """The first point of a tile of results."""
    if not maps.whole:
        return tile * maps.length
    tiles_a_sample = rounded(maps.P, maps.length) // maps.length
    return tile // tiles_a_sample * maps.P + tile % tiles_a_sample * maps.length


def apply_to_tiles(new_scratch: Any, apply_tile: Any) -> Any:
    """Make a function (number, work) that applies an affine map to all tiles.

    ``apply_tile(lanes, maps, affine, scratch, first, count, following)`` does it at ``count`` points from ``first`` on.
    """

    @inline
    def apply_to_all(number: Any, work: int) -> int:
        a = arguments_at(work, _AFFINE)
        points, tiles = a.points, a.tiles
        begin, end = next_chunk(work, tiles)
        if begin >= end:
            return DONE
        lanes, rows = lanes_of(number), a.C // a.d * rounded(a.d, 4)
        maps = _maps_at(lanes, a, a.first, a.second, 2 if a.second else 1)
        weights = array_at(lanes, a.weights, rows * maps.sides * rounded(a.d, 4))
        y, offsets = array_at(lanes, a.result, points * a.C), array_at(lanes, a.offsets, rows)
        affine = Affine(weights, offsets, y, a.streaming != 0)
        scratch = new_scratch(lanes, maps, affine)
        while begin < end:
            for tile in range(begin, end):
                first, following = _tile_at(maps, tile), _tile_at(maps, tile + 1) if tile + 1 < end else -1
                stop = (first // maps.P + 1) * maps.P if maps.whole else points
                apply_tile(lanes, maps, affine, scratch, first, min(maps.length, stop - first), following)
            if affine.streaming:
                finish_streaming()
            begin, end = next_chunk(work, tiles)
        return DONE

    return apply_to_all
