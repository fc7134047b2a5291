"""Which backend passes over feature maps, by where their channels are in memory.

Each backend is a file with two kernels of the same arguments (:mod:`.arguments`), so that only what is used is ever
compiled:

    ``moments``        Σ l and Σ l rᵀ within each group of channels, for two maps or one with itself
    ``apply_affine``   y = M x + c within each group, of one map, or of two with their products added

*moments* works on splits, each a share of the tiles, *apply_affine* on tiles. The centre is subtracted from the last
map; for one map with itself both addresses are the same, and only the blocks on and above the diagonal are summed.
The layouts of partial sums and weights are in ``docs/design/kernels.md``.
"""

from __future__ import annotations

from .. import costs

__all__ = ["select_backend"]


def select_backend(points: int, channels: int, positions: int, fast: bool, d: int, width: int) -> str:
    """The module for maps of ``positions`` points a sample, ``width`` numbers being a vector."""
    if fast and d in (4, 8) and d <= width and channels % width == 0 and points >= 4:
        return "nhwc_shuffle"
    if fast and width >= 4 and d % width == 0:  # partial_sums come in fours
        return "nhwc_broadcast"
    if not fast and positions % width == 0 and d % 4 == 0 and d <= costs.DIRECT_CHANNELS:
        return "nchw_direct"
    return "packed"
