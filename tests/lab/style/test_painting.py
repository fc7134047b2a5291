"""Photographs painted on a canvas: what is kept of them, and what strokes are made of."""

from __future__ import annotations

import pytest
import torch
from skimage import data
from torch.nn import functional

from eigengrad.lab.style.codec import Codec
from eigengrad.lab.style.gamut import luma
from eigengrad.lab.style.images import Picture
from eigengrad.lab.style.painting import Source, paint
from eigengrad.lab.style.patches import MOST, Patches
from eigengrad.lab.style.weights import load_codec

LEVELS = (3, 2, 1)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return load_codec()


def photograph(name: str, longer: int) -> Picture:
    pixels = torch.from_numpy(getattr(data, name)()).permute(2, 0, 1).float() / 255
    return Picture(pixels).scaled(longer)


@pytest.fixture(scope="module")
def cat() -> Picture:
    return photograph("chelsea", 96)


@pytest.fixture(scope="module")
def cup() -> Picture:
    return photograph("coffee", 96)


class TestPatches:
    def test_a_style_is_made_of_its_own_patches(self) -> None:
        features = torch.randn(8, 20, 24, generator=torch.Generator().manual_seed(0))
        patches = Patches.of(features)
        assert patches is not None
        inner = (slice(None), slice(2, -2), slice(2, -2))  # patches over the edge are continued, and match no other
        torch.testing.assert_close(patches.replace(features)[inner], features[inner])

    def test_only_what_is_opaque_is_used(self) -> None:
        features = torch.rand(4, 16, 16)
        features[:, :, 8:] += 100
        opacity = torch.ones(16, 16)
        opacity[:, 8:] = 0
        patches = Patches.of(features, opacity)
        assert patches is not None
        assert patches.replace(features).max() < 50

    def test_there_may_be_none(self) -> None:
        assert Patches.of(torch.rand(4, 2, 16)) is None
        assert Patches.of(torch.rand(4, 16, 16), torch.zeros(16, 16)) is None

    def test_their_number_is_limited(self) -> None:
        patches = Patches.of(torch.rand(2, 80, 80))
        assert patches is not None
        assert len(patches.corners) == MOST < 78 * 78

    def test_every_feature_is_one_of_the_styles(self) -> None:
        """Of a style of two values, nothing but these and their averages can be made."""
        style = torch.zeros(3, 12, 12)
        style[:, ::2] = 1
        patches = Patches.of(style)
        assert patches is not None
        made = patches.replace(torch.randn(3, 9, 9) * 10)
        assert made.min() >= 0
        assert made.max() <= 1


