"""What the kernels of the feature-map backends are given: one integer for each field, behind the head of a work block.

Names that end in none of the following are addresses. A map has ``points`` points, ``P`` of them a sample, and ``C``
channels in groups of ``d``; ``fast`` says whether its channels are next to each other in memory. ``length`` points of
``groups_per_tile`` groups are a tile.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AffineArguments", "MomentsArguments"]


class MomentsArguments(NamedTuple):
    """Arguments of ``moments``; see :mod:`.backends`."""

    left: int
    right: int  #: the same as ``left`` for one map with itself
    centre: int  #: a mean for each channel, float64
    points: int
    C: int
    P: int
    fast: int
    d: int
    length: int
    groups_per_tile: int
    partial_sums: int  #: float64, a row a split
    splits: int  #: chunks are of these


class AffineArguments(NamedTuple):
    """Arguments of ``apply_affine``; see :mod:`.backends`."""

    first: int
    second: int  #: 0 if there is one map only
    centre: int  #: a mean for each channel, float64
    points: int
    C: int
    P: int
    fast: int
    d: int
    length: int
    groups_per_tile: int
    weights: int
    offsets: int
    result: int
    streaming: int
    tiles: int  #: chunks are of these
