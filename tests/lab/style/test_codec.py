"""The codec that comes with the package: how well it inverts itself, and how it is made."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from eigengrad.lab.style import codec_fitting, codec_training
from eigengrad.lab.style import stylize as stylization
from eigengrad.lab.style.codec import Chain, Codec, Family
from eigengrad.lab.style.codec_fitting import fit_decoder, fit_encoder
from eigengrad.lab.style.codec_training import FAMILY, train_codec, widths
from eigengrad.lab.style.images import Picture, read_picture
from eigengrad.lab.style.moments import Moments
from eigengrad.lab.style.stylize import Style, stylize
from eigengrad.lab.style.training_pictures import SCIKIT_IMAGE, SCIKIT_LEARN, Crops, pictures
from eigengrad.lab.style.weights import SHIPPED, WeightsError, load_codec


@pytest.fixture(scope="module")
def codec() -> Codec:
    return load_codec()


@pytest.fixture(scope="module")
def photos() -> list[Picture]:
    """A motorcycle and stained tissue, which the codec was not made from."""
    found = []
    for name in ("motorcycle_left.png", "ihc.png"):
        picture = read_picture(Path(str(files("skimage") / "data" / name)))
        found.append(Picture(picture.pixels[:, 100:260, 100:300].contiguous()))
    return found


def psnr(a: Picture, b: Picture) -> float:
    return -10 * math.log10(float((a.pixels - b.pixels).square().mean()))


class TestShipped:
    def test_it_is_small_and_described(self) -> None:
        assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 1_000_000
        assert json.loads((SHIPPED / "codec.json").read_text()) == json.loads(FAMILY.to_json())

    def test_its_pictures_and_their_terms_are_named(self) -> None:
        text = (SHIPPED / "README.md").read_text()
        for name in SCIKIT_IMAGE + SCIKIT_LEARN:
            assert f"`{name}`" in text

    def test_it_has_three_levels(self, codec: Codec) -> None:
        assert {number: level.channels for number, level in codec.levels.items()} == {1: 24, 2: 36, 3: 128}
        assert [codec.require(number).encoder.stride for number in (1, 2, 3)] == [1, 2, 4]

    def test_only_its_own_names_are_read(self, tmp_path: Path) -> None:
        state = torch.load(SHIPPED / "codec.pth", weights_only=True)
        state.pop("decoder2.conv11.bias")
        torch.save(state, tmp_path / "codec.pth")
        (tmp_path / "codec.json").write_text(replace(FAMILY, name="copy").to_json())
        with pytest.raises(WeightsError, match=r"no decoder2\.conv11\.bias in it"):
            load_codec(tmp_path)

    def test_folded_channels_are_counted(self, tmp_path: Path) -> None:
        state = torch.load(SHIPPED / "codec.pth", weights_only=True)
        state["encoder.conv21.weight"] = torch.ones(36, 24, 3, 3)
        torch.save(state, tmp_path / "codec.pth")
        (tmp_path / "codec.json").write_text(FAMILY.to_json())
        with pytest.raises(WeightsError, match=r"encoder\.conv21\.weight must have shape \(C', 96, 3, 3\)"):
            load_codec(tmp_path)

    @pytest.mark.parametrize(("levels", "decibels"), [((1,), 55), ((2,), 35), ((3,), 28), ((3, 2, 1), 27)])
    def test_it_inverts_itself(
        self, codec: Codec, photos: list[Picture], levels: tuple[int, ...], decibels: float
    ) -> None:
        for picture in photos:
            again = stylize(picture, [Style.of(picture, codec, levels)], codec, levels, strength=0.0)
            assert psnr(again, picture) > decibels
            cast = (again.pixels - picture.pixels).mean((1, 2)).abs().max()
            assert float(cast) < 0.01  # 2.5 levels of 256

    def test_borders_are_as_good_as_the_rest(self, codec: Codec, photos: list[Picture]) -> None:
        for picture in photos:
            again = stylize(picture, [Style.of(picture, codec, [3])], codec, [3], strength=0.0)
            error = (again.pixels - picture.pixels).square().mean(0)
            inside = float(error[8:-8, 8:-8].mean())
            for border in (error[:4], error[-4:], error[:, :4], error[:, -4:]):
                assert float(border.mean()) < 3 * inside

    def test_there_is_no_grid_in_the_reconstruction(self, codec: Codec, photos: list[Picture]) -> None:
        """The error is as large at each of the 4×4 places of a square of level 3, on average."""
        for picture in photos:
            again = stylize(picture, [Style.of(picture, codec, [3])], codec, [3], strength=0.0)
            error = (again.pixels - picture.pixels).mean(0)
            places = error.unfold(0, 4, 4).unfold(1, 4, 4).mean((0, 1))
            assert float(places.std()) < 0.001

    def test_smoothing_hides_the_grid(self, codec: Codec, photos: list[Picture]) -> None:
        """In what a soft gradient becomes, nothing should repeat every four pixels; here, in units of 1 of 256."""
        row, column = torch.meshgrid(torch.linspace(0, 1, 160), torch.linspace(0, 1, 200), indexing="ij")
        soft = Picture(torch.stack([column, 0.5 + 0.4 * torch.sin(6 * row + 2 * column), 1 - row * column]))

        def grid(smooth: bool) -> float:
            made = stylize(soft, [Style.of(photos[1], codec, [3], smooth=smooth)], codec, [3]).pixels.mean(0)
            detail = made - torch.nn.functional.avg_pool2d(made[None, None], 5, 1, 2, count_include_pad=False)[0, 0]
            squares = detail[8:-8, 8:-8].unfold(0, 8, 8).unfold(1, 8, 8).unflatten(2, (2, 4)).unflatten(4, (2, 4))
            return 255 / 16 * float(torch.fft.fft2(squares.mean((2, 4))).abs().flatten(2)[..., 1:].mean())

        assert grid(smooth=True) < 0.2
        assert grid(smooth=True) < 0.4 * grid(smooth=False)

    @pytest.mark.parametrize("level", [1, 2, 3])
    def test_transferred_features_have_the_covariance_of_the_style(
        self, codec: Codec, photos: list[Picture], level: int
    ) -> None:
        content, painting = photos
        wanted = Style.of(painting, codec, [level]).moments[level]
        encodings = stylization._encodings(content.pixels, codec.require(level), 0, True, 1024)
        (own,) = stylization._moments(encodings, 1, [None])
        change = stylization._map(own, wanted)
        features = [encoding.features(tile) for encoding in encodings for tile in encoding.tiles]
        made = Moments.merge(Moments.of(change(stylization._points(part, 1))) for part in features)
        assert float((made.covariance - wanted.covariance).norm() / wanted.covariance.norm()) < 1e-3

    def test_features_of_the_result_are_nearer_to_the_styles(self, codec: Codec, photos: list[Picture]) -> None:
        content, painting = photos
        levels = [3, 2, 1]
        style = Style.of(painting, codec, levels)
        results = {s: stylize(content, [style], codec, levels, strength=s) for s in (0.0, 0.5, 1.0)}
        for level in levels:

            def far(picture: Picture, level: int = level) -> float:
                own = Style.of(picture, codec, [level]).moments[level]
                return float((own.covariance - style.moments[level].covariance).norm())

            assert far(results[1.0]) < 0.5 * far(content)
            assert far(results[1.0]) < far(results[0.5]) < far(results[0.0])


class TestFitting:
    def test_components_are_white(self) -> None:
        generator = torch.Generator().manual_seed(0)
        patches = torch.randn(5000, 20, generator=generator) @ torch.randn(20, 20, generator=generator)
        patches -= patches.mean(0)
        pixels = patches[:, :5] + 0.1 * torch.randn(5000, 5, generator=generator)
        made = patches @ codec_fitting._components(patches, pixels, 12, generator).mT
        assert (made.mT @ made / 5000 - torch.eye(12)).abs().max() < 0.02

    def test_independent_components_are_found(self) -> None:
        generator = torch.Generator().manual_seed(0)
        sources = torch.rand(20_000, 4, generator=generator).sub(0.5).mul(math.sqrt(12)) ** 3  # far from normal
        sources = (sources - sources.mean(0)) / sources.std(0)
        mixing = torch.linalg.qr(torch.randn(4, 4, generator=generator)).Q
        found = codec_fitting._independent(sources @ mixing.mT, generator) @ mixing
        assert (found.abs().max(1).values > 0.98).all()  # a permutation with signs

    def test_regression(self) -> None:
        generator = torch.Generator().manual_seed(0)
        points, matrix, offset = (torch.randn(*s, generator=generator) for s in ((1000, 6), (2, 6), (2,)))
        found = codec_fitting._regression(points, points @ matrix.mT + offset)
        assert (found[0] - matrix).abs().max() < 1e-4
        assert (found[1] - offset).abs().max() < 1e-4

    def test_the_pixels_can_be_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(codec_fitting, "SAMPLES", 4000)
        generator = torch.Generator().manual_seed(0)
        sample = Crops(pictures()[:4], generator).batch(24, 48)
        encoder = Chain(FAMILY.encoder_steps(2), widths())
        fit_encoder(encoder, sample, generator)
        decoder = Chain(FAMILY.decoder_steps(2), widths(reverse=True))
        fit_decoder(decoder, encoder, sample, generator)
        with torch.no_grad():
            error = (decoder(encoder(sample)) - sample).square().mean()
        assert float(error) < 0.01 * float(sample.var())


@pytest.mark.slow
def test_making_it_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_fitting, "SAMPLES", 2000)
    monkeypatch.setattr(codec_training, "CROPS", 8)
    told: list[str] = []
    for name in ("a", "b"):
        train_codec(tmp_path / name, seed=3, progress=told.append)
    assert told == 2 * ["the pictures", "the encoder", *(f"the decoder of level {level}" for level in (1, 2, 3))]
    first, second = (torch.load(tmp_path / name / "codec.pth", weights_only=True) for name in ("a", "b"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert sorted(load_codec(tmp_path / "a").levels) == [1, 2, 3]


def test_crops_come_from_the_pictures() -> None:
    found = pictures()
    assert len(found) == 2 * len(SCIKIT_IMAGE + SCIKIT_LEARN)
    for image in found:
        assert image.shape[0] == 3
        assert min(image.shape[1:]) >= codec_training.SIDE
        assert max(image.shape[1:]) <= 640
    first, second = (Crops(found, torch.Generator().manual_seed(5)).batch(4, 64) for _ in range(2))
    assert first.shape == (4, 3, 64, 64)
    assert torch.equal(first, second)


def test_a_description_with_wrong_values() -> None:
    with pytest.raises(ValueError, match="resampling is 'pool' or 'fold', not 'stride'"):
        Family.from_json(FAMILY.to_json().replace('"fold"', '"stride"'))
    with pytest.raises(ValueError, match="shifts is a whole number from 1 to 64, not 0"):
        Family.from_json(FAMILY.to_json().replace('"shifts": 4', '"shifts": 0'))