class TestPaint:
    def test_no_strength_is_the_photograph(self, cat: Picture, cup: Picture, codec: Codec) -> None:
        assert torch.equal(paint(cat, [Source(cup)], codec, LEVELS, strength=0.0).pixels, cat.pixels)

    def test_little_strength_is_nearly_the_photograph(self, cat: Picture, cup: Picture, codec: Codec) -> None:
        made = paint(cat, [Source(cup)], codec, LEVELS, strength=0.01, detail=0.0, canvas=48)
        assert (made.pixels - cat.pixels).abs().max() < 0.05

    def test_strokes_are_the_styles(self, cat: Picture, cup: Picture, codec: Codec) -> None:
        """With strokes the patches of the painting are nearer to patches that the style has."""

        def distance(made: Picture) -> float:
            patches, known = (functional.unfold(x.pixels.unsqueeze(0), 6, stride=3)[0].mT for x in (made, cup))
            return float(torch.cdist(patches, known).amin(1).mean())

        with_strokes, without = (
            paint(cat, [Source(cup)], codec, LEVELS, strokes=strokes, detail=0.0, style_size=1.0)
            for strokes in (0.9, 0.0)
        )
        assert distance(with_strokes) < 0.9 * distance(without)

    def test_detail_keeps_edges(self, codec: Codec, cup: Picture) -> None:
        """What a small canvas cannot hold comes back from the photograph."""
        large = photograph("chelsea", 192)

        def likeness(made: Picture) -> float:
            fine, original = (luma(x - _blurred(x)).flatten() for x in (made.pixels, large.pixels))
            return float(functional.cosine_similarity(fine, original, dim=0))

        none, half, all_of_it = (
            likeness(paint(large, [Source(cup)], codec, LEVELS, detail=detail, canvas=64)) for detail in (0, 0.5, 1)
        )
        assert none < half < all_of_it
        assert all_of_it > 0.9

    def test_light_stays_light(self, codec: Codec, cup: Picture) -> None:
        """Where a photograph is lighter so is the painting, at the size of faces; without detail it need not be."""
        photo = photograph("astronaut", 128)

        def agreement(made: Picture) -> float:
            ranks = [
                functional.adaptive_avg_pool2d(luma(x.pixels)[None], 16).flatten().argsort().argsort().double()
                for x in (photo, made)
            ]
            return float(torch.corrcoef(torch.stack(ranks))[0, 1])

        with_tones, without = (agreement(paint(photo, [Source(cup)], codec, LEVELS, detail=d)) for d in (1.0, 0.0))
        assert with_tones > 0.97
        assert without < with_tones - 0.02

    def test_black_stays_black(self, codec: Codec, cup: Picture) -> None:
        dark = photograph("chelsea", 96)
        dark.pixels[:, :, :60] *= 0.02
        made = paint(dark, [Source(cup)], codec, LEVELS)
        assert luma(made.pixels)[:, :50].mean() < 0.05
        assert luma(made.pixels)[:, 70:].mean() > 0.15

    def test_colours_can_be_kept(self, cat: Picture, cup: Picture, codec: Codec) -> None:
        made = paint(cat, [Source(cup)], codec, LEVELS, keep_colors=True)

        def hue(x: torch.Tensor) -> torch.Tensor:
            return x - luma(x)

        inside = ((made.pixels > 0.02) & (made.pixels < 0.98)).all(0)
        assert float((hue(made.pixels) - hue(cat.pixels))[:, inside].abs().mean()) < 0.01
        assert float((made.pixels - cat.pixels).abs().mean()) > 0.02

    def test_strokes_have_a_size_relative_to_the_picture(self, codec: Codec, cup: Picture) -> None:
        """On the same canvas, a photograph of twice the size is painted the same."""
        large = photograph("chelsea", 192)
        small = large.scaled(96)
        made, expected = (paint(x, [Source(cup)], codec, LEVELS, detail=0.0, canvas=96) for x in (large, small))
        assert made.size == large.size
        assert float((made.scaled(96).pixels - expected.pixels).abs().mean()) < 0.03

    def test_masks(self, cat: Picture, cup: Picture, codec: Codec) -> None:
        mask = torch.zeros(cat.size)
        mask[:, 48:] = 1
        made = paint(cat, [Source(cup, mask=mask)], codec, LEVELS, canvas=64)
        change = (made.pixels - cat.pixels).abs().mean(0)
        assert float(change[:, :36].max()) < 0.02
        assert float(change[:, 60:].mean()) > 0.05

    def test_the_number_of_threads_changes_nothing(self, cat: Picture, cup: Picture, codec: Codec) -> None:
        before, made = torch.get_num_threads(), []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                made.append((paint(cat, [Source(cup)], codec, LEVELS).pixels * 255).round())
        finally:
            torch.set_num_threads(before)
        assert torch.equal(*made)

    @pytest.mark.parametrize(
        ("option", "value", "message"),
        [
            ("strength", 1.5, "strength must be from 0 to 1; got 1.5"),
            ("detail", -1, "detail must be from 0 to 1; got -1"),
            ("strokes", 2, "strokes must be from 0 to 1; got 2"),
            ("style_size", 0, "style_size must be positive; got 0"),
            ("canvas", 0, "canvas must be at least 1; got 0"),
        ],
    )
    def test_misuse(self, cat: Picture, cup: Picture, codec: Codec, option: str, value: float, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            paint(cat, [Source(cup)], codec, LEVELS, **{option: value})  # type: ignore[arg-type]


def _blurred(pixels: torch.Tensor) -> torch.Tensor:
    return functional.avg_pool2d(pixels.unsqueeze(0), 9, stride=1, padding=4, count_include_pad=False)[0]
