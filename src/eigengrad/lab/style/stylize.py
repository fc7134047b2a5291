"""Universal style transfer: a picture in the style of others, level by level from coarse to fine.

At each level the picture is encoded, its features get the mean and covariance of the style's and a share of its
patches, and the decoder makes the picture that the next level starts from (Li et al., 2017). Large pictures are worked
on in tiles. The statistics are of the whole picture, so the result does not depend on the tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from ...arguments import require_integer, require_number, require_positive, require_share
from .codec import Codec, Level
from .gamut import GamutCurve
from .images import Picture
from .moments import Affine, Moments, whiten_color_map
from .parallel import ordered_map, undivided
from .patches import SIDE, Patches
from .tiles import Layout, Tile, average

__all__ = [
    "Style",
    "UnfitPictureError",
    "reconstruct",
    "require_levels",
    "require_opaque",
    "stylize",
    "uncovered_restored",
]

R = TypeVar("R")

PIECE = 1 << 16  # positions whose products are summed in float32
EPS = 1e-7  # of the average variance of a channel: in directions with less than this there is nothing to whiten
TILE = 1024
_SOON = 4.0  # times the share of all styles in a place is the share of what was decoded there
PATCH_REACH = SIDE - 1  # positions: a patch is compared with those around it, and averaged with theirs
MINIMUM = 64  # pixels, below which a covariance says nothing


class UnfitPictureError(ValueError):
    """A picture that is too small, or too transparent, for what is asked of it."""


@dataclass(frozen=True)
class Style:
    """What is taken from a picture: the moments and patches of its features at each level.

    Args:
        moments: by level.
        patches: by level; none at levels where it shows no whole patch.
        groups: of channels, between which nothing is transferred.
        smooth: see :func:`stylize`.
        weight: its share beside other styles.
        mask: (H, W) of the content, from 0 to 1: where it goes. None is everywhere.
    """

    moments: Mapping[int, Moments]
    patches: Mapping[int, Patches | None] = field(default_factory=dict)
    groups: int = 1
    smooth: bool = True
    weight: float = 1.0
    mask: Tensor | None = None

    @classmethod
    @torch.no_grad()
    @undivided()
    def of(
        cls,
        picture: Picture,
        codec: Codec,
        levels: Sequence[int],
        *,
        groups: int = 1,
        smooth: bool = True,
        tile: int = TILE,
    ) -> Style:
        """The style of a picture, in which each position counts as much as it is opaque.

        Raises:
            ValueError: if a level does not exist or its channels cannot be grouped so.
            UnfitPictureError: if the picture is too small, or too little of it is opaque.
        """
        require_levels(codec, levels, groups)
        require_size(picture, codec, levels)
        require_opaque(picture)
        moments, patches = {}, {}
        for number in levels:
            level = codec.require(number)
            encodings = _encodings(picture.pixels, level, level.encoder.reach, smooth, tile)
            (moments[number],) = _moments(encodings, groups, [picture.alpha])
            patches[number] = _patches(encodings[0], picture.alpha)
        return cls(moments, patches, groups, smooth)

    def placed(self, weight: float, mask: Tensor | None = None) -> Style:
        """This style with a share, and a place in the content."""
        return replace(self, weight=weight, mask=mask)


@torch.no_grad()
@undivided()
def stylize(
    content: Picture,
    styles: Sequence[Style],
    codec: Codec,
    levels: Sequence[int],
    *,
    strength: float = 1.0,
    strokes: float = 0.0,
    tile: int = TILE,
    progress: Callable[[float], None] | None = None,
) -> Picture:
    """The content in the style of the styles.

    Decoders leave traces of their grid, which the next level takes for texture and amplifies. With ``smooth`` styles
    every level that has a grid is applied at several positions of it, as many as the codec asks for, and averaged. That
    hides it, and takes as many times as long.

    Args:
        content: any size from two squares of the deepest level a side. Its transparency is kept.
        styles: of :meth:`Style.of` at these levels. Where several are in one place they are blended by weight; a place
            that all masks leave out stays as it is.
        codec: encoders and decoders.
        levels: in the order in which they are applied, usually from deep to shallow.
        strength: at every level, 0 leaves the features as they are (the result is the reconstruction), 1 gives them the
            statistics of the style.
        strokes: the share of the style's own patches in them, from 0 to 1; see :mod:`.patches`.
        tile: the side of the tiles in pixels. A matter of memory: the result does not depend on it.
        progress: called now and then with the share that is done, from 0 to 1. What it raises ends the work.

    Raises:
        ValueError: naming the argument that is wrong.
    """
    require_number("stylize", "strength", strength)
    require_share("stylize", "strokes", strokes)
    if not styles:
        raise ValueError("stylize: styles must hold at least one style")
    groups, smooth = styles[0].groups, styles[0].smooth
    require_levels(codec, levels, groups)
    require_size(content, codec, levels)
    for style in styles:
        require_positive("stylize", "the weight of a style", style.weight)
        if (style.groups, style.smooth) != (groups, smooth) or set(levels) - set(style.moments):
            raise ValueError("stylize: all styles must be made for these levels, with the same groups and smoothness")
        if style.mask is not None and style.mask.shape != content.size:
            raise ValueError(
                f"stylize: a mask must have the content's size {content.size}; got {tuple(style.mask.shape)}"
            )
    shares, weights = _shares(content, styles), _weights(content, styles)
    image = content.pixels
    # Every tile is encoded twice: for the statistics, and to be decoded.
    tiles = sum(2 * _tile_count(content.size, codec.require(number), smooth, tile) for number in levels)
    done = _Counter(tiles, progress)
    for number in levels:
        level = codec.require(number)
        margin = level.encoder.reach + level.decoder.reach + (PATCH_REACH * level.encoder.stride if strokes else 0)
        encodings = _encodings(image, level, margin, smooth, tile, done)
        if shares.ndim == 1:  # all styles are everywhere, so the content's statistics are the same for each
            own = _moments(encodings, groups, weights[:1]) * len(styles)
        else:
            own = _moments(encodings, groups, weights)
        maps = [_map(mine, style.moments[number]) for mine, style in zip(own, styles, strict=True)]
        patches = [style.patches[number] for style in styles]
        image = _decode(encodings, maps, patches if strokes else [], shares, strength, strokes)
    colours = image.flatten(1)
    curve = GamutCurve.fit(colours, None if content.alpha is None else content.alpha.flatten())
    made = curve(colours).view_as(image)
    if shares.ndim > 1:  # what no mask covers has only been decoded, and was better before
        made = uncovered_restored(content.pixels, made, shares.sum(0))
    return content.with_pixels(made)


def uncovered_restored(content: Tensor, made: Tensor, covered: Tensor) -> Tensor:
    """What was made, (3, H, W), and the content where no style goes by their masks' sum ``covered``, (H, W)."""
    return torch.lerp(content, made, (_SOON * covered).clamp(max=1).to(made))


