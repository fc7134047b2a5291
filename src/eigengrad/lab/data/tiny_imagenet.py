"""Tiny ImageNet: 200 classes of 64×64, as its archive has it, or sorted into one folder a class."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .archives import ARCHIVES
from .augment import RandomShift
from .dataset import Dataset, Split
from .errors import CorruptDataError, MissingDataError
from .files import Files
from .image_folder import class_folders, labelled, located, test_folder
from .pictures import Pictures, decoded
from .resize import resized

__all__ = ["tiny_imagenet"]

_NAME = "tiny_imagenet"
_ANNOTATIONS = "val_annotations.txt"


def tiny_imagenet(root: Path | None, image_size: int | None = None) -> Dataset:
    """Tiny ImageNet; its validation images are the test images, as in the paper.

    Args:
        root: a folder or a zip with ``train/<class>/…`` and either ``val/val_annotations.txt`` and ``val/images/…``, as
            published, or ``val/<class>/…``; or a folder that holds one such zip.
        image_size: to scale the images to.
    """
    remedy = ARCHIVES[_NAME].remedy(_NAME, root)
    files, top = located(_NAME, root, remedy)
    classes = class_folders(files, f"{top}train/")
    folder = test_folder(files, top)
    annotated = f"{folder}{_ANNOTATIONS}" in files.files
    train = labelled(files, f"{top}train/", classes)
    test = _annotated(files, folder, classes) if annotated else labelled(files, folder, classes)
    if not isinstance(train.images, Tensor) or not isinstance(test.images, Tensor):
        raise CorruptDataError(files.where(top), "has images of different sizes; expected 64×64", remedy)
    images = resized(train.images, image_size)
    return Dataset(
        name=_NAME,
        train=Split(images, train.labels),
        test=Split(resized(test.images, image_size), test.labels),
        classes=tuple(_words(files, f"{top}words.txt", classes)),
        augmentation=RandomShift(padding=images.shape[-1] // 8),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
    )


def _annotated(files: Files, folder: str, classes: list[str]) -> Split:
    """The validation images as published: all in one folder, their classes in a table."""
    table = f"{folder}{_ANNOTATIONS}"
    numbers = {name: number for number, name in enumerate(classes)}
    known, names, labels = set(files.files), [], []
    for row, line in enumerate(files.read(table).decode("utf-8", "replace").splitlines(), 1):
        image, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in numbers:
            raise CorruptDataError(files.where(table), f"line {row} has the class {wnid!r}, which is not in train")
        names.append(f"{folder}images/{image}")
        labels.append(numbers[wnid])
        if names[-1] not in known:
            raise MissingDataError(files.where(names[-1]), f"is missing; line {row} of {_ANNOTATIONS} names it")
    unnamed = sorted(name for name in known - set(names) if name.startswith(f"{folder}images/"))
    if unnamed:
        raise CorruptDataError(files.where(unnamed[0]), f"has no line in {_ANNOTATIONS}, which says its class")
    if not names:
        raise CorruptDataError(files.where(table), "is empty; expected a line for each image")
    return Split(decoded(Pictures(files, names)), torch.tensor(labels, dtype=torch.int64))


def _words(files: Files, table: str, classes: list[str]) -> list[str]:
    """What the classes are called, where the table that says so is there."""
    if table not in files.files:
        return classes
    lines = files.read(table).decode("utf-8", "replace").splitlines()
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    return [words.get(name, name) for name in classes]
