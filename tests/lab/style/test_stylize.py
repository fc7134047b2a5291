"""Universal style transfer: what the features become, where, in tiles, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eigengrad.lab.style import stylize as module
from eigengrad.lab.style.codec import Codec
from eigengrad.lab.style.images import Picture
from eigengrad.lab.style.moments import Moments
from eigengrad.lab.style.stylize import Style, stylize
from eigengrad.lab.style.tiles import Layout, average
from eigengrad.lab.style.weights import load_codec
from style_codecs import SMALL, VGG, photo, write

LEVELS = (3, 2, 1)


@pytest.fixture(scope="module", params=[VGG, SMALL], ids=lambda family: family.name)
def codec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Codec:
    return load_codec(write(tmp_path_factory.mktemp("weights"), request.param))


@pytest.fixture
def content() -> Picture:
    return photo(0)


@pytest.fixture
def style() -> Picture:
    return Picture((photo(1, (60, 52)).pixels * torch.tensor([0.9, 0.6, 0.4]).view(3, 1, 1)).contiguous())


def difference(a: Picture, b: Picture) -> float:
    return float((a.pixels - b.pixels).abs().max())


def relative(x: Tensor, y: Tensor) -> float:
    return float((x - y).norm() / y.norm())


def root(x: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(x)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def unclamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave colours outside the cube as they are, to compare what decoders make."""
    monkeypatch.setattr(module.GamutCurve, "__call__", lambda _, colours: colours)


def decoded(codec: Codec, level: int, features: Tensor) -> Tensor:
    return codec.require(level).decoder(features).squeeze(0)


