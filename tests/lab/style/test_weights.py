"""Codecs from folders of weights: the published architectures, descriptions of others, and everything that is wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eigengrad.lab.style.codec import Family
from eigengrad.lab.style.weights import WeightsError, load_codec
from style_codecs import SMALL, VGG, WIDTHS, photo, sequential, state_dicts, write


class TestArchitecture:
    def test_the_names_of_the_normalised_vgg(self) -> None:
        assert VGG.parameter_names("encoder", 3) == {
            "conv0": "0", "conv11": "2", "conv12": "5", "conv21": "9", "conv22": "12", "conv31": "16",
        }  # fmt: skip
        assert VGG.parameter_names("decoder", 3) == {
            "conv31": "1", "conv22": "5", "conv21": "8", "conv12": "12", "conv11": "15",
        }  # fmt: skip

    def test_the_names_of_the_small_vgg(self) -> None:
        assert list(SMALL.parameter_names("encoder", 4).values()) == (
            ["conv0", "conv11", "conv12", "conv21", "conv22", "conv31", "conv32", "conv33", "conv34", "conv41"]
        )
        assert list(SMALL.parameter_names("decoder", 3).values()) == ["conv31", "conv22", "conv21", "conv12", "conv11"]

    @pytest.mark.parametrize("family", [VGG, SMALL], ids=lambda family: family.name)
    def test_the_layers_are_the_published_ones(self, tmp_path: Path, family: Family) -> None:
        codec = load_codec(write(tmp_path, family, levels=(1, 2, 3, 4, 5)))
        image = photo(0, (64, 96)).pixels.unsqueeze(0)
        assert sorted(codec.levels) == [1, 2, 3, 4, 5]
        for number, level in codec.levels.items():
            features = sequential(family, "encoder", number)(image)
            assert torch.allclose(level.encoder(image), features, atol=1e-5)
            assert torch.allclose(level.decoder(features), sequential(family, "decoder", number)(features), atol=1e-5)
            assert level.channels == WIDTHS[number - 1]
            assert level.encoder.stride == level.decoder.stride == 2 ** (number - 1)

    @pytest.mark.parametrize("number", [1, 2, 3, 4])
    def test_reach_is_as_far_as_anything_has_an_influence(self, tmp_path: Path, number: int) -> None:
        level = load_codec(write(tmp_path, SMALL, levels=(number,))).require(number)
        side, stride = 192, level.encoder.stride
        image = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        other = image.clone()
        other[:, :, side // 2, side // 2] += 100  # far from linear: so that it passes every rectifier
        changed = (level.encoder(image) != level.encoder(other)).any(1)[0].nonzero()
        farthest = (changed * stride - side // 2).abs().max()
        assert 0 < farthest <= level.encoder.reach + stride
        features = torch.rand(1, level.channels, side // stride, side // stride)
        bumped = features.clone()
        bumped[:, :, side // stride // 2, side // stride // 2] += 100
        changed = (level.decoder(features) != level.decoder(bumped)).any(1)[0].nonzero()
        farthest = (changed - side // 2).abs().max()
        assert 0 < farthest <= level.decoder.reach + stride

    def test_levels_that_are_there(self, tmp_path: Path) -> None:
        codec = load_codec(write(tmp_path, VGG, levels=(2, 3)))
        assert sorted(codec.levels) == [2, 3]
        with pytest.raises(ValueError, match=r"VGG-19, normalised has no level 5; it has 2, 3"):
            codec.require(5)


class TestDescriptions:
    def test_a_folder_that_describes_itself(self, tmp_path: Path) -> None:
        family = Family(
            name="mine", blocks=(1, 2, 1), encoder="e{level}.pt", decoder="d{level}.pt", names="b{block}_{index}"
        )
        write(tmp_path, family, levels=(1, 2, 3))
        (tmp_path / "codec.json").write_text(family.to_json())
        codec = load_codec(tmp_path)
        assert codec.name == "mine"
        image = photo(0).pixels.unsqueeze(0)
        expected = sequential(family, "encoder", 3)(image)
        assert torch.allclose(codec.require(3).encoder(image), expected, atol=1e-5)

    def test_there_and_back(self) -> None:
        assert Family.from_json(VGG.to_json()) == VGG

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "not JSON"),
            ("[]", "must be an object"),
            ('{"name": "x", "layers": 3}', "unknown entries layers"),
            ('{"name": "x"}', "must have name, blocks, encoder and decoder"),
            ('{"name": "x", "blocks": 3, "encoder": "e", "decoder": "d"}', "must have"),
            ('{"name": "x", "blocks": [1], "encoder": "e{depth}", "decoder": "d"}', "must have"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "codec.json").write_text(text)
        with pytest.raises(WeightsError, match=rf"codec\.json: .*{message}"):
            load_codec(tmp_path)


def spoil(change: Callable[[dict], object], part: str = "encoder") -> Callable[[Path], None]:
    """Change the state dict in the file of level 2."""

    def damage(folder: Path) -> None:
        path = folder / getattr(SMALL, part).format(level=2)
        state = torch.load(path, weights_only=True)
        torch.save(change(state), path)

    return damage


class TestDamage:
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (
                lambda f: (f / "decoder_relu2_1.pth").unlink(),
                r"decoder_relu2_1\.pth: missing, while encoder_relu2_1\.pth",
            ),
            (lambda f: (f / "encoder_relu2_1.pth").write_bytes(b"junk"), r"encoder_relu2_1\.pth: damaged, or no file"),
            (
                spoil(lambda s: {name: value for name, value in s.items() if name != "conv12.bias"}),
                r"no conv12\.bias in it \(1 of 8 parameters are missing\)",
            ),
            (spoil(lambda s: {**s, "conv77.bias": torch.ones(1)}), r"conv77\.bias is not part of the described"),
            (
                spoil(lambda s: {**s, "conv12.weight": torch.ones(6, 7, 3, 3)}),
                r"conv12\.weight must have shape \(C', 6, 3, 3\); got \(6, 7, 3, 3\)",
            ),
            (spoil(lambda s: {**s, "conv11.weight": torch.ones(6, 3, 5, 5)}), r"conv11\.weight must have shape"),
            (spoil(lambda s: {**s, "conv11.bias": torch.ones(5)}), r"conv11\.bias must have shape \(6,\); got \(5,\)"),
            (spoil(lambda s: {**s, "conv11.bias": torch.full((6,), torch.nan)}), r"conv11\.bias holds NaN"),
            (spoil(lambda s: list(s.values())), "expected a state dict, from names to tensors; got list"),
            (
                spoil(lambda s: {**s, "conv21.weight": torch.ones(6, 9, 3, 3)}, "decoder"),
                r"decoder_relu2_1\.pth: expects 9 channels, but encoder_relu2_1\.pth makes 8",
            ),
            (
                spoil(lambda s: {**s, "conv0.weight": torch.ones(3, 1, 1, 1)}),
                "expected pictures of 3 channels; the encoder takes 1, the decoder makes 3",
            ),
        ],
    )
    def test_what_does_not_fit_is_named(self, tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
        damage(write(tmp_path, SMALL))
        with pytest.raises(WeightsError, match=message):
            load_codec(tmp_path)

    def test_a_truncated_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, SMALL) / "encoder_relu3_1.pth"
        path.write_bytes(path.read_bytes()[:-500])
        with pytest.raises(WeightsError, match=r"encoder_relu3_1\.pth: damaged"):
            load_codec(tmp_path)

    def test_code_in_a_file_is_not_run(self, tmp_path: Path) -> None:
        class Attack:
            def __reduce__(self) -> tuple:
                return (Path.touch, (tmp_path / "attacked",))

        write(tmp_path, SMALL)
        (tmp_path / "encoder_relu1_1.pth").write_bytes(pickle.dumps(Attack()))
        torch.save({"conv0.weight": Attack()}, tmp_path / "encoder_relu2_1.pth")
        with pytest.raises(WeightsError, match=r"encoder_relu1_1\.pth: damaged"):
            load_codec(tmp_path)
        (tmp_path / "encoder_relu1_1.pth").unlink()
        (tmp_path / "decoder_relu1_1.pth").unlink()
        with pytest.raises(WeightsError, match=r"encoder_relu2_1\.pth: damaged"):
            load_codec(tmp_path)
        assert not (tmp_path / "attacked").exists()

    def test_nothing_known(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match=r"the folder is empty.*Expected vgg_normalised_conv1_1\.pth and"):
            load_codec(tmp_path)
        (tmp_path / "resnet.pth").touch()
        with pytest.raises(WeightsError, match=r"unknown weights \(resnet\.pth\)"):
            load_codec(tmp_path / ".")
        with pytest.raises(WeightsError, match="expected a folder of weights; there is none"):
            load_codec(tmp_path / "gone")
        with pytest.raises(WeightsError, match="expected a folder of weights; this is a file"):
            load_codec(tmp_path / "resnet.pth")


def test_the_weights_of_the_tests_are_reproducible() -> None:
    first, second = (state_dicts(VGG, 3)["encoder"]["2.weight"] for _ in range(2))
    assert torch.equal(first, second)
