"""A picture in the colours of another: whitening and colouring of its pixels, for pictures of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...arguments import require_number
from ...errors import unknown_choice
from .color_spaces import SPACES, ColorSpace
from .gamut import GamutCurve
from .images import Picture
from .moments import Affine, Moments, whiten_color_map
from .parallel import ordered_map, undivided

__all__ = ["Palette", "transfer_colors"]

PIECE = 1 << 17  # pixels at a time: they stay in the cache, and float32 sums of so many are accurate
SAMPLE = 1 << 18  # pixels are enough to tell how far out of the gamut a picture goes
EPS = 1e-6  # about the variance of rounding to 8 bits, 1/(12·255²), in units of colours from 0 to 1
NOISE = 8.0  # variances of rounding, below which a direction of the colours says nothing


@dataclass(frozen=True)
class Palette:
    """The colours of a picture: their mean and covariance in a colour space."""

    space: str
    moments: Moments

    @classmethod
    def of(cls, picture: Picture, *, space: str = "rgb", mask: Tensor | None = None) -> Palette:
        """The palette of the pixels, each counting as much as it is opaque and ``mask`` (H, W), from 0 to 1, says.

        Raises:
            ValueError: if no pixel counts.
        """
        if space not in SPACES:
            raise unknown_choice("space", space, SPACES)
        pixels, weights = picture.pixels.flatten(1), _weights(picture, mask)

        def moments_of(piece: slice) -> Moments:
            colours = SPACES[space].of_rgb(pixels[:, piece]).unsqueeze(0)
            return Moments.of(colours, None if weights is None else weights[piece])

        with undivided() as threads:
            moments = Moments.merge(ordered_map(moments_of, _pieces(pixels.shape[1]), threads))
        if moments.weight <= 0:
            raise ValueError("Palette: no pixel counts; expected a mask, or opacity, that is not zero everywhere")
        return cls(space, moments)


def transfer_colors(
    content: Picture,
    palette: Palette,
    *,
    strength: float = 1.0,
    mask: Tensor | None = None,
    progress: Callable[[float], None] | None = None,
) -> Picture:
    """The content in the colours of the palette.

    The linear map to the palette's mean and covariance that moves colours least, from exact statistics of all pixels.
    Directions in which the content's colours do not vary beyond rounding, as in a sepia print, are left as they are.
    Colours that no screen has are brought back by a :class:`GamutCurve`. The content's own palette gives the content
    back, level for level.

    Args:
        content: whose colours are changed. Its transparency is kept.
        palette: whose mean and covariance it gets.
        strength: 0 gives the content back, 1 is the full transfer.
        mask: (H, W) from 0 to 1: where, and of which pixels the statistics are taken. None is everywhere.
        progress: called now and then with the share that is done, from 0 to 1. What it raises ends the work.
    """
    require_number("transfer_colors", "strength", strength)
    space = SPACES[palette.space]
    own = Palette.of(content, space=palette.space, mask=mask)
    pixels, weights = content.pixels.flatten(1), _weights(content, mask)
    where = None if mask is None else mask.flatten()
    sample = slice(None, None, max(1, pixels.shape[1] // SAMPLE))
    result, dither = torch.empty_like(pixels), torch.Generator().manual_seed(0)

    def recolour(colours: Tensor) -> Tensor:
        return space.to_rgb(change(space.of_rgb(colours).unsqueeze(0)).squeeze(0))

    def work(part: tuple[slice, Tensor | None]) -> float:
        piece, shift = part
        colours = pixels[:, piece] if shift is None else pixels[:, piece] + shift
        changed = curve(recolour(colours))
        result[:, piece] = changed if where is None else torch.lerp(colours, changed, where[piece])
        return float(piece.stop / pixels.shape[1])

    def parts() -> Iterator[tuple[slice, Tensor | None]]:
        """Every piece with its dither.

        A level of 256 stands for a range of colours. Filling that range evenly before it is stretched leaves no steps
        in a sky. It is the same for the three channels, so it adds no colour, and less than half a level, so what is
        not stretched rounds back to where it was.
        """
        for piece in _pieces(pixels.shape[1]):
            noise = None
            if content.bits == 8:
                noise = torch.rand(piece.stop - piece.start, generator=dither).sub_(0.5).mul_(0.96 / 255)
            yield piece, noise

    with undivided() as threads:
        change = whiten_color_map(own.moments, palette.moments, content_eps=EPS, style_eps=EPS)
        noise = NOISE * _rounding(pixels[:, sample], space, content.bits)
        change = _sparing(change, own.moments.covariance, noise).blend(strength)
        curve = GamutCurve.fit(recolour(pixels[:, sample]), None if weights is None else weights[sample])
        for share in ordered_map(work, parts(), threads):
            if progress is not None:
                progress(share)
    return content.with_pixels(result.view_as(content.pixels))


def _rounding(pixels: Tensor, space: ColorSpace, bits: int) -> float:
    """The variance that rounding to so many bits leaves in a colour space, around colours (3, M) in RGB."""
    shift = torch.rand(pixels.shape, generator=torch.Generator().manual_seed(0)).sub_(0.5).div_(2**bits - 1)
    return float((space.of_rgb(pixels + shift) - space.of_rgb(pixels)).square().mean())


def _sparing(change: Affine, covariance: Tensor, noise: float) -> Affine:
    """The map restricted to directions in which the colours vary more than the noise; the identity in the others.

    Stretched to the palette's width, noise would be all there is to see: rounding as stripes across a gradient.
    """
    values, vectors = torch.linalg.eigh(covariance)
    shares = 1 / (1 + (noise / values.clamp(min=1e-300)) ** 4)
    signal = (vectors * shares.unsqueeze(-2)) @ vectors.mT
    identity = torch.eye(signal.shape[-1], dtype=signal.dtype)
    return replace(change, matrix=change.matrix @ signal + identity - signal)


def _weights(picture: Picture, mask: Tensor | None) -> Tensor | None:
    """How much each pixel counts, (H·W,); None where all count alike."""
    if mask is not None and mask.shape != picture.size:
        raise ValueError(f"mask must have the size of its picture, {picture.size}; got {tuple(mask.shape)}")
    if mask is None:
        return None if picture.alpha is None else picture.alpha.flatten()
    return mask.flatten() if picture.alpha is None else (mask * picture.alpha).flatten()


def _pieces(pixels: int) -> Iterator[slice]:
    """Iterate over all pixels in pieces of a given size."""
    return (slice(start, min(start + PIECE, pixels)) for start in range(0, pixels, PIECE))