@torch.no_grad()
@undivided()
def reconstruct(
    content: Picture, codec: Codec, levels: Sequence[int], *, smooth: bool = True, tile: int = TILE
) -> Tensor:
    """What is left of a picture, (3, H, W), when every level has encoded and decoded it without a change."""
    image = content.pixels
    for number in levels:
        level = codec.require(number)
        encodings = _encodings(image, level, level.encoder.reach + level.decoder.reach, smooth, tile)
        image = _decoded(encodings, lambda number, tile, features: features)
    return image


def require_opaque(style: Picture) -> None:
    """Refuse a style that is too transparent to take statistics of.

    Raises:
        UnfitPictureError: saying so.
    """
    if style.alpha is not None and float(style.alpha.sum()) < MINIMUM:
        raise UnfitPictureError(f"less than {MINIMUM} pixels of the style are opaque, too few to take statistics of")


def require_levels(codec: Codec, levels: Sequence[int], groups: int) -> None:
    """Refuse levels that a codec does not have, and groups that do not divide its channels."""
    require_integer("stylize", "groups", groups, minimum=1)
    if not levels:
        raise ValueError("levels: expected at least one")
    for level in levels:
        channels = codec.require(level).channels
        if channels % groups:
            raise ValueError(
                f"groups: must divide the {channels} channels of level {level} of {codec.name}; got {groups}"
            )


def require_size(picture: Picture, codec: Codec, levels: Sequence[int]) -> None:
    """Refuse a picture that is too small for the deepest of the levels."""
    stride = max(codec.require(level).encoder.stride for level in levels)
    if min(picture.size) < 2 * stride:
        height, width = picture.size
        raise UnfitPictureError(
            f"a picture of {width}×{height} pixels is too small for level {max(levels)}; it needs {2 * stride} a side. "
            "Enlarge it, or leave out the deepest levels"
        )


