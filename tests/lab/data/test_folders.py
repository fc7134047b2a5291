"""Images in folders and zips, Tiny ImageNet in both of its layouts, and everything that can be wrong with them."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from eigengrad.lab.data import CorruptDataError, MissingDataError, load, loader
from eigengrad.lab.data import pictures as pictures_module
from eigengrad.lab.data.pictures import Pictures

CLASSES = ("ant", "bee", "cat")


def colour(label: int, index: int) -> tuple[int, int, int]:
    return 40 * label + 10, 20 * index + 5, 90


def save(path: Path, rgb: tuple[int, int, int], size: tuple[int, int] = (12, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, rgb).save(path)


def image_folder(
    root: Path, *, train: int = 4, test: int = 2, size: tuple[int, int] = (12, 12), val: str = "val"
) -> Path:
    """One colour an image, PNG, so that what is read can be told exactly."""
    for split, count in (("train", train), (val, test)):
        for label, name in enumerate(CLASSES):
            for index in range(count):
                save(root / split / name / f"{index}.png", colour(label, index), size)
    return root


def tiny_imagenet(root: Path) -> Path:
    """The published layout: words, boxes, an unlabelled test folder, and a table of the validation images' classes."""
    root = root / "tiny-imagenet-200"
    for label, wnid in enumerate(("n001", "n002", "n003")):
        for index in range(4):
            save(root / f"train/{wnid}/images/{wnid}_{index}.png", colour(label, index), (64, 64))
        (root / f"train/{wnid}/{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    rows = []
    for index, label in enumerate((2, 0, 1, 1, 0, 2)):
        save(root / f"val/images/val_{index}.png", colour(label, index), (64, 64))
        rows.append(f"val_{index}.png\tn00{label + 1}\t0\t32\t44\t62\n")
    (root / "val/val_annotations.txt").write_text("".join(rows))
    save(root / "test/images/test_0.png", (1, 2, 3), (64, 64))
    (root / "wnids.txt").write_text("n003\nn001\nn002\n")
    (root / "words.txt").write_text("n000\tnothing\nn001\tgoldfish, Carassius auratus\nn002\tbullfrog\nn003\tsnail\n")
    return root


def zipped(root: Path, file: Path, *, folders: bool = True) -> Path:
    """The files of a folder as a zip, with or without entries for the folders."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(root.rglob("*")):
            if folders or path.is_file():
                archive.write(path, path.relative_to(root))
    return file


def check(data, train: int = 4, test: int = 2) -> None:
    assert data.classes == CLASSES
    for split, count in ((data.train, train), (data.test, test)):
        assert split.images.shape == (3 * count, 3, 12, 12)
        assert split.labels.tolist() == [label for label in range(3) for _ in range(count)]
        for i, label in enumerate(split.labels.tolist()):
            assert split.images[i, :, 3, 4].tolist() == list(colour(label, i % count))


# What is right.


@pytest.mark.parametrize("val", ["val", "test"])
def test_plain_folders(val, tmp_path):
    data = load("folder", image_folder(tmp_path, val=val))
    check(data)
    assert (data.name, data.channels, data.image_size) == ("folder", 3, 12)


@pytest.mark.parametrize("folders", [True, False])
def test_one_zip(folders, tmp_path):
    file = zipped(image_folder(tmp_path / "images"), tmp_path / "images.zip", folders=folders)
    check(load("folder", file))


def test_a_folder_that_holds_one_zip(tmp_path):
    (tmp_path / "data").mkdir()
    zipped(image_folder(tmp_path / "images"), tmp_path / "data/any_name.zip")
    check(load("folder", tmp_path / "data"))


def test_folders_below_a_folder(tmp_path):
    image_folder(tmp_path / "set/v2")
    check(load("folder", tmp_path))
    check(load("folder", zipped(tmp_path / "set", tmp_path / "set.zip")))


def test_what_systems_leave_behind_is_no_image(tmp_path):
    root = image_folder(tmp_path / "images")
    (root / "train/ant/.DS_Store").write_bytes(b"x")
    (root / "train/ant/._0.png").write_bytes(b"x")
    (root / "train/.cache").mkdir()
    (root / "train/readme.txt").write_text("x")
    (root / "train/ant/Thumbs.db").write_bytes(b"x")
    (root / "__MACOSX/train/ant").mkdir(parents=True)
    (root / "__MACOSX/train/ant/0.png").write_bytes(b"x")
    check(load("folder", root))
    check(load("folder", zipped(root, tmp_path / "images.zip")))


def test_links_to_folders_are_followed(tmp_path):
    image_folder(tmp_path / "images")
    (tmp_path / "linked").mkdir()
    for split in ("train", "val"):
        (tmp_path / "linked" / split).symlink_to(tmp_path / "images" / split)
    check(load("folder", tmp_path / "linked"))


def test_grey_and_transparent_images_become_coloured(tmp_path):
    root = image_folder(tmp_path)
    Image.new("L", (12, 12), 77).save(root / "train/ant/0.png")
    Image.new("RGBA", (12, 12), (1, 2, 3, 128)).save(root / "train/ant/1.png")
    Image.new("P", (12, 12), 0).save(root / "train/ant/2.png")
    images = load("folder", root).train.images
    assert images[0, :, 0, 0].tolist() == [77, 77, 77]
    assert images[1, :, 0, 0].tolist() == [1, 2, 3]
    assert images.shape == (12, 3, 12, 12)


def test_a_size_is_that_of_the_network_not_of_the_stored_images(tmp_path):
    data = load("folder", image_folder(tmp_path), image_size=8)
    assert data.image_size == 8
    assert data.train.images.shape[-1] == 12
    assert load("imagenet", tmp_path).image_size == 256


def options(data) -> dict:
    return {"augmentation": data.augmentation, "mean": data.mean, "std": data.std}


def test_images_of_different_sizes_stay_in_their_files(tmp_path):
    root = image_folder(tmp_path, size=(20, 16))
    save(root / "train/bee/0.png", colour(1, 0), (40, 10))
    data = load("folder", root, image_size=8)
    assert isinstance(data.train.images, Pictures)
    assert isinstance(data.test.images, torch.Tensor)
    batches = list(loader(data.train, 5, train=False, **options(data)))
    assert [tuple(x.shape) for x, _ in batches] == [(4, 3, 8, 8)] * 3
    std = torch.tensor(data.std).reshape(3, 1, 1)
    mean = torch.tensor(data.mean).reshape(3, 1, 1)
    pixels = torch.cat([x for x, _ in batches]) * std + mean
    for image, (label, index) in zip(pixels, [(c, i) for c in range(3) for i in range(4)], strict=True):
        expected = torch.tensor(colour(label, index)).reshape(3, 1, 1).expand(3, 8, 8) / 255
        torch.testing.assert_close(image, expected, rtol=0, atol=1e-6)
    assert load("folder", root).image_size == 256


def test_images_that_are_too_many_stay_in_their_files(tmp_path, monkeypatch):
    root = image_folder(tmp_path)
    monkeypatch.setattr(pictures_module, "MEMORY", 12 * 12 * 3 * 12 - 1)
    data = load("folder", root)
    assert isinstance(data.train.images, Pictures)
    assert isinstance(data.test.images, torch.Tensor)


def test_files_and_memory_give_the_same_batches(tmp_path, monkeypatch):
    """Noise rather than colours, so that a wrong place would show; Pillow and torch may round differently by one."""
    generator = torch.Generator().manual_seed(0)
    for split in ("train", "val"):
        for name in CLASSES:
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(4):
                noise = torch.randint(0, 256, (24, 24, 3), dtype=torch.uint8, generator=generator).numpy()
                Image.fromarray(noise).save(tmp_path / split / name / f"{index}.png")
    memory = load("folder", tmp_path, image_size=16)
    monkeypatch.setattr(pictures_module, "MEMORY", 0)
    files = load("folder", tmp_path, image_size=16)
    assert isinstance(files.train.images, Pictures)
    scale = torch.tensor(memory.std).reshape(3, 1, 1) * 255
    for train in (True, False):
        pairs = [loader(d.train, 4, train=train, seed=1, epoch=2, **options(memory)) for d in (memory, files)]
        for (x, y), (x_files, y_files) in zip(*pairs, strict=True):
            assert torch.equal(y, y_files)
            assert ((x - x_files) * scale).abs().max() < 1.01
    subset = files.subset(6)
    assert subset.train.labels.tolist() == memory.subset(6).train.labels.tolist()


def test_stopping_in_the_middle_of_an_epoch_of_files_ends_their_threads(tmp_path, monkeypatch):
    import threading

    monkeypatch.setattr(pictures_module, "MEMORY", 0)
    data = load("folder", image_folder(tmp_path))
    before = threading.active_count()
    batches = iter(loader(data.train, 2, train=True, **options(data)))
    next(batches)
    batches.close()
    assert threading.active_count() == before


# What is wrong.


def test_a_missing_root(tmp_path):
    with pytest.raises(
        MissingDataError, match=r"nowhere: does not exist; expected a folder or a zip\. Expected train/<class>"
    ):
        load("folder", tmp_path / "nowhere")


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(
        MissingDataError, match=r"train: is missing; there is: a\.txt, notes\. Expected train/<class>/<image>"
    ):
        load("folder", tmp_path)


def test_an_empty_folder(tmp_path):
    with pytest.raises(MissingDataError, match=r"train: is missing; there is: nothing"):
        load("imagenet", tmp_path)


def test_two_zips_are_one_too_many(tmp_path):
    for name in ("a", "b"):
        zipped(image_folder(tmp_path / name), tmp_path / f"data_{name}.zip")
        shutil.rmtree(tmp_path / name)
    with pytest.raises(MissingDataError, match=r"there is: data_a\.zip, data_b\.zip"):
        load("folder", tmp_path)


def test_no_test_images(tmp_path):
    root = image_folder(tmp_path)
    shutil.rmtree(root / "val")
    with pytest.raises(MissingDataError, match=r"val: is missing, and so is test"):
        load("folder", root)


def test_images_without_class_folders(tmp_path):
    root = image_folder(tmp_path)
    shutil.rmtree(root / "val")
    save(root / "val/ILSVRC2012_val_00000001.png", (1, 2, 3))
    with pytest.raises(CorruptDataError, match=r"val/?: has no folders, which would be the classes"):
        load("folder", root)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_class_without_images(split, packed, tmp_path):
    root = image_folder(tmp_path / "images")
    for file in (root / split / "bee").iterdir():
        file.unlink()
    (root / split / "bee/notes.txt").write_text("no image")
    with pytest.raises(MissingDataError, match=rf"{split}/bee: has no images"):
        load("folder", zipped(root, tmp_path / "images.zip") if packed else root)


def test_an_image_beside_the_class_folders(tmp_path):
    root = image_folder(tmp_path)
    save(root / "train/stray.png", (1, 2, 3))
    with pytest.raises(CorruptDataError, match=r"train/stray\.png: lies beside the folders of the classes"):
        load("folder", root)


def test_a_link_to_nothing_is_named(tmp_path):
    root = image_folder(tmp_path)
    for split in ("train", "val"):
        (root / split / "dog").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MissingDataError, match=r"/dog: is a link to .*elsewhere, which does not exist"):
        load("folder", root)


def test_a_class_that_is_not_in_training(tmp_path):
    root = image_folder(tmp_path)
    save(root / "val/dog/0.png", (1, 2, 3))
    with pytest.raises(CorruptDataError, match=r"val/dog: is no class of the training images"):
        load("folder", root)


def damage(content: bytes, kind: str) -> bytes:
    return {"empty": b"", "text": b"<html>404</html>", "truncated": content[: len(content) // 2]}[kind]


@pytest.mark.parametrize("kind", ["empty", "text", "truncated"])
@pytest.mark.parametrize("extension", ["png", "jpg"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_image_that_cannot_be_read_is_named(kind, extension, packed, tmp_path):
    root = image_folder(tmp_path / "images")
    noise = torch.randint(0, 256, (12, 12, 3), dtype=torch.uint8).numpy()
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, {"png": "PNG", "jpg": "JPEG"}[extension])
    (root / f"train/cat/broken.{extension}").write_bytes(damage(buffer.getvalue(), kind))
    where = zipped(root, tmp_path / "images.zip") if packed else root
    with pytest.raises(
        CorruptDataError, match=rf"train/cat/broken\.{extension}: is not an image that can be read"
    ) as caught:
        load("folder", where)
    assert str(where) in str(caught.value)


def test_an_image_that_cannot_be_read_is_named_while_training(tmp_path, monkeypatch):
    root = image_folder(tmp_path)
    (root / "train/cat/1.png").write_bytes(b"nothing")
    monkeypatch.setattr(pictures_module, "MEMORY", 0)
    data = load("folder", root)
    with pytest.raises(CorruptDataError, match=r"train/cat/1\.png: is not an image that can be read"):
        list(loader(data.train, 4, train=True, **options(data)))


def test_a_truncated_zip(tmp_path):
    file = zipped(image_folder(tmp_path / "images"), tmp_path / "images.zip")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CorruptDataError, match=r"images\.zip: is not a zip, or a truncated one"):
        load("folder", file)


def test_a_flipped_bit_in_a_zip_is_noticed(tmp_path):
    file = zipped(image_folder(tmp_path / "images"), tmp_path / "images.zip")
    with zipfile.ZipFile(file) as archive:
        entry = archive.getinfo("train/bee/2.png")
    content = bytearray(file.read_bytes())
    content[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"train/bee/2\.png: cannot be read from the zip \(Bad CRC-32"):
        load("folder", file)


# Tiny ImageNet.


def check_tiny(data) -> None:
    assert data.classes == ("goldfish, Carassius auratus", "bullfrog", "snail")
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.labels.tolist() == [2, 0, 1, 1, 0, 2]
    for i, label in enumerate(data.test.labels.tolist()):
        assert data.test.images[i, :, 0, 0].tolist() == list(colour(label, i))
    assert data.image_size == 64
    assert data.augmentation.padding == 8


def test_tiny_imagenet_as_published(tmp_path):
    root = tiny_imagenet(tmp_path)
    check_tiny(load("tiny_imagenet", root))
    check_tiny(load("tiny_imagenet", tmp_path))


def test_tiny_imagenet_in_its_archive(tmp_path):
    tiny_imagenet(tmp_path / "unpacked")
    (tmp_path / "root").mkdir()
    file = zipped(tmp_path / "unpacked", tmp_path / "root/tiny-imagenet-200.zip")
    check_tiny(load("tiny_imagenet", file))
    check_tiny(load("tiny_imagenet", tmp_path / "root"))


def test_tiny_imagenet_sorted_into_classes(tmp_path):
    file = zipped(image_folder(tmp_path / "images"), tmp_path / "images.zip")
    data = load("tiny_imagenet", file)
    check(data)
    assert data.augmentation.padding == 1


def test_tiny_imagenet_of_another_size(tmp_path):
    data = load("tiny_imagenet", tiny_imagenet(tmp_path), image_size=32)
    assert data.train.images.shape == (12, 3, 32, 32)
    assert data.test.images.shape == (6, 3, 32, 32)
    assert (data.image_size, data.augmentation.padding) == (32, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_0.png\tn009\t0\t0\t1\t1\n", r"val_annotations\.txt: line 7 has the class 'n009', which is not in train"),
        ("val_0.png\n", r"val_annotations\.txt: line 7 has the class '', which is not in train"),
        ("val_9.png\tn001\t0\t0\t1\t1\n", r"images/val_9\.png: is missing; line 7 of val_annotations\.txt names it"),
    ],
)
def test_a_wrong_line_of_the_annotations_is_named(line, message, tmp_path):
    root = tiny_imagenet(tmp_path)
    table = root / "val/val_annotations.txt"
    table.write_text(table.read_text() + line)
    with pytest.raises((CorruptDataError, MissingDataError), match=message):
        load("tiny_imagenet", root)


def test_an_image_without_annotation_is_named(tmp_path):
    root = tiny_imagenet(tmp_path)
    save(root / "val/images/val_7.png", (1, 2, 3), (64, 64))
    with pytest.raises(CorruptDataError, match=r"images/val_7\.png: has no line in val_annotations\.txt"):
        load("tiny_imagenet", root)


def test_images_of_different_sizes_are_not_tiny_imagenet(tmp_path):
    root = tiny_imagenet(tmp_path)
    save(root / "train/n002/images/odd.png", (1, 2, 3), (65, 64))
    with pytest.raises(
        CorruptDataError, match=r"has images of different sizes; expected 64×64\. Get tiny-imagenet-200\.zip"
    ):
        load("tiny_imagenet", root)


def test_a_truncated_archive_of_tiny_imagenet_says_how_to_get_it(tmp_path):
    (tmp_path / "tiny-imagenet-200.zip").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(
        CorruptDataError, match=r"truncated one .*Get tiny-imagenet-200\.zip \(248 MB\) from https://cs231n"
    ):
        load("tiny_imagenet", tmp_path)
