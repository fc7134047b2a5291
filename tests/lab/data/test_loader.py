"""Batches: their order, their augmentation, and what these may depend on."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch
from PIL import Image

from eigengrad.lab.data import Split, load, loader
from eigengrad.lab.data.augment import ColourJitter, RandomResizedCrop, RandomShift
from eigengrad.lab.data.pictures import pixels

NOTHING = {"augmentation": RandomShift(padding=0, flip=False), "mean": (0.0,), "std": (1 / 255,)}


def numbered(count: int) -> Split:
    """Images of one pixel, whose value and label are their number."""
    numbers = torch.arange(count)
    return Split(numbers.to(torch.uint8).reshape(-1, 1, 1, 1), numbers)


def noise(count: int, channels: int = 3, height: int = 32, width: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


def cifar_like(count: int = 40) -> tuple[Split, dict]:
    options = {"augmentation": RandomShift(4), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    return Split(noise(count), torch.arange(count)), options


def same(first, second) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in pairs)


# Order.


def test_training_takes_every_image_at_most_once_and_full_batches_only():
    batches = list(loader(numbered(50), 8, train=True, **NOTHING))
    assert [len(y) for _, y in batches] == [8] * 6
    labels = torch.cat([y for _, y in batches]).tolist()
    assert len(set(labels)) == 48
    assert labels != sorted(labels)


def test_images_keep_their_labels():
    for x, y in loader(numbered(50), 8, train=True, **NOTHING):
        assert torch.equal(x.flatten().round().long(), y)


def test_fewer_images_than_a_batch_are_one_batch():
    assert [len(y) for _, y in loader(numbered(5), 8, train=True, **NOTHING)] == [5]


@pytest.mark.parametrize(
    ("count", "size", "lengths"), [(50, 8, [8] + [7] * 6), (16, 8, [8, 8]), (17, 8, [6, 6, 5]), (3, 8, [3])]
)
def test_testing_takes_every_image_once_in_order_in_nearly_equal_batches(count, size, lengths):
    batches = loader(numbered(count), size, train=False, **NOTHING)
    assert len(batches) == len(lengths)
    assert [len(y) for _, y in batches] == lengths
    assert torch.cat([y for _, y in batches]).tolist() == list(range(count))


def test_a_loader_can_be_gone_through_again():
    split, options = cifar_like()
    batches = loader(split, 8, train=True, seed=3, epoch=4, **options)
    assert same(list(batches), list(batches))
    assert len(batches) == len(list(batches)) == 5


# What an epoch depends on.


def test_global_random_state_is_neither_used_nor_changed():
    split, options = cifar_like()
    torch.manual_seed(1)
    first = list(loader(split, 8, train=True, seed=3, epoch=4, **options))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = list(loader(split, 8, train=True, seed=3, epoch=4, **options))
    assert same(first, again)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("other", [{"seed": 4, "epoch": 4}, {"seed": 3, "epoch": 5}, {"seed": 4, "epoch": 3}])
def test_seed_and_epoch_change_order_and_augmentation(other):
    split, options = cifar_like()
    first = next(iter(loader(split, 40, train=True, seed=3, epoch=4, **options)))
    second = next(iter(loader(split, 40, train=True, **other, **options)))
    assert not torch.equal(first[1], second[1])
    by_label = [x[y.argsort()] for x, y in (first, second)]
    changed = (by_label[0] != by_label[1]).flatten(1).any(1)
    assert changed.float().mean() > 0.9  # one image in 162 is shifted and mirrored alike


def test_another_process_gets_the_same_epoch():
    code = """
import hashlib, torch
from eigengrad.lab.data import load, loader
data = load("digits", subset=200)
torch.rand(3)
digest = hashlib.sha256()
options = {"augmentation": data.augmentation, "mean": data.mean, "std": data.std}
for x, y in loader(data.train, 32, train=True, seed=5, epoch=6, **options):
    digest.update(x.numpy().tobytes() + y.numpy().tobytes())
