"""The data of the experiments, and the registry of their names.

To add a data set, write a function of its root and of an image size that returns a :class:`Dataset`, and name it in
:data:`DATASETS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...arguments import require_integer
from ...errors import unknown_choice
from .archives import ARCHIVES, fetch
from .cifar import cifar10, cifar100
from .dataset import Dataset, Split
from .digest import digest
from .digits import digits
from .download import DownloadError, download
from .errors import CorruptDataError, DataError, MissingDataError
from .image_folder import image_folder, imagenet
from .loader import Loader, loader
from .tiny_imagenet import tiny_imagenet

__all__ = [
    "ARCHIVES",
    "DATASETS",
    "MANY",
    "CorruptDataError",
    "DataError",
    "Dataset",
    "DownloadError",
    "Loader",
    "MissingDataError",
    "Split",
    "digest",
    "download",
    "fetch",
    "load",
    "loader",
]

#: Data sets by name.
DATASETS: dict[str, Callable[[Path | None, int | None], Dataset]] = {
    "digits": digits,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "imagenet": imagenet,
    "folder": image_folder,
}
#: Of these there are many under one name, so that a run is named by a digest of its files.
MANY = frozenset({"folder", "imagenet", "tiny_imagenet"})


def load(
    name: str,
    root: Path | str | None = None,
    *,
    subset: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set, complete or in part.

    Args:
        name: in :data:`DATASETS`. "digits" comes with scikit-learn; "cifar10", "cifar100" and "tiny_imagenet" are read
            from their public archives (see :func:`fetch`), packed or unpacked; "imagenet" and "folder" are
            ``train/<class>/<image>`` and ``val/<class>/<image>``, as folders or in one zip.
        root: where the files are; none for the digits.
        subset: the number of training images, as many of each class; ``None`` is all. Test images are always all.
        image_size: height and width that the network takes; ``None`` is that of the data.
        seed: of the choice of a subset.

    >>> data = load("digits", subset=100)
    >>> data.train.images.shape, data.train.labels.bincount().tolist()
    (torch.Size([100, 1, 8, 8]), [10, 10, 10, 10, 10, 10, 10, 10, 10, 10])
    """
    if name not in DATASETS:
        raise unknown_choice("data", name, DATASETS)
    if image_size is not None:
        require_integer("load", "image_size", image_size, minimum=1)
    data = DATASETS[name](None if root is None else Path(root).expanduser(), image_size)
    return data if subset is None else data.subset(subset, seed)
