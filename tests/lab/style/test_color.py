"""Colour transfer: statistics, fixed points, masks, and colours that no screen has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eigengrad.lab.style import color
from eigengrad.lab.style.color import Palette, transfer_colors
from eigengrad.lab.style.color_spaces import SPACES, lab_to_rgb, rgb_to_lab
from eigengrad.lab.style.gamut import GamutCurve
from eigengrad.lab.style.images import Picture
from eigengrad.lab.style.moments import Moments
from eigengrad.nn.functional import color_transfer


def photo(seed: int, size: tuple[int, int] = (60, 90), spread: float = 0.1, middle: float = 0.5) -> Tensor:
    """Correlated colours in 256 levels, well inside the cube."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.eye(3) + 0.5 * torch.randn(3, 3, generator=generator)
    points = mix @ torch.randn(3, size[0] * size[1], generator=generator) * spread
    return levels((points + middle).clamp(0.02, 0.98)).view(3, *size) / 255


def levels(x: Tensor) -> Tensor:
    return (x * 255).round()


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    points = x.flatten(1).double()
    return points.mean(1), points.cov(correction=0)


def relative(x: Tensor, y: Tensor) -> float:
    return float((x - y).norm() / y.norm())


@pytest.fixture
def quiet() -> Picture:
    """Of 16 bits: for 8, the range of a level is filled with noise."""
    return Picture(photo(0, spread=0.04), bits=16)