class TestStatistics:
    @pytest.mark.parametrize("smooth", [False, True])
    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("level", LEVELS)
    def test_covariance_becomes_the_styles(
        self, codec: Codec, content: Picture, style: Picture, level: int, groups: int, smooth: bool
    ) -> None:
        wanted = Style.of(style, codec, [level], groups=groups, smooth=smooth).moments[level]
        encodings = module._encodings(content.pixels, codec.require(level), 0, smooth, 1024)
        (own,) = module._moments(encodings, groups, [None])
        change = module._map(own, wanted)
        features = [encoding.features(tile) for encoding in encodings for tile in encoding.tiles]
        points = [change(module._points(part, groups)) for part in features]
        made = Moments.merge(Moments.of(p) for p in points)
        assert relative(made.covariance, wanted.covariance) < 1e-3
        assert relative(made.mean, wanted.mean) < 1e-4

    def test_what_does_not_vary_in_the_content_does_not_vary_in_the_result(self) -> None:
        generator = torch.Generator().manual_seed(0)
        content, style = torch.randn(2, 1, 4, 1000, generator=generator)
        content[:, 0] = 3  # a dead channel: of nothing, nothing can be made
        own, wanted = Moments.of(content), Moments.of(style)
        made = Moments.of(module._map(own, wanted)(content))
        root = torch.linalg.cholesky(wanted.covariance)
        assert torch.isfinite(made.covariance).all()
        assert relative(made.mean, wanted.mean) < 1e-4
        assert float(torch.linalg.eigvalsh(made.covariance).min()) < 1e-3
        assert float(made.covariance.diagonal(dim1=1, dim2=2).sum()) < float(root.square().sum())

    @pytest.mark.parametrize("level", LEVELS)
    def test_no_other_map_to_that_covariance_moves_the_features_less(
        self, codec: Codec, content: Picture, style: Picture, level: int
    ) -> None:
        (own,) = Style.of(content, codec, [level]).moments.values()
        (wanted,) = Style.of(style, codec, [level]).moments.values()
        made = module._map(own, wanted).matrix
        # A symmetric positive matrix is the gradient of a convex function, so it is the optimal transport (Brenier).
        assert relative(made, made.mT) < 1e-6
        assert torch.linalg.eigvalsh(made).min() > 0

    @pytest.mark.parametrize("level", LEVELS)
    def test_it_is_the_optimal_transport_of_the_features(
        self, codec: Codec, content: Picture, style: Picture, level: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By its formula R⁻¹ (R Σ R)^½ R⁻¹, R the root of the content's covariance and Σ that of the style."""
        unclamped(monkeypatch)
        monkeypatch.setattr(module, "EPS", 1e-3)
        made = stylize(content, [Style.of(style, codec, [level], smooth=False)], codec, [level])
        encoder = codec.require(level).encoder
        layout = Layout(style.size, encoder.stride, 0, 1024)
        c, s = (encoder(x.unsqueeze(0)).double() for x in (content.pixels, layout.extend(style.pixels)))
        own, wanted = (x.flatten(2).squeeze(0).cov(correction=0) for x in (c, s))
        own, wanted = (x + 1e-3 * x.diagonal().mean() * torch.eye(len(x), dtype=x.dtype) for x in (own, wanted))
        inverse = root(own).inverse()
        matrix = inverse @ root(root(own) @ wanted @ root(own)) @ inverse
        moved = torch.einsum("ij,njhw->nihw", matrix, c - c.mean((2, 3), keepdim=True)) + s.mean((2, 3), keepdim=True)
        assert relative(made.pixels, decoded(codec, level, moved.float())) < 1e-3


class TestStrength:
    def test_0_is_the_reconstruction(
        self, codec: Codec, content: Picture, style: Picture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unclamped(monkeypatch)
        result = stylize(content, [Style.of(style, codec, LEVELS, smooth=False)], codec, LEVELS, strength=0.0)
        image = content.pixels.unsqueeze(0)
        for level in LEVELS:
            image = codec.require(level).decoder(codec.require(level).encoder(image))
        assert (result.pixels - image.squeeze(0)).abs().max() < 1e-4

    def test_smooth_averages_two_positions_of_the_grid(
        self, codec: Codec, content: Picture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unclamped(monkeypatch)
        result = stylize(content, [Style.of(content, codec, [3])], codec, [3], strength=0.0)
        level = codec.require(3)
        plain = level.decoder(level.encoder(content.pixels.unsqueeze(0)))
        moved = torch.nn.functional.pad(content.pixels.unsqueeze(0), (2, 2, 2, 2), mode="reflect")
        shifted = level.decoder(level.encoder(moved))[..., 2:-2, 2:-2]
        assert (result.pixels - (plain + shifted).squeeze(0) / 2).abs().max() < 1e-4

    def test_in_between_it_is_in_between(self, codec: Codec, content: Picture, style: Picture) -> None:
        own = Style.of(style, codec, [2])
        none, some, full = (stylize(content, [own], codec, [2], strength=s).pixels for s in (0.0, 0.5, 1.0))
        assert 0 < (some - none).norm() < (full - none).norm()

    @pytest.mark.parametrize("smooth", [False, True])
    @pytest.mark.parametrize("level", LEVELS)
    def test_its_own_style_is_a_fixed_point(self, codec: Codec, content: Picture, level: int, smooth: bool) -> None:
        odd = Picture(content.pixels[:, :61, :75].contiguous())
        own = Style.of(odd, codec, [level], smooth=smooth)
        full, none = (stylize(odd, [own], codec, [level], strength=s) for s in (1.0, 0.0))
        assert difference(full, none) < 1e-4


class TestTiles:
    @pytest.mark.parametrize("smooth", [False, True])
    @pytest.mark.parametrize("size", [(96, 128), (77, 111)])
    def test_tiled_is_whole(self, codec: Codec, style: Picture, size: tuple[int, int], smooth: bool) -> None:
        content = photo(3, size)
        mask = torch.linspace(0, 1, size[1]).expand(size).contiguous()
        for masked in (None, mask):
            results = []
            for tile in (1024, 32):
                own = Style.of(style, codec, LEVELS, smooth=smooth, tile=tile).placed(1.0, masked)
                results.append(stylize(content, [own], codec, LEVELS, strength=0.7, tile=tile))
            assert difference(*results) < 1e-4

    def test_there_are_tiles(self) -> None:
        layout = Layout((77, 111), 4, 2, 32)
        tiles = list(layout.tiles(8))
        assert len(tiles) == 8
        covered = torch.zeros(layout.extended)
        for tile in tiles:
            tile.without_margin(covered).add_(1)
            assert tile.trim(tile.with_margin(covered)).shape == tile.without_margin(covered).shape
        assert (covered == 1).all()

    def test_extend_and_crop(self) -> None:
        layout = Layout((9, 10), 8, 4, 1024)
        image = torch.rand(3, 9, 10)
        extended = layout.extend(image)
        assert extended.shape == (3, 16, 16)
        assert torch.equal(layout.crop(extended), image)
        assert torch.equal(extended[:, 3, 4:14], image[:, 1])  # a reflection: the edge itself is not repeated
        assert average(extended, 8).shape == (3, 2, 2)


class TestSeveralStyles:
    def test_equal_styles_blend_to_themselves(self, codec: Codec, content: Picture, style: Picture) -> None:
        own = Style.of(style, codec, LEVELS)
        one = stylize(content, [own], codec, LEVELS)
        assert difference(stylize(content, [own.placed(3), own.placed(1)], codec, LEVELS), one) < 1e-4

    def test_shares_at_one_level_are_of_the_features(
        self, codec: Codec, content: Picture, style: Picture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unclamped(monkeypatch)
        a, b = (Style.of(p, codec, [1]) for p in (style, photo(7)))
        features = []
        monkeypatch.setattr(codec.require(1).decoder, "forward", lambda x: (features.append(x), x[:, :3])[1])
        stylize(content, [a], codec, [1])
        stylize(content, [b], codec, [1])
        stylize(content, [a.placed(3), b.placed(1)], codec, [1])
        expected = 0.75 * features[0] + 0.25 * features[1]
        assert relative(features[2], expected) < 1e-5

    def test_masks_part_the_picture(
        self, codec: Codec, content: Picture, style: Picture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unclamped(monkeypatch)
        left = torch.zeros(content.size)
        left[:, :40] = 1
        other = photo(7)
        a, b = (Style.of(p, codec, [1]) for p in (style, other))
        both = stylize(content, [a.placed(1, left), b.placed(5, 1 - left)], codec, [1]).pixels
        halves = []
        for own, part in ((a, slice(None, 40)), (b, slice(40, None))):
            half = Picture(content.pixels[:, :, part].contiguous())
            halves.append(stylize(half, [own], codec, [1]).pixels)
        edge = 3  # what the new borders of the halves have an influence on, beside a little on the statistics
        assert relative(both[:, :, : 40 - edge], halves[0][:, :, : 40 - edge]) < 1e-2
        assert relative(both[:, :, 40 + edge :], halves[1][:, :, edge:]) < 1e-2
        everywhere = stylize(content, [b], codec, [1]).pixels
        assert relative(both[:, :, : 40 - edge], everywhere[:, :, : 40 - edge]) > 0.1

    def test_outside_all_masks_the_picture_stays_as_it_is(self, codec: Codec, content: Picture, style: Picture) -> None:
        mask = torch.zeros(content.size)
        mask[:, :32] = 1
        own = Style.of(style, codec, [2])
        result = stylize(content, [own.placed(1, mask)], codec, [2]).pixels
        assert torch.equal(result[:, :, 32:], content.pixels[:, :, 32:])
        assert (result[:, :, :24] - content.pixels[:, :, :24]).abs().max() > 1e-2

    def test_shares_of_overlapping_masks_add_up_to_at_most_1(self, content: Picture) -> None:
        nothing = {1: Moments.none(1, 3)}
        soft = torch.linspace(0, 1, 80).expand(64, 80)
        shares = module._shares(
            content, [Style(nothing, weight=2, mask=soft), Style(nothing, weight=1, mask=soft.flip(1))]
        )
        assert torch.allclose(shares.sum(0), torch.ones(64, 80))
        lone = module._shares(content, [Style(nothing, weight=2, mask=soft)])
        assert torch.allclose(lone[0], soft, atol=1e-6)


class TestPictures:
    @pytest.mark.parametrize("size", [(33, 40), (64, 64), (41, 97)])
    def test_any_size_comes_back(self, codec: Codec, style: Picture, size: tuple[int, int]) -> None:
        result = stylize(photo(2, size), [Style.of(style, codec, LEVELS)], codec, LEVELS)
        assert result.size == size
        assert float(result.pixels.min()) >= 0
        assert float(result.pixels.max()) <= 1

    def test_transparency_is_kept_and_does_not_count(self, codec: Codec, content: Picture, style: Picture) -> None:
        alpha = torch.ones(content.size)
        alpha[:, 40:] = 0
        dirty = content.pixels.clone()
        dirty[:, :, 44:] = torch.rand(3, 64, 36)
        own = Style.of(style, codec, [1])
        a = stylize(Picture(content.pixels, alpha), [own], codec, [1])
        b = stylize(Picture(dirty, alpha), [own], codec, [1])
        assert torch.equal(a.alpha, alpha)
        assert (a.pixels[:, :, :40] - b.pixels[:, :, :40]).abs().max() < 1e-5
        moments = [Style.of(Picture(p, alpha), codec, [1]).moments[1] for p in (content.pixels, dirty)]
        assert relative(moments[0].covariance, moments[1].covariance) < 1e-4

    def test_nothing_is_random(self, codec: Codec, content: Picture, style: Picture) -> None:
        results = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            results.append(stylize(content, [Style.of(style, codec, LEVELS)], codec, LEVELS).pixels)
        assert torch.equal(*results)

    def test_what_was_done_before_does_not_matter(self, codec: Codec, content: Picture, style: Picture) -> None:
        own = Style.of(style, codec, LEVELS)
        alone = stylize(content, [own], codec, LEVELS)
        stylize(photo(9, (50, 70)), [own], codec, LEVELS)
        assert torch.equal(stylize(content, [own], codec, LEVELS).pixels, alone.pixels)

    def test_one_colour(self, codec: Codec, content: Picture, style: Picture) -> None:
        solid = Picture(torch.full((3, 64, 64), 0.4))
        for a, b in ((solid, style), (content, solid), (solid, solid)):
            assert stylize(a, [Style.of(b, codec, LEVELS)], codec, LEVELS).pixels.isfinite().all()

    def test_progress(self, codec: Codec, content: Picture, style: Picture) -> None:
        done: list[float] = []
        stylize(content, [Style.of(style, codec, LEVELS)], codec, LEVELS, progress=done.append)
        assert done == sorted(done)
        assert len(done) >= 2 * len(LEVELS)
        assert done[-1] == 1


class TestMisuse:
    def test_levels(self, codec: Codec, content: Picture) -> None:
        with pytest.raises(ValueError, match=r"levels: .* has no level 4; it has 1, 2, 3"):
            Style.of(content, codec, [4])
        with pytest.raises(ValueError, match="levels: expected at least one"):
            Style.of(content, codec, [])
        with pytest.raises(ValueError, match="made for these levels"):
            stylize(content, [Style.of(content, codec, [1])], codec, [2])

    def test_groups(self, codec: Codec, content: Picture) -> None:
        with pytest.raises(ValueError, match=r"groups: must divide the 10 channels of level 3 .*; got 4"):
            Style.of(content, codec, [3], groups=4)

    def test_too_small(self, codec: Codec, content: Picture) -> None:
        with pytest.raises(ValueError, match=r"7×64 pixels is too small for level 3; it needs 8 a side"):
            Style.of(Picture(content.pixels[:, :, :7].contiguous()), codec, LEVELS)

    def test_masks(self, codec: Codec, content: Picture, style: Picture) -> None:
        own = Style.of(style, codec, [1])
        with pytest.raises(ValueError, match=r"content's size \(64, 80\); got \(3, 4\)"):
            stylize(content, [own.placed(1, torch.ones(3, 4))], codec, [1])
        with pytest.raises(ValueError, match="the mask of style 1 leaves less than 64 pixels"):
            stylize(content, [own.placed(1, torch.zeros(64, 80))], codec, [1])

    def test_transparent(self, codec: Codec, content: Picture, style: Picture) -> None:
        invisible = Picture(content.pixels, torch.zeros(64, 80))
        with pytest.raises(ValueError, match="of the style are opaque"):
            Style.of(invisible, codec, [1])
        with pytest.raises(ValueError, match="the opacity of the content leaves less than 64"):
            stylize(invisible, [Style.of(style, codec, [1])], codec, [1])

    def test_numbers(self, codec: Codec, content: Picture) -> None:
        own = Style.of(content, codec, [1])
        with pytest.raises(ValueError, match="strength must be finite"):
            stylize(content, [own], codec, [1], strength=float("inf"))
        with pytest.raises(ValueError, match="at least one style"):
            stylize(content, [], codec, [1])
        with pytest.raises(ValueError, match="weight of a style must be positive"):
            stylize(content, [own.placed(0)], codec, [1])
        with pytest.raises(ValueError, match="tile must be at least 1"):
            stylize(content, [own], codec, [1], tile=0)


def test_files_of_two_families(tmp_path: Path) -> None:
    """Both in one folder is nothing to guess about: the first that is known is taken, and it is complete."""
    codec = load_codec(write(write(tmp_path, VGG, levels=(1,)), SMALL, levels=(1, 2)))
    assert codec.name == VGG.name
