"""Measures of translated pictures, on pictures whose measures are known."""

import math
import shutil

import pytest
import torch

from eigengrad.lab.style.metrics import (
    FeatureClassifier,
    edge_similarity,
    feature_similarity,
    find_features,
    intensity,
    load_or_fit,
    sharpness,
    time_in_turns,
)
from eigengrad.lab.style.metrics.classifier import StyleClassifier, fit
from eigengrad.lab.style.translation import TranslationConfig
from eigengrad.lab.style.translation.domains import centres, load_domains
from eigengrad.lab.style.weights import SHIPPED, load_codec


def noise(count=3, size=32, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def domains(part):
    a, b = load_domains(TranslationConfig(domain_a="hills", domain_b="strokes", image_size=64))
    return {d.name: centres(getattr(d, part), 64)[..., ::2, ::2].add(1).div(2) for d in (a, b)}


@pytest.fixture(scope="module")
def judge():
    return fit(domains("train"), epochs=40)


# Sharpness ------------------------------------------------------------------------------------------------------------


def test_the_sharpness_of_ramps_is_their_slope():
    ramp = torch.arange(64.0).expand(64, 64) / 255
    pictures = torch.stack([ramp, ramp.T, ramp + ramp.T, 0 * ramp])[:, None].expand(4, 3, 64, 64)
    torch.testing.assert_close(sharpness(pictures), torch.tensor([1.0, 1.0, math.sqrt(2), 0.0]), rtol=1e-5, atol=1e-5)


def test_blurring_lowers_sharpness_and_contrast_scales_it():
    pictures = noise()
    blurred = torch.nn.functional.avg_pool2d(pictures, 3, 1, 1, count_include_pad=False)
    assert (sharpness(blurred) < 0.5 * sharpness(pictures)).all()
    torch.testing.assert_close(sharpness(pictures / 2), sharpness(pictures) / 2)


def test_colours_of_equal_intensity_have_no_edges():
    picture = torch.zeros(1, 3, 8, 8)
    picture[:, 0, :, :4], picture[:, 1, :, 4:] = 0.587, 0.299
    assert sharpness(picture).item() == pytest.approx(0, abs=1e-4)
    torch.testing.assert_close(intensity(torch.ones(1, 3, 2, 2)), torch.ones(1, 2, 2))


def test_intensity_refuses_what_is_not_pictures():
    with pytest.raises(ValueError, match=r"images must have shape \(N, 3, H, W\); got \(3, 8, 8\)"):
        sharpness(torch.rand(3, 8, 8))


# Content --------------------------------------------------------------------------------------------------------------


def test_edges_are_kept_by_other_colours_and_lost_in_another_picture():
    pictures = noise()
    torch.testing.assert_close(edge_similarity(pictures, pictures), torch.ones(3))
    torch.testing.assert_close(edge_similarity(pictures, 0.2 + 0.5 * (1 - pictures)), torch.ones(3))
    assert edge_similarity(pictures, noise(seed=1)).abs().max() < 0.2
    assert edge_similarity(pictures, torch.zeros_like(pictures)).tolist() == [0, 0, 0]


def test_features_are_kept_by_the_picture_itself_and_not_by_another(judge):
    pictures = domains("test")["hills"]
    itself, brighter = (feature_similarity(judge, pictures, x) for x in (pictures, 0.9 * pictures + 0.05))
    other = feature_similarity(judge, pictures, domains("test")["strokes"])
    torch.testing.assert_close(itself, torch.ones(8))
    assert (brighter > 0.8).all()
    assert (other < 0.5).all()


# The classifier -------------------------------------------------------------------------------------------------------


def test_it_learns_to_tell_the_domains_apart(judge):
    accuracy = judge.accuracy(domains("test"))
    assert accuracy.mean >= 90
    assert accuracy.count == {"hills": 8, "strokes": 8}
    assert judge.share(domains("test")["strokes"], "hills") <= 20


def test_it_is_trained_once_for_the_same_pictures(tmp_path):
    pictures = domains("train")
    first = load_or_fit(pictures, tmp_path, epochs=2)
    (file,) = tmp_path.glob("style-classifier-*.pt")
    written = file.stat().st_mtime_ns
    again = load_or_fit(pictures, tmp_path, epochs=2)
    assert file.stat().st_mtime_ns == written
    x = noise()
    torch.testing.assert_close(first(x), again(x))
    load_or_fit({name: images[:-1] for name, images in pictures.items()}, tmp_path, epochs=2)
    assert len(list(tmp_path.glob("*.pt"))) == 2


def test_training_it_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    fit({name: images[:4] for name, images in domains("train").items()}, epochs=1)
    assert torch.equal(torch.rand(3), wanted)


def test_it_judges_a_picture_by_itself(judge):
    pictures = domains("test")["hills"]
    with torch.no_grad():
        torch.testing.assert_close(judge(pictures)[:1], judge(pictures[:1]), rtol=1e-4, atol=1e-5)
    assert isinstance(judge, StyleClassifier)


def test_a_judge_by_features_is_fitted_without_chance():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    judge, again = (FeatureClassifier.fit(domains("train"), load_codec()) for _ in range(2))
    assert torch.equal(torch.rand(3), wanted)
    pictures = domains("test")
    with torch.no_grad():
        assert torch.equal(judge(pictures["hills"]), again(pictures["hills"]))
    assert judge.accuracy(pictures).mean >= 90
    assert "ImageNet" in judge.about
    torch.testing.assert_close(feature_similarity(judge, *[pictures["hills"]] * 2), torch.ones(8))


def test_features_are_found_where_the_data_is(tmp_path):
    assert find_features(None) is None
    assert find_features(tmp_path) is None
    (tmp_path / "weights" / "notes").mkdir(parents=True)
    shutil.copytree(SHIPPED, tmp_path / "weights" / "small")
    codec = find_features(tmp_path)
    assert codec is not None
    assert codec.name == load_codec().name


# Time -----------------------------------------------------------------------------------------------------------------


def test_contestants_take_turns():
    calls = []
    times = time_in_turns({name: lambda name=name: calls.append(name) for name in "abc"}, rounds=30)
    assert {name: len(values) for name, values in times.items()} == {"a": 30, "b": 30, "c": 30}
    turns = ["".join(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(turns) == 31  # one to warm up
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len(set(turns)) == 6  # no call always follows the same one
    assert all(value >= 0 for values in times.values() for value in values)
