"""How a picture is laid over the grid of an encoder, and cut into tiles.

An encoder that halves the resolution sees a picture as squares. It is continued by reflection to whole squares. Tiles
are computed with a margin of what can have an influence on them, as far as the picture goes, so that what is inside
them does not show where they were cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

__all__ = ["Layout", "Tile", "average"]


@dataclass(frozen=True)
class Span:
    """A part of a picture along one axis, in pixels: what a tile is responsible for, and what is computed for it."""

    start: int
    stop: int
    outer_start: int
    outer_stop: int

    def core(self, scale: int) -> slice:
        """The span without its margin, at 1/scale of the resolution."""
        return slice(self.start // scale, self.stop // scale)

    def outer(self, scale: int) -> slice:
        """The span with its margin, at 1/scale of the resolution."""
        return slice(self.outer_start // scale, self.outer_stop // scale)

    def trimmed(self, scale: int) -> slice:
        """Where the core is within what was computed with the margin."""
        return slice((self.start - self.outer_start) // scale, (self.stop - self.outer_start) // scale)


@dataclass(frozen=True)
class Tile:
    """A rectangle of a picture."""

    rows: Span
    columns: Span

    def with_margin(self, x: Tensor, scale: int = 1) -> Tensor:
        """A view of the tile with its margin in the whole (..., H, W), at 1/scale of the resolution."""
        return x[..., self.rows.outer(scale), self.columns.outer(scale)]

    def without_margin(self, x: Tensor, scale: int = 1) -> Tensor:
        """A view of the tile without its margin in the whole (..., H, W), at 1/scale of the resolution."""
        return x[..., self.rows.core(scale), self.columns.core(scale)]

    def trim(self, x: Tensor, scale: int = 1) -> Tensor:
        """Remove the margin from something computed with it, at 1/scale of the resolution."""
        return x[..., self.rows.trimmed(scale), self.columns.trimmed(scale)]


@dataclass(frozen=True)
class Layout:
    """A picture over a grid.

    Args:
        size: height and width of the picture.
        stride: the side of the squares.
        offset: how far the picture is from the upper left corner of the grid, in both directions.
        tile: the side of the tiles, about.
    """

    size: tuple[int, int]
    stride: int
    offset: int
    tile: int

    @property
    def extended(self) -> tuple[int, int]:
        """Height and width in whole squares."""
        height, width = (-(-(side + self.offset) // self.stride) * self.stride for side in self.size)
        return height, width

    def extend(self, x: Tensor) -> Tensor:
        """Extend (C, H, W) or (H, W) to whole squares, by reflection."""
        (height, width), (tall, wide) = self.size, self.extended
        top = left = self.offset
        planes = x if x.ndim == 3 else x.unsqueeze(0)
        sides = (left, wide - width - left, top, tall - height - top)
        planes = functional.pad(planes.unsqueeze(0), sides, mode="reflect").squeeze(0)
        return planes if x.ndim == 3 else planes.squeeze(0)

    def crop(self, x: Tensor) -> Tensor:
        """The part of an extended picture that is the picture."""
        (height, width), start = self.size, self.offset
        return x[..., start : start + height, start : start + width]

    def tiles(self, margin: int) -> Iterator[Tile]:
        """All tiles, each with a margin around it, which must be a multiple of the stride."""
        for rows in self._spans(self.extended[0], margin):
            for columns in self._spans(self.extended[1], margin):
                yield Tile(rows, columns)

    def _spans(self, length: int, margin: int) -> Iterator[Span]:
        side = max(1, round(self.tile / self.stride)) * self.stride
        count = max(1, round(length / side))  # the last takes what is left over, or does without
        for index in range(count):
            start, stop = index * side, length if index == count - 1 else (index + 1) * side
            yield Span(start, stop, max(0, start - margin), min(length, stop + margin))


def average(x: Tensor, scale: int) -> Tensor:
    """Average over squares: (..., H, W) at 1/scale of the resolution."""
    height, width = x.shape[-2] // scale, x.shape[-1] // scale
    planes = functional.avg_pool2d(x.reshape(-1, 1, *x.shape[-2:]), scale)
    return planes.reshape(*x.shape[:-2], height, width)