print(digest.hexdigest())
"""
    data = load("digits", subset=200)
    digest = hashlib.sha256()
    options = {"augmentation": data.augmentation, "mean": data.mean, "std": data.std}
    for x, y in loader(data.train, 32, train=True, seed=5, epoch=6, **options):
        digest.update(x.numpy().tobytes() + y.numpy().tobytes())
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == digest.hexdigest()


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("train", [True, False])
def test_batches_of_all_ranks_joined_are_those_of_one_process(world, train):
    split, options = cifar_like(45)
    options |= {"train": train, "seed": 1, "epoch": 2}
    alone = list(loader(split, 8, **options))
    ranks = [list(loader(split, 8, rank=rank, world=world, **options)) for rank in range(world)]
    joined = [tuple(torch.cat(parts) for parts in zip(*batch, strict=True)) for batch in zip(*ranks, strict=True)]
    assert same(joined, alone)
    assert all(len(y) > 0 for batches in ranks for _, y in batches)
    if train:
        assert {len(y) for batches in ranks for _, y in batches} == {8 // world}


# Values.


def test_values_are_normalised_by_channel():
    split, options = cifar_like()
    x, _ = next(iter(loader(split, 8, train=False, **options)))
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    expected = (
        split.images[:8].double() / 255 - torch.tensor([0.5, 0.4, 0.3]).reshape(3, 1, 1).double()
    ) / torch.tensor([0.2, 0.3, 0.4]).reshape(3, 1, 1).double()
    torch.testing.assert_close(x.double(), expected, rtol=1e-5, atol=1e-5)


def test_the_images_themselves_are_not_changed():
    split, options = cifar_like()
    before = split.images.clone()
    for train in (True, False):
        for x, _ in loader(split, 8, train=train, **options):
            x.zero_()
    assert torch.equal(split.images, before)


# Augmentation.


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 10, 14)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_shift_is_padding_cropping_and_mirroring(flip, shape, memory_format):
    images = noise(60, *shape).contiguous(memory_format=memory_format)
    uniform = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    got = RandomShift(padding=2, flip=flip).train(images, uniform)
    _, height, width = shape
    for image, result, (down, right, mirror) in zip(images, got, uniform.tolist(), strict=True):
        padded = torch.zeros(shape[0], height + 4, width + 4, dtype=torch.uint8)
        padded[:, 2:-2, 2:-2] = image
        top, left = int(down * 5), int(right * 5)
        expected = padded[:, top : top + height, left : left + width]
        assert torch.equal(result, expected.flip(-1) if flip and mirror < 0.5 else expected)


def test_every_shift_occurs():
    """9 × 9 places for a border of 4, each in about one of 81 images."""
    uniform = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0))
    image = torch.zeros(1, 1, 32, 32, dtype=torch.uint8)
    image[0, 0, 15, 16] = 255
    shifted = RandomShift(4, flip=False).train(image.expand(20_000, -1, -1, -1), uniform)
    places = shifted.flatten(1).int().argmax(1)
    rows, columns = places // 32, places % 32
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (11, 19, 12, 20)
    counts = ((rows - 11) * 9 + columns - 12).bincount(minlength=81)
    assert counts.min() > 180
    assert counts.max() < 320


def boxes(crop: RandomResizedCrop, height: int, width: int, count: int = 4000) -> torch.Tensor:
    uniform = torch.rand(count, crop.draws, generator=torch.Generator().manual_seed(0))
    return torch.tensor([crop._box(height, width, numbers) for numbers in uniform.tolist()]).double()


@pytest.mark.parametrize(("height", "width"), [(128, 128), (300, 200), (90, 400), (7, 5), (1, 1)])
def test_parts_are_inside_and_of_the_shapes_that_are_allowed(height, width):
    top, left, h, w = boxes(RandomResizedCrop(32), height, width).unbind(1)
    assert bool((top >= 0).all() & (left >= 0).all() & (h >= 1).all() & (w >= 1).all())
    assert bool((top + h <= height).all() & (left + w <= width).all())
    if min(height, width) > 50:  # whole pixels
        assert (h / w).max() < 4 / 3 * 1.05
        assert (h / w).min() > 3 / 4 * 0.95
        assert (h * w).min() > 0.08 * height * width * 0.95


def test_parts_are_spread_over_areas_and_places():
    top, left, h, w = boxes(RandomResizedCrop(32), 128, 128).unbind(1)
    area = h * w / 128**2
    assert area.min() < 0.1
    assert area.max() > 0.95
    # Uniform in [0.08, 1], but for large parts of an oblong shape, which do not fit.
    assert 0.44 < area.mean() < 0.54
    for start, extent in ((top, h), (left, w)):
        assert abs((start / (128 - extent).clamp(min=1)).mean() - 0.5) < 0.03


def test_half_of_the_parts_are_mirrored():
    crop = RandomResizedCrop(8, area=1.0)
    image = torch.arange(8, dtype=torch.uint8).mul(30).expand(1, 3, 8, 8).contiguous()
    uniform = torch.rand(400, crop.draws, generator=torch.Generator().manual_seed(0))
    rising = crop.train(image.expand(400, -1, -1, -1), uniform)[:, 0, 0]
    mirrored = (rising[:, 0] > rising[:, -1]).float().mean()
    assert 0.43 < mirrored < 0.57
    assert torch.equal(mirrored, (uniform[:, -1] < 0.5).float().mean())


def test_the_tested_view_is_the_middle():
    """Scaling the shorter side to 256 and cutting out 224 sees 7/8 of it."""
    image = noise(1, 3, 64, 96)
    got = RandomResizedCrop(56).test(image)
    assert torch.equal(got[0], image[0, :, 4:60, 20:76])


@pytest.mark.parametrize("size", [16, 40, 90])
def test_scaling_in_memory_is_pillows(size):
    """Pillow computes in fixed point, so values may be off by one."""
    image = noise(1, 3, 48, 64)
    crop = RandomResizedCrop(size)
    picture = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    for box in ((0, 0, 48, 64), (5, 7, 30, 41), (10, 20, 3, 4)):
        difference = crop._scaled(image[0], box).int() - crop._scaled(picture, box).int()
        assert difference.abs().max() <= 1
    assert torch.equal(pixels(picture), image[0])


# Errors.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, r"loader: batch_size must be at least 1; got 0"),
        ({"seed": -1}, r"loader: seed must be at least 0; got -1"),
        ({"epoch": -1}, r"loader: epoch must be at least 0; got -1"),
        ({"world": 0}, r"loader: world must be at least 1; got 0"),
        ({"rank": 2, "world": 2}, r"loader: rank must be less than world = 2; got 2"),
        ({"batch_size": 7, "world": 2}, r"loader: a batch of 7 images cannot be shared equally by 2 processes"),
        ({"world": 60}, r"loader: split has 50 images; expected at least one for each of 60 processes"),
    ],
)
def test_bad_values_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        loader(numbered(50), **({"batch_size": 8, "train": True} | NOTHING | change))


# Colours --------------------------------------------------------------------------------------------------------------


def test_colour_jitter_changes_colours_and_leaves_places_and_test_images_alone():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(60, 190, (4, 3, 6, 6), generator=generator, dtype=torch.uint8)
    plain = RandomShift(padding=0, flip=False)
    jitter = ColourJitter(plain, strength=0.4)
    uniform = torch.rand(4, jitter.draws, generator=generator)
    changed = jitter.train(images, uniform)
    assert changed.dtype == torch.uint8
    assert changed.shape == images.shape
    assert not torch.equal(changed, images)
    assert torch.equal(jitter.test(images), images)
    middle = torch.full_like(uniform, 0.5)  # factors of 1, no light
    assert torch.equal(jitter.train(images, middle), images)
    low = middle.clone()
    low[:, -5] = 0.0  # contrast 1 − strength
    spread = jitter.train(images, low).float().std() / images.float().std()
    assert 0.55 < spread < 0.65
    grey = middle.clone()
    grey[:, -4] = 0.0  # saturation 1 − strength
    colours = [x.float().std(1).mean() for x in (jitter.train(images, grey), images)]
    assert 0.55 < colours[0] / colours[1] < 0.65


def test_colour_jitter_needs_colours():
    with pytest.raises(ValueError, match="images must have 3 channels; got 1"):
        ColourJitter(RandomShift()).train(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.rand(1, 8))
