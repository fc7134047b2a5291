"""Paint a photograph: style transfer on a canvas of moderate size, and what it lost of the photograph put back.

Strokes have a size relative to the picture, not in pixels, so the transfer is done at the size of a canvas, and the
result is enlarged to that of the photograph. What the canvas and the decoders could not hold, which is the photograph
less its reconstruction, is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...arguments import require_integer, require_positive, require_share
from .codec import Codec
from .gamut import GamutCurve, luma
from .images import Picture
from .parallel import undivided
from .stylize import TILE, Style, reconstruct, require_size, stylize, uncovered_restored
from .tones import in_order_of

__all__ = ["CANVAS", "Source", "paint"]

CANVAS = 768  # pixels along the longer side
STYLES, TRANSFER = 0.1, 0.65  # shares of the time, about; what is left is the reconstruction
TONES = 64  # pixels along the longer side, at which brightness is a tone, and no stroke
SHADOW = 0.25  # brightness, below which a painting may not be brighter than the photograph: the less the darker it is


@dataclass(frozen=True)
class Source:
    """A picture whose style is wanted.

    Args:
        picture: of any size.
        weight: its share beside other styles.
        mask: (H, W) of the content, from 0 to 1: where it goes. None is everywhere.
    """

    picture: Picture
    weight: float = 1.0
    mask: Tensor | None = None


@torch.no_grad()
@undivided()
def paint(
    content: Picture,
    sources: Sequence[Source],
    codec: Codec,
    levels: Sequence[int],
    *,
    strength: float = 1.0,
    strokes: float = 0.5,
    detail: float = 0.7,
    style_size: float = 0.5,
    keep_colors: bool = False,
    canvas: int = CANVAS,
    groups: int = 1,
    smooth: bool = True,
    tile: int = TILE,
    progress: Callable[[float], None] | None = None,
) -> Picture:
    """The content painted in the style of the sources, at the content's own size.

    Args:
        content: the photograph. Its transparency is kept.
        sources: the styles.
        codec: encoders and decoders.
        levels: of the codec, in the order in which they are applied.
        strength: 0 gives the content back, 1 is the full transfer.
        strokes: how much is painted with the styles' own patches; 0 transfers mean and covariance alone.
        detail: how much of what the transfer could not hold of the content is put back, from 0 to 1, and of the order
            of its tones (unless a style is masked, which has tones of its own there).
        style_size: how large the styles are in proportion to the content: smaller makes finer strokes.
        keep_colors: transfer light and dark only, and keep the content's colours.
        canvas: pixels along the longer side at which it is painted.
        groups, smooth, tile, progress: see :func:`~eigengrad.lab.style.stylize.stylize`.
    """
    for name, share in (("strength", strength), ("detail", detail)):
        require_share("paint", name, share)
    require_positive("paint", "style_size", style_size)
    require_integer("paint", "canvas", canvas, minimum=1)
    if strength == 0:
        return content
    small = content.scaled(canvas) if max(content.size) > canvas else content
    require_size(small, codec, levels)
    side = max(1, round(style_size * max(small.size)))
    styles = [
        Style.of(source.picture.scaled(side), codec, levels, groups=groups, smooth=smooth, tile=tile).placed(
            source.weight, None if source.mask is None else _resized(source.mask, small.size).clamp(0, 1)
        )
        for source in sources
    ]
    reported = None if progress is None else lambda done: progress(STYLES + TRANSFER * done)
    made = stylize(
        small, styles, codec, levels, strength=strength, strokes=strokes, tile=tile, progress=reported
    ).pixels
    lost = content.pixels - _resized(reconstruct(small, codec, levels, smooth=smooth, tile=tile), content.size)
    if progress is not None:
        progress(1.0)
    dark = luma(lost)
    masks = [source.mask for source in sources if source.mask is not None]
    if not masks:
        made = made + strength * detail * _resized(_misplaced_light(luma(made), luma(small.pixels)), small.size)
    result = _resized(made, content.size) + dark * (1 - strength * (1 - detail)) + (lost - dark) * (1 - strength)
    result *= 1 - strength * _excess_light(luma(result), luma(content.pixels))
    if keep_colors:
        result = content.pixels + luma(result - content.pixels)
    colours = result.flatten(1)
    curve = GamutCurve.fit(colours, None if content.alpha is None else content.alpha.flatten())
    result = curve(colours).view_as(result)
    if len(masks) == len(sources):
        result = uncovered_restored(content.pixels, result, torch.stack(masks).sum(0))
    return content.with_pixels(result)


def _misplaced_light(made: Tensor, content: Tensor) -> Tensor:
    """What the brightness (H, W) of a painting lacks of tones in the content's order, at the size of tones."""
    height, width = content.shape
    scale = min(1.0, TONES / max(height, width))
    size = (max(1, round(scale * height)), max(1, round(scale * width)))
    tones = _resized(made, size)
    return in_order_of(_resized(content, size), tones) - tones


def _excess_light(made: Tensor, content: Tensor) -> Tensor:
    """The share of the brightness (H, W) that black and nearly black places of the content have to lose.

    A linear map knows no black: where most of a photograph is dark, it takes the dark to the average of the style.
    """
    depth = (1 - content / SHADOW).clamp(min=0)
    return depth * (1 - content / made.clamp(min=1e-3)).clamp(min=0)


def _resized(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Planes (C, H, W) or (H, W) at another size."""
    if tuple(planes.shape[-2:]) == size:
        return planes
    batch = planes.reshape(1, -1, *planes.shape[-2:])
    made = functional.interpolate(batch, size, mode="bicubic", antialias=True)
    return made.reshape(*planes.shape[:-2], *size)
