"""The registry of data sets, the digits, and subsets."""

from __future__ import annotations

import pickle

import pytest
import torch

from eigengrad.lab.data import ARCHIVES, DATASETS, CorruptDataError, Dataset, MissingDataError, Split, digest, load
from eigengrad.lab.data.augment import RandomShift


def toy(counts: list[int]) -> Dataset:
    """A data set with this many training images of each class, in mixed order; an image's pixel is its number."""
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))]
    images = torch.arange(len(labels), dtype=torch.uint8).reshape(-1, 1, 1, 1)
    split = Split(images, labels)
    return Dataset("toy", split, split, tuple("abcdefgh"[: len(counts)]), RandomShift(), (0.5,), (0.5,))


def per_class(data: Dataset) -> list[int]:
    return data.train.labels.bincount(minlength=len(data.classes)).tolist()


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    data = load("digits")
    assert data.train.images.shape == (1297, 1, 8, 8)
    assert data.test.images.shape == (500, 1, 8, 8)
    assert data.train.images.dtype == torch.uint8
    assert data.train.labels.dtype == torch.int64
    assert (data.channels, data.image_size, data.classes) == (1, 8, tuple("0123456789"))
    original = load_digits()
    images = torch.cat([data.train.images, data.test.images])
    assert torch.equal((images.squeeze(1).double() / 255 * 16).round(), torch.from_numpy(original.images))
    assert torch.equal(torch.cat([data.train.labels, data.test.labels]), torch.from_numpy(original.target))


def test_digits_are_normalised_by_their_own_mean_and_deviation():
    data = load("digits")
    values = data.train.images.double() / 255
    assert data.mean == (pytest.approx(values.mean().item(), abs=1e-4),)
    assert data.std == (pytest.approx(values.std(correction=0).item(), abs=1e-4),)


def test_digits_of_another_size():
    data = load("digits", image_size=16)
    assert data.train.images.shape == (1297, 1, 16, 16)
    assert data.image_size == 16
    assert data.augmentation.padding == 2


@pytest.mark.parametrize("count", [10, 100, 101, 500, 1297])
def test_a_subset_is_balanced(count):
    whole, part = load("digits"), load("digits", subset=count)
    assert len(part.train) == count
    if count <= 1280:  # the smallest class has 128
        assert max(per_class(part)) - min(per_class(part)) <= 1
    assert len(part.test) == len(whole.test)


def test_a_subset_depends_on_the_seed_only():
    first = load("digits", subset=100, seed=3).train
    torch.manual_seed(1)
    again, other = load("digits", subset=100, seed=3).train, load("digits", subset=100, seed=4).train
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)


def test_a_subset_has_different_images_in_their_order_with_their_labels():
    data = toy([20, 20, 20])
    part = data.subset(12, seed=1).train
    numbers = part.images.flatten().tolist()
    assert numbers == sorted(set(numbers))
    assert torch.equal(part.labels, data.train.labels[numbers])


@pytest.mark.parametrize(
    ("available", "count", "expected"),
    [
        ([20, 20, 20], 12, [4, 4, 4]),
        ([20, 20, 20], 14, [5, 5, 4]),
        ([2, 20, 20], 12, [2, 5, 5]),
        ([2, 20, 20], 13, [2, 6, 5]),
        ([2, 3, 20], 25, [2, 3, 20]),
        ([1, 1, 9], 3, [1, 1, 1]),
        ([4, 0, 4], 4, [2, 0, 2]),
    ],
)
def test_small_classes_give_what_they_have(available, count, expected):
    assert per_class(toy(available).subset(count)) == expected


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (61, ValueError, r"subset: got 61, but there are 60 training images"),
        (2, ValueError, r"subset: got 2, but there are 3 classes; expected at least one image of each"),
        (0, ValueError, r"subset: count must be at least 1; got 0"),
        (1.5, TypeError, r"subset: count must be an integer; got 1.5"),
    ],
)
def test_an_impossible_subset_is_refused(count, error, message):
    with pytest.raises(error, match=message):
        toy([20, 20, 20]).subset(count)


def test_an_unknown_name_lists_the_choices():
    with pytest.raises(ValueError, match=r"data: got 'mnist'; expected one of 'cifar10', 'cifar100', 'digits', "):
        load("mnist")


def test_a_root_for_the_digits_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match=r"digits: come with scikit-learn and take no root; got '.*'"):
        load("digits", tmp_path)


def test_a_bad_size_is_named():
    with pytest.raises(ValueError, match=r"load: image_size must be at least 1; got 0"):
        load("digits", image_size=0)


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_without_a_root_it_is_said_where_to_get_the_data(name):
    with pytest.raises(MissingDataError, match="must say where it is") as caught:
        load(name)
    if name in ARCHIVES:
        assert ARCHIVES[name].url in str(caught.value)
        assert f"eigengrad fetch {name} --data-root DIR" in str(caught.value)


@pytest.mark.parametrize("kind", [MissingDataError, CorruptDataError])
def test_errors_pass_between_processes(kind):
    error = kind("a/file", "is gone", "Look for it")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "a/file: is gone. Look for it"
    assert isinstance(again, OSError)


def test_a_digest_follows_links_and_does_without_those_that_lead_nowhere(tmp_path):
    for name, content in (("one", b"a"), ("two", b"ab")):
        (tmp_path / name / "train").mkdir(parents=True)
        (tmp_path / name / "train" / "x.png").write_bytes(content)
        (tmp_path / f"link-{name}").mkdir()
        (tmp_path / f"link-{name}" / "train").symlink_to(tmp_path / name / "train")
    links = [digest(tmp_path / f"link-{name}") for name in ("one", "two")]
    assert links == [digest(tmp_path / name) for name in ("one", "two")]
    assert links[0] != links[1]
    (tmp_path / "one" / "broken.png").symlink_to(tmp_path / "nowhere")
    assert digest(tmp_path / "one") == links[0]