class TestTransfer:
    def test_no_other_linear_map_to_the_palette_moves_the_colours_less(self, quiet: Picture) -> None:
        palette = photo(1, (40, 50), spread=0.04, middle=0.4)
        colours = transfer_colors(quiet, Palette.of(Picture(palette))).pixels.flatten(1).double()
        assert 0 < colours.min() < colours.max() < 1
        points = quiet.pixels.flatten(1).double()
        points = points - points.mean(1, keepdim=True)
        matrix = torch.linalg.lstsq(points.mT, (colours - colours.mean(1, keepdim=True)).mT).solution.mT
        # A symmetric positive matrix is the gradient of a convex function, so it is the optimal transport (Brenier).
        assert relative(matrix, matrix.mT) < 1e-3
        assert torch.linalg.eigvalsh(matrix).min() > 0

    def test_noise_does_not_get_the_colours(self) -> None:
        """Greys with a little noise of all colours: a vivid palette goes along the greys, not into the noise."""
        generator = torch.Generator().manual_seed(0)
        grey = 0.5 + 0.1 * torch.randn(1, 80, 80, generator=generator)
        content = Picture(grey + 0.01 * torch.randn(3, 80, 80, generator=generator), bits=16)
        way = torch.tensor([0.09, 0.05, -0.03]).view(3, 1, 1)  # from blue to orange
        vivid = Picture(0.5 + way * torch.randn(1, 80, 80, generator=generator) + 0.01 * torch.rand(3, 80, 80))
        made = transfer_colors(content, Palette.of(vivid)).pixels
        library = color_transfer(content.pixels, vivid.pixels, clamp=False)
        told, by_library = (
            float(torch.stack([grey.flatten(), (x * way).sum(0).flatten()]).corrcoef()[0, 1]) for x in (made, library)
        )
        assert told > 0.95 > by_library

    @pytest.mark.parametrize("space", SPACES)
    def test_mean_and_covariance_become_the_palettes(self, quiet: Picture, space: str) -> None:
        palette = photo(1, (40, 50), spread=0.03, middle=0.45)
        result = transfer_colors(quiet, Palette.of(Picture(palette), space=space)).pixels
        of_rgb = SPACES[space].of_rgb
        (mean, covariance), (wanted_mean, wanted) = (statistics(of_rgb(x.flatten(1))) for x in (result, palette))
        assert relative(mean, wanted_mean) < 1e-4
        assert relative(covariance, wanted) < 1e-3

    @pytest.mark.parametrize("space", SPACES)
    def test_its_own_palette_gives_every_level_back(self, space: str) -> None:
        pixels = torch.rand(3, 70, 80, generator=torch.Generator().manual_seed(0))  # all of the cube, corners too
        pixels[:, 0, :8] = torch.tensor([[i >> k & 1 for i in range(8)] for k in range(3)])
        for bits in (8, 16):
            top = 2**bits - 1
            content = Picture((pixels * top).round() / top, bits=bits)
            result = transfer_colors(content, Palette.of(content, space=space))
            moved = (result.pixels * top).round() - (content.pixels * top).round()
            # There and back between RGB and Lab is right to 24 bits, so not for every level of 16.
            assert moved.abs().max() <= (1 if (bits, space) == (16, "lab") else 0)

    def test_strength(self, quiet: Picture) -> None:
        palette = Palette.of(Picture(photo(1, spread=0.04)))
        none, half, full = (transfer_colors(quiet, palette, strength=s).pixels for s in (0.0, 0.5, 1.0))
        assert (none - quiet.pixels).abs().max() < 1e-5
        assert (half - (none + full) / 2).abs().max() < 1e-5

    def test_transparency_is_kept_and_does_not_count(self, quiet: Picture) -> None:
        alpha = torch.ones(60, 90)
        alpha[:, 45:] = 0
        spoiled = quiet.pixels.clone()
        spoiled[:, :, 45:] = 1
        palette = Palette.of(Picture(photo(1, spread=0.04)))
        result = transfer_colors(Picture(spoiled, alpha, bits=16), palette)
        half = transfer_colors(Picture(quiet.pixels[:, :, :45].contiguous(), bits=16), palette)
        assert torch.equal(result.alpha, alpha)
        assert (result.pixels[:, :, :45] - half.pixels).abs().max() < 1e-4
        spoiled_palette = Palette.of(Picture(spoiled, alpha)).moments
        assert relative(spoiled_palette.mean[0], statistics(quiet.pixels[:, :, :45])[0]) < 1e-6

    def test_a_mask_changes_only_what_it_shows(self, quiet: Picture) -> None:
        mask = torch.zeros(60, 90)
        mask[:30] = 1
        palette = photo(1, spread=0.03)
        result = transfer_colors(quiet, Palette.of(Picture(palette)), mask=mask).pixels
        assert (result[:, 30:] - quiet.pixels[:, 30:]).abs().max() < 1e-5
        (mean, covariance), (wanted_mean, wanted) = statistics(result[:, :30]), statistics(palette)
        assert relative(mean, wanted_mean) < 1e-4
        assert relative(covariance, wanted) < 1e-3

    def test_a_mask_of_the_palette(self) -> None:
        picture = photo(3)
        mask = torch.zeros(60, 90)
        mask[:, :20] = 1
        mean, covariance = statistics(picture[:, :, :20])
        moments = Palette.of(Picture(picture), mask=mask).moments
        assert relative(moments.mean[0], mean) < 1e-6
        assert relative(moments.covariance[0], covariance) < 1e-5

    def test_one_colour(self, quiet: Picture) -> None:
        solid = Picture(torch.full((3, 20, 20), 0.3))
        towards = transfer_colors(quiet, Palette.of(solid)).pixels
        assert (towards - 0.3).abs().max() < 0.01
        away = transfer_colors(solid, Palette.of(quiet)).pixels
        assert (away - quiet.pixels.mean((1, 2), keepdim=True)).abs().max() < 0.3  # one level, spread over its range
        assert (away.mean((1, 2)) - quiet.pixels.mean((1, 2))).abs().max() < 0.02

    @pytest.mark.parametrize("space", SPACES)
    def test_rounding_is_not_taken_for_colour(self, space: str) -> None:
        """A gradient of one hue has two directions in which there is nothing but rounding to 256 levels."""
        hue = torch.tensor([0.5, 0.7, 1.0]).view(3, 1, 1)
        ramp = torch.linspace(0.2, 0.8, 900).expand(3, 60, 900) * hue
        palette = Palette.of(Picture(photo(1, spread=0.06)), space=space)
        made = transfer_colors(Picture(levels(ramp) / 255), palette).pixels.mean(1, keepdim=True)
        stripes = made - torch.nn.functional.avg_pool1d(made.squeeze(1), 9, 1, 4, count_include_pad=False).unsqueeze(1)
        assert float(stripes[:, :, 8:-8].abs().max()) * 255 < 2

    def test_grey_gets_the_colours_along_a_line(self, quiet: Picture) -> None:
        grey = Picture(quiet.pixels.mean(0, keepdim=True).expand(3, -1, -1).contiguous(), bits=16)
        result = transfer_colors(grey, Palette.of(Picture(photo(1, spread=0.04)))).pixels
        _, covariance = statistics(result)
        small, middle, large = torch.linalg.eigvalsh(covariance).tolist()
        assert middle < 1e-4 * large
        assert small < 1e-4 * large

    def test_result_does_not_depend_on_pieces_or_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        content, palette = Picture(photo(0)), Picture(photo(1, spread=0.2))
        before = torch.get_num_threads()
        whole = transfer_colors(content, Palette.of(palette)).pixels
        torch.set_num_threads(2)
        try:
            shared = transfer_colors(content, Palette.of(palette)).pixels
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        assert torch.equal(whole, shared)
        monkeypatch.setattr(color, "PIECE", 1000)
        pieces = Palette.of(palette).moments
        monkeypatch.undo()
        assert relative(pieces.covariance, Palette.of(palette).moments.covariance) < 1e-6

    def test_stretching_leaves_no_empty_levels(self) -> None:
        ramp = torch.linspace(100, 116, 400).round().expand(3, 50, 400) / 255  # a faint sky: 17 levels
        wide = torch.linspace(30, 220, 400).expand(3, 50, 400) / 255
        result = transfer_colors(Picture(ramp), Palette.of(Picture(wide))).pixels
        used = levels(result[0]).flatten().long().bincount(minlength=256)[60:200]
        assert (used > 0).all()
        assert used.max() < 4 * used.float().mean()


