"""Images in one folder a class: as folders, or all in one zip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .augment import RandomResizedCrop
from .dataset import Dataset, Split
from .errors import CorruptDataError, MissingDataError
from .files import Files, open_files
from .pictures import Images, Pictures, decoded

__all__ = ["LAYOUT", "class_folders", "image_folder", "imagenet", "labelled", "located", "test_folder"]

LAYOUT = "Expected train/<class>/<image> and val/<class>/<image> (or test/…), in a folder or in one zip"

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")
_IMAGENET = "ImageNet itself is at https://www.image-net.org/download.php, for those who register"

#: The paper's size of ImageNet's images.
_SIZE = 256


def imagenet(root: Path | None, image_size: int | None = None) -> Dataset:
    """ImageNet, in one folder a class, for networks that take 256×256 by default."""
    return _dataset("imagenet", root, _SIZE if image_size is None else image_size)


def image_folder(root: Path | None, image_size: int | None = None) -> Dataset:
    """Images of any origin in one folder a class, prepared as ImageNet's.

    Args:
        root: a folder with ``train`` and ``val`` (or ``test``), a zip of such folders, or a folder that holds one zip.
        image_size: that the network takes. By default that of the images, if they are squares of one size, or 256.
    """
    return _dataset("folder", root, image_size)


def _dataset(name: str, root: Path | None, image_size: int | None) -> Dataset:
    files, top = located(name, root, f"{LAYOUT}. {_IMAGENET}" if name == "imagenet" else LAYOUT)
    classes = class_folders(files, f"{top}train/")
    train = labelled(files, f"{top}train/", classes)
    test = labelled(files, test_folder(files, top), classes)
    return Dataset(
        name=name,
        train=train,
        test=test,
        classes=tuple(classes),
        augmentation=RandomResizedCrop(image_size or _common_size(train.images, test.images) or _SIZE),
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )


def located(name: str, root: Path | None, remedy: str) -> tuple[Files, str]:
    """The files of a data set, and the folder among them (which may be the root, "") that holds "train/"."""
    if root is None:
        raise MissingDataError(name, "data_root (--data-root) must say where it is", remedy)
    zips = sorted(root.glob("*.zip")) if root.is_dir() and not (root / "train").is_dir() else []
    files = open_files(zips[0] if len(zips) == 1 else root, remedy)
    tops = [folder.removesuffix("train/") for folder in files.folders if f"/{folder}".endswith("/train/")]
    if not tops:
        found = ", ".join(sorted({name.split("/")[0] for name in (*files.files, *files.folders)})[:8])
        raise MissingDataError(files.where("train"), f"is missing; there is: {found or 'nothing'}", remedy)
    return files, min(tops, key=lambda folder: (folder.count("/"), folder))


def test_folder(files: Files, top: str) -> str:
    """The folder of the images to test with."""
    for folder in (f"{top}val/", f"{top}test/"):
        if folder in files.folders:
            return folder
    raise MissingDataError(files.where(f"{top}val"), "is missing, and so is test", LAYOUT)


def class_folders(files: Files, folder: str) -> list[str]:
    """The names of the folders in a folder, sorted: the classes."""
    depth = folder.count("/") + 1
    classes = sorted(f[len(folder) : -1] for f in files.folders if f.startswith(folder) and f.count("/") == depth)
    if not classes:
        raise CorruptDataError(files.where(folder), "has no folders, which would be the classes", LAYOUT)
    return classes


def labelled(files: Files, folder: str, classes: Sequence[str]) -> Split:
    """The images of the folders in ``folder``, which must be those of the classes, at least one image in each."""
    numbers = {name: number for number, name in enumerate(classes)}
    unknown = [name for name in class_folders(files, folder) if name not in numbers]
    if unknown:
        raise CorruptDataError(files.where(folder + unknown[0]), "is no class of the training images", LAYOUT)
    names = [name for name in files.files if name.startswith(folder) and name.lower().endswith(_EXTENSIONS)]
    beside = [name for name in names if "/" not in name[len(folder) :]]
    if beside:
        raise CorruptDataError(files.where(beside[0]), "lies beside the folders of the classes, so it has none", LAYOUT)
    labels = torch.tensor([numbers[name[len(folder) :].split("/", 1)[0]] for name in names], dtype=torch.int64)
    empty = (torch.bincount(labels, minlength=len(classes)) == 0).nonzero().flatten().tolist()
    if empty:
        raise MissingDataError(files.where(folder + classes[empty[0]]), "has no images", LAYOUT)
    return Split(decoded(Pictures(files, names)), labels)


def _common_size(*splits: Images) -> int | None:
    """The side of the images, if they are squares of one size."""
    sizes = {side for images in splits if isinstance(images, Tensor) for side in images.shape[-2:]}
    return sizes.pop() if len(sizes) == 1 and all(isinstance(images, Tensor) for images in splits) else None
