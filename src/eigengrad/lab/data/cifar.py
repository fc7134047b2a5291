"""CIFAR-10 and CIFAR-100, from their original files: unpacked, or still in their archive."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from ..files import read_regular_file
from .archives import ARCHIVES
from .augment import RandomShift
from .dataset import Dataset, Split
from .errors import CorruptDataError, MissingDataError
from .pickles import ByteArray, read_pickle
from .resize import resized

__all__ = ["cifar10", "cifar100"]

_SIZE = 32

#: Bytes of one file, and of all that an archive unpacks to. The largest file of CIFAR has 155 MB (half as much again if
#: Python 3 has written it with protocol 2), an archive 186 MB.
_LARGEST_FILE = 256 << 20
_LARGEST_ARCHIVE = 384 << 20


@dataclass(frozen=True)
class _Kind:
    """How the two sets differ."""

    name: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    labels: str
    names: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


_CIFAR10 = _Kind(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels="labels",
    names="label_names",
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)

_CIFAR100 = _Kind(
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    meta="meta",
    labels="fine_labels",
    names="fine_label_names",
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def cifar10(root: Path | None, image_size: int | None = None) -> Dataset:
    """CIFAR-10: ``root`` holds ``cifar-10-batches-py`` or ``cifar-10-python.tar.gz``, or is one of the two."""
    return _cifar(_CIFAR10, root, image_size)


def cifar100(root: Path | None, image_size: int | None = None) -> Dataset:
    """CIFAR-100: ``root`` holds ``cifar-100-python`` or ``cifar-100-python.tar.gz``, or is one of the two."""
    return _cifar(_CIFAR100, root, image_size)


def _cifar(kind: _Kind, root: Path | None, image_size: int | None) -> Dataset:
    remedy = ARCHIVES[kind.name].remedy(kind.name, root)
    where, files = _files(kind, root, remedy)
    contents = {name: _unpickle(content, where / name, remedy) for name, content in files.items()}
    classes = contents[kind.meta].get(kind.names)
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise CorruptDataError(where / kind.meta, f"holds no list of names under {kind.names!r}", remedy)
    splits = []
    for names in (kind.train, (kind.test,)):
        parts = [_rows(contents[name], kind.labels, len(classes), where / name, remedy) for name in names]
        images, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        splits.append(Split(resized(images, image_size), labels))
    return Dataset(
        name=kind.name,
        train=splits[0],
        test=splits[1],
        classes=tuple(classes),
        augmentation=RandomShift(padding=(image_size or _SIZE) // 8),
        mean=kind.mean,
        std=kind.std,
    )


def _files(kind: _Kind, root: Path | None, remedy: str) -> tuple[Path, dict[str, bytes]]:
    """Where the files are (the folder, or the folder in the archive), and what they hold."""
    if root is None:
        raise MissingDataError(kind.name, "data_root (--data-root) must say where it is", remedy)
    archive = root if root.is_file() else root / ARCHIVES[kind.name].file
    wanted = (*kind.train, kind.test, kind.meta)
    for folder in (root / kind.folder, root):
        if any((folder / name).is_file() for name in wanted):
            return folder, {name: _read(folder / name, remedy) for name in wanted}
    if archive.is_file():
        return archive / kind.folder, _unpack(archive, kind, wanted, remedy)
    problem = f"holds neither {kind.folder} nor {archive.name}" if root.exists() else "does not exist"
    raise MissingDataError(root, problem, remedy)


def _read(file: Path, remedy: str) -> bytes:
    try:
        return read_regular_file(file, _LARGEST_FILE)
    except FileNotFoundError as error:
        raise MissingDataError(file, "is missing", remedy) from error
    except ValueError as error:
        raise CorruptDataError(file, str(error), remedy) from error


class _Limited:
    """A stream that ends in an error after so many bytes: an archive of a megabyte can unpack to a gigabyte."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._limit, self._left = stream, limit, limit

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes."""
        block = self._stream.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {self._limit:,} bytes")
        return block


def _unpack(archive: Path, kind: _Kind, wanted: Sequence[str], remedy: str) -> dict[str, bytes]:
    """The wanted files of an archive, which is read once from its beginning to its end."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(archive) as unzipped:
            stream = _Limited(cast(IO[bytes], unzipped), _LARGEST_ARCHIVE)
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as tar:
                for member in tar:
                    folder, _, name = member.name.removeprefix("./").rpartition("/")
                    # A link is not followed, and no member is read that is larger than a file may be.
                    if folder != kind.folder or name not in wanted or not member.isreg():
                        continue
                    if member.size > _LARGEST_FILE:
                        raise tarfile.ReadError(f"{name} has {member.size:,} bytes; expected at most {_LARGEST_FILE:,}")
                    file = tar.extractfile(member)
                    assert file is not None  # as it is of a regular file
                    found[name] = file.read()
            while stream.read(1 << 20):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, OverflowError) as error:
        size = f"{archive.stat().st_size:,} of {ARCHIVES[kind.name].size:,} bytes"
        raise CorruptDataError(archive, f"is truncated or damaged ({size}: {error})", remedy) from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CorruptDataError(archive, f"does not hold {kind.folder}/{missing[0]}", remedy)
    return found


def _unpickle(content: bytes, file: Path, remedy: str) -> dict[str, Any]:
    try:
        loaded = read_pickle(content)
    except ValueError as error:
        problem = f"is truncated or damaged ({len(content):,} bytes: {str(error) or type(error).__name__})"
        raise CorruptDataError(file, problem, remedy) from error
    if not isinstance(loaded, dict):
        raise CorruptDataError(file, f"holds a {type(loaded).__name__}; expected a dictionary", remedy)
    return loaded


def _rows(batch: dict[str, Any], key: str, classes: int, file: Path, remedy: str) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,) of one file."""
    data, labels = batch.get("data"), batch.get(key)
    row = 3 * _SIZE * _SIZE
    if not isinstance(data, ByteArray) or data.shape is None or len(data.shape) != 2 or data.shape[1] != row:
        kind = f"uint8 {data.shape}" if isinstance(data, ByteArray) else type(data).__name__
        raise CorruptDataError(file, f"holds {kind[:80]} under 'data'; expected uint8 (N, {row})", remedy)
    count = data.shape[0]
    if not isinstance(labels, list) or len(labels) != count:
        came = f"{len(labels)} labels" if isinstance(labels, list) else type(labels).__name__
        raise CorruptDataError(file, f"holds {came} under {key!r}; expected a list of {count}", remedy)
    wrong = [label for label in labels if type(label) is not int or not 0 <= label < classes]
    if wrong:
        shown = f"{wrong[0]}"[:80] if type(wrong[0]) is int else f"of type {type(wrong[0]).__name__}"
        raise CorruptDataError(file, f"has the label {shown}; expected 0 to {classes - 1}", remedy)
    try:
        images = torch.from_numpy(np.ascontiguousarray(data.numpy())).view(-1, 3, _SIZE, _SIZE)
    except ValueError as error:
        raise CorruptDataError(file, f"holds no bytes under 'data' ({error})", remedy) from error
    return images, torch.tensor(labels, dtype=torch.int64)