class TestMisuse:
    def test_space(self, quiet: Picture) -> None:
        with pytest.raises(ValueError, match="space: got 'hsv'; expected one of 'lab', 'rgb'"):
            Palette.of(quiet, space="hsv")

    def test_mask_of_another_size(self, quiet: Picture) -> None:
        with pytest.raises(ValueError, match=r"mask must have the size of its picture, \(60, 90\); got \(3, 4\)"):
            Palette.of(quiet, mask=torch.ones(3, 4))

    def test_nothing_counts(self, quiet: Picture) -> None:
        with pytest.raises(ValueError, match="no pixel counts"):
            Palette.of(quiet, mask=torch.zeros(60, 90))

    def test_strength(self, quiet: Picture) -> None:
        with pytest.raises(ValueError, match="strength must be finite"):
            transfer_colors(quiet, Palette.of(quiet), strength=float("nan"))


class TestLab:
    def test_against_scikit_image(self) -> None:
        skimage_color = pytest.importorskip("skimage.color")
        rgb = torch.rand(3, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        expected = torch.from_numpy(skimage_color.rgb2lab(rgb.T.numpy())).T
        assert (100 * rgb_to_lab(rgb) - expected).abs().max() < 0.02  # it rounds its constants differently

    def test_there_and_back(self) -> None:
        rgb = torch.rand(3, 1000, generator=torch.Generator().manual_seed(0))
        rgb[:, :2] = torch.tensor([0.0, 1.0])
        assert (lab_to_rgb(rgb_to_lab(rgb)) - rgb).abs().max() < 1e-5

    def test_what_no_screen_shows_comes_back_too(self) -> None:
        lab = torch.tensor([[0.9, 0.1, 1.2], [0.9, -0.7, 0.0], [0.5, -0.5, 0.0]])
        rgb = lab_to_rgb(lab.double())
        assert rgb.isfinite().all()
        assert (rgb.min() < 0) & (rgb.max() > 1)


class TestGamut:
    def test_inside_nothing_changes(self) -> None:
        colours = torch.rand(3, 1000)
        colours[:, :2] = torch.tensor([0.0, 1.0])
        assert torch.equal(GamutCurve.fit(colours)(colours), colours)

    def test_everything_ends_inside(self) -> None:
        colours = 0.5 + 2 * torch.randn(3, 5000, generator=torch.Generator().manual_seed(0))
        result = GamutCurve.fit(colours)(colours)
        assert (result >= 0).all()
        assert (result <= 1).all()

    def test_a_ramp_that_leaves_the_cube_has_no_flat_part(self) -> None:
        ramp = torch.linspace(0.0, 1.5, 1501)
        for direction in ([1.0, 1.0, 1.0], [1.0, 0.6, 0.2], [0.9, 1.0, 0.1]):
            colours = ramp * torch.tensor(direction).unsqueeze(1)
            result = GamutCurve.fit(colours)(colours)
            assert (result[0].diff()[:-2] > 1e-5).all()  # clamping would stop at 1
            assert result[0].diff().diff().abs().max() < 1e-3  # and there is no kink

    def test_hue_stays(self) -> None:
        colours = torch.tensor([[1.3], [0.7], [0.2]]).expand(3, 1000) * torch.linspace(0.2, 1, 1000)
        result = GamutCurve.fit(colours)(colours)

        def hue(x: Tensor) -> Tensor:  # which channel is how far between the least and the most
            return (x[1] - x[2]) / (x[0] - x[2])

        assert (hue(result) - hue(colours)).abs().max() < 1e-4
        assert (hue(colours.clamp(0, 1)) - hue(colours)).abs().max() > 0.1


class TestMoments:
    def test_of_pieces_are_of_the_whole(self) -> None:
        points = 1e3 + torch.randn(2, 4, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        weights = torch.rand(1000, dtype=torch.float64)
        for given in (None, weights):
            pieces = [slice(0, 10), slice(10, 700), slice(700, 1000)]
            merged = Moments.merge(Moments.of(points[..., p], None if given is None else given[p]) for p in pieces)
            share = torch.ones(1000, dtype=torch.float64) if given is None else given
            mean = (points * share).sum(-1) / share.sum()
            centred = points - mean.unsqueeze(-1)
            assert relative(merged.mean, mean) < 1e-12
            assert relative(merged.covariance, (centred * share) @ centred.mT / share.sum()) < 1e-9

    def test_pieces_without_weight_do_not_matter(self) -> None:
        points = torch.randn(1, 3, 50)
        nothing = Moments.of(points + 7, torch.zeros(50))
        for order in ([nothing, Moments.of(points)], [Moments.of(points), nothing]):
            assert torch.equal(Moments.merge(order).scatter, Moments.of(points).scatter)

    def test_float32_far_from_zero(self) -> None:
        points = 300 + torch.randn(1, 3, 200_000, generator=torch.Generator().manual_seed(0))
        merged = Moments.merge(Moments.of(p) for p in points.split(1 << 14, dim=-1))
        assert relative(merged.covariance[0], points[0].double().cov(correction=0)) < 1e-4