class _Counter:
    """Counts pieces of work, and reports the share of all that is done."""

    def __init__(self, total: int = 0, progress: Callable[[float], None] | None = None) -> None:
        self.total, self.progress, self.done = total, progress, 0

    def count(self) -> None:
        """Count one piece."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done / self.total)


class _Encoding:
    """The features of an image (3, H, W) at a level, tile by tile; kept if there is one tile only."""

    def __init__(self, image: Tensor, level: Level, layout: Layout, margin: int, done: _Counter) -> None:
        self.level, self.layout, self.done = level, layout, done
        self.image = layout.extend(image)
        self.tiles = list(layout.tiles(margin))
        self.only: Tensor | None = None

    def features(self, tile: Tile) -> Tensor:
        """The features (C, h, w) of one of the tiles, with its margin."""
        features = self.only
        if features is None:
            features = self.level.encoder(tile.with_margin(self.image).unsqueeze(0)).squeeze(0)
        if len(self.tiles) == 1:
            self.only = features
        return features


def _encodings(
    image: Tensor, level: Level, margin: int, smooth: bool, tile: int, done: _Counter | None = None
) -> list[_Encoding]:
    """Encodings at one position of the grid, or at several along its diagonal."""
    layouts = _layouts((image.shape[1], image.shape[2]), level, smooth, tile)
    return [_Encoding(image, level, layout, margin, done or _Counter()) for layout in layouts]


def _layouts(size: tuple[int, int], level: Level, smooth: bool, tile: int) -> list[Layout]:
    require_integer("stylize", "tile", tile, minimum=1)
    stride = level.encoder.stride
    shifts = min(level.shifts, stride) if smooth else 1
    return [Layout(size, stride, shift * stride // shifts, tile) for shift in range(shifts)]


def _tile_count(size: tuple[int, int], level: Level, smooth: bool, tile: int) -> int:
    return sum(len(list(layout.tiles(0))) for layout in _layouts(size, level, smooth, tile))


def _each_tile(encodings: Sequence[_Encoding], work: Callable[[int, Tile], R]) -> Iterator[R]:
    """``work`` with the number of an encoding and a tile of it, for all of them in order, on several threads."""
    pairs = [(number, tile) for number, encoding in enumerate(encodings) for tile in encoding.tiles]
    with undivided() as threads:
        for result in ordered_map(lambda pair: work(*pair), pairs, threads):
            yield result
            encodings[0].done.count()


def _moments(encodings: Sequence[_Encoding], groups: int, weights: Sequence[Tensor | None]) -> list[Moments]:
    """The moments of all features, once for each of the weights (H, W) of the pixels; None weighs all alike."""
    scale = encodings[0].level.encoder.stride
    extended = [
        [None if weight is None else average(encoding.layout.extend(weight), scale) for weight in weights]
        for encoding in encodings
    ]

    def work(number: int, tile: Tile) -> list[list[Moments]]:
        points = _points(tile.trim(encodings[number].features(tile), scale), groups)
        found = []
        for weight in extended[number]:
            counts = None if weight is None else tile.without_margin(weight, scale).flatten()
            parts = [slice(start, start + PIECE) for start in range(0, points.shape[-1], PIECE)]
            found.append([Moments.of(points[..., part], None if counts is None else counts[part]) for part in parts])
        return found

    pieces: list[list[Moments]] = [[] for _ in weights]
    for found in _each_tile(encodings, work):
        for known, more in zip(pieces, found, strict=True):
            known += more
    return [Moments.merge(known) for known in pieces]


def _patches(encoding: _Encoding, alpha: Tensor | None) -> Patches | None:
    """The patches of an encoded picture, of what is opaque by ``alpha`` (H, W); none at the size of single pixels."""
    scale = encoding.level.encoder.stride
    if scale == 1:
        return None
    height, width = (side // scale for side in encoding.layout.extended)
    features = torch.empty(encoding.level.channels, height, width)
    for tile in encoding.tiles:
        tile.without_margin(features, scale).copy_(tile.trim(encoding.features(tile), scale))
    opacity = None if alpha is None else average(encoding.layout.extend(alpha), scale)
    return Patches.of(features, opacity)


def _decode(
    encodings: Sequence[_Encoding],
    maps: Sequence[Affine],
    patches: Sequence[Patches | None],
    shares: Tensor,
    strength: float,
    strokes: float,
) -> Tensor:
    """The image (3, H, W) of the mapped features, each map with its share (maps,), or its share at a pixel.

    Args:
        encodings: of the picture.
        maps: to the moments of each style.
        patches: of each style, or none at all.
        shares: of each style, with ``strength``: how much of them there is.
        strokes: how much of the styles is patches.
    """
    groups, everywhere = maps[0].matrix.shape[0], shares.ndim == 1

    def change(tile: Tile, features: Tensor, local: Tensor) -> Tensor:
        points = _points(features, groups)
        if everywhere and not patches:
            return Affine.mean(maps, shares.tolist()).blend(strength)(points).view_as(features)
        here = local.to(points).unsqueeze(1) if everywhere else tile.with_margin(local, scale).flatten(1)
        changed = points * (1 - here.sum(0))
        for index, (share, each) in enumerate(zip(here, maps, strict=True)):
            moved, painted = each(points), patches[index] if patches else None
            if painted is not None:
                moved.lerp_(_points(painted.replace(moved.view_as(features)), groups), strokes)
            changed += moved * share
        return changed.view_as(features)

    scale = encodings[0].level.encoder.stride
    local = [
        strength * (shares if everywhere else average(encoding.layout.extend(shares), scale)) for encoding in encodings
    ]
    return _decoded(encodings, lambda number, tile, features: change(tile, features, local[number]))


def _decoded(encodings: Sequence[_Encoding], change: Callable[[int, Tile, Tensor], Tensor]) -> Tensor:
    """The mean of the images (3, H, W) of encodings whose features have been changed.

    Args:
        encodings: of one image.
        change: is given the number of an encoding, a tile, and the features there, and returns others.
    """
    results = [torch.empty_like(encoding.image) for encoding in encodings]

    def work(number: int, tile: Tile) -> None:
        encoding = encodings[number]
        changed = change(number, tile, encoding.features(tile))
        decoded = encoding.level.decoder(changed.unsqueeze(0)).squeeze(0)
        tile.without_margin(results[number]).copy_(tile.trim(decoded))

    for _ in _each_tile(encodings, work):
        pass
    images = [encoding.layout.crop(result) for encoding, result in zip(encodings, results, strict=True)]
    return _mean(images)


def _mean(images: Sequence[Tensor]) -> Tensor:
    """The mean of images, without work where there is one."""
    return torch.stack(list(images)).mean(0) if len(images) > 1 else images[0].contiguous()


def _points(features: Tensor, groups: int) -> Tensor:
    """Feature maps (C, h, w) as points (groups, C/groups, h·w)."""
    channels, height, width = features.shape
    return features.reshape(groups, channels // groups, height * width)


def _weights(content: Picture, styles: Sequence[Style]) -> list[Tensor | None]:
    """How much each pixel of the content counts for each style: as much as it is opaque, and in the mask."""
    weights: list[Tensor | None] = []
    for index, style in enumerate(styles):
        counts = [x for x in (content.alpha, style.mask) if x is not None]
        weight = math.prod(counts[1:], start=counts[0]) if counts else None
        if weight is not None and float(weight.sum()) < MINIMUM:
            which = "the opacity of the content" if style.mask is None else f"the mask of style {index + 1}"
            raise ValueError(f"{which} leaves less than {MINIMUM} pixels, too few to take statistics of")
        weights.append(weight)
    return weights


def _shares(content: Picture, styles: Sequence[Style]) -> Tensor:
    """How much of each style there is: everywhere, (styles,), or at each pixel, (styles, H, W).

    Masks may leave places, which stay the content's, and may overlap, where styles share by weight.
    """
    shares = torch.tensor([style.weight for style in styles], dtype=torch.float64)
    shares /= shares.sum()
    if all(style.mask is None for style in styles):
        return shares
    ones = torch.ones(content.size)
    masks = torch.stack([ones if style.mask is None else style.mask for style in styles])
    weighted = masks * shares.to(masks).view(-1, 1, 1)
    return weighted / weighted.sum(0).clamp(min=1e-12) * masks.sum(0).clamp(max=1)


def _map(content: Moments, style: Moments) -> Affine:
    """The map from features of the content to features of the style.

    The eps of each is in proportion to its own features, so the units of a codec do not matter. Where features do
    not vary at all, it is what round-off leaves of them.
    """

    def eps(moments: Moments) -> float:
        variance = float(moments.covariance.diagonal(dim1=-2, dim2=-1).mean())
        return EPS * variance + 1e-10 * float(moments.mean.square().mean()) + 1e-30

    return whiten_color_map(content, style, content_eps=eps(content), style_eps=eps(style))
