"""The ways through feature maps: who sums their moments and mixes their channels, by where the channels are in memory.

Each way is a file with two kernels of the same arguments, so that only what is used is ever compiled:

    ``moments``   Σ l and Σ l rᵀ within each group of channels, for two maps or one with itself
    ``apply_affine``       y = M x + c within each group, of one map, or of two with their products added

For m points of C channels in groups of d that is 2·m·C·d flops for each product (m·C·d for one map with itself) on top
of reading the maps once: bound by memory up to d ≈ 32, by arithmetic beyond.

Both take addresses, and as their first argument a number of the maps' type (see :mod:`..simd.arrays`), and work on
chunks of a range (:mod:`..runtime.work`). How points are cut depends on the shape alone, so results do not depend on
the number of threads.

*moments* works on ``splits``, each a share of the tiles of ``length`` points, of
``groups_per_tile`` groups where channels are fast. The right map is taken less its centre. For one map with itself both
addresses are the same, both are taken less the centre, and only the blocks on and above the diagonal are summed.

*apply_affine* works on tiles. The centre is subtracted from the last map. Weights are, for every group
and four of its rows, the packed columns of [M₁ M₂], both padded with zeros to multiples of 4, so that inner loops walk
through them; offsets the padded c of every group. With ``streaming`` a result is written past the caches, in which it
would not stay anyway: a line that is streamed need not be read first.
"""

from __future__ import annotations

__all__ = ["select_backend"]

_DIRECT = 16  # the largest d for which reading rows again, less their centre, is quicker than writing a tile


def select_backend(points: int, channels: int, positions: int, fast: bool, d: int, width: int) -> str:
    """The module for maps of ``positions`` points a sample, ``width`` numbers being a vector."""
    if fast and d in (4, 8) and d <= width and channels % width == 0 and points >= 4:
        return "nhwc_shuffle"
    if fast and width >= 4 and d % width == 0:  # partial_sums come in fours
        return "nhwc_broadcast"
    if not fast and positions % width == 0 and d % 4 == 0 and d <= _DIRECT:
        return "nchw_direct"
    return "packed"
