"""CIFAR-10 and CIFAR-100, from their original files: unpacked, or still in their archive."""

from __future__ import annotations

import codecs
import gzip
import io
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .archives import ARCHIVES
from .augment import RandomShift
from .dataset import Dataset, Split
from .errors import CorruptDataError, MissingDataError
from .resize import resized

__all__ = ["cifar10", "cifar100"]

_SIZE = 32


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
        return file.read_bytes()
    except FileNotFoundError as error:
        raise MissingDataError(file, "is missing", remedy) from error


def _unpack(archive: Path, kind: _Kind, wanted: Sequence[str], remedy: str) -> dict[str, bytes]:
    """The wanted files of an archive, which is read once from its beginning to its end."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(archive) as unzipped:
            with tarfile.open(fileobj=unzipped, mode="r|") as tar:
                for member in tar:
                    folder, _, name = member.name.removeprefix("./").rpartition("/")
                    file = tar.extractfile(member) if folder == kind.folder and name in wanted else None
                    if file is not None:
                        found[name] = file.read()
            while unzipped.read(1 << 20):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        size = f"{archive.stat().st_size:,} of {ARCHIVES[kind.name].size:,} bytes"
        raise CorruptDataError(archive, f"is truncated or damaged ({size}: {error})", remedy) from error
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CorruptDataError(archive, f"does not hold {kind.folder}/{missing[0]}", remedy)
    return found


class _Unpickler(pickle.Unpickler):
    """Reads what these files hold, arrays among lists and strings, and refuses to call anything else."""

    _allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        # The function that makes an empty array, whose module has moved in the course of time.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("_codecs", "encode"): codecs.encode,  # bytes, as Python 3 writes them for Python 2
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it would call {module}.{name}, which is refused")
        return self._allowed[module, name]


def _unpickle(content: bytes, file: Path, remedy: str) -> dict[str, Any]:
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        problem = f"is truncated or damaged ({len(content):,} bytes: {str(error) or type(error).__name__})"
        raise CorruptDataError(file, problem, remedy) from error
    if not isinstance(loaded, dict):
        raise CorruptDataError(file, f"holds a {type(loaded).__name__}; expected a dictionary", remedy)
    return loaded


def _rows(batch: dict[str, Any], key: str, classes: int, file: Path, remedy: str) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels (N,) of one file."""
    data, labels = batch.get("data"), batch.get(key)
    row = 3 * _SIZE * _SIZE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != row:
        kind = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise CorruptDataError(file, f"holds {kind} under 'data'; expected uint8 (N, {row})", remedy)
    if not isinstance(labels, list) or len(labels) != len(data):
        came = f"{len(labels)} labels" if isinstance(labels, list) else type(labels).__name__
        raise CorruptDataError(file, f"holds {came} under {key!r}; expected a list of {len(data)}", remedy)
    wrong = [label for label in labels if not isinstance(label, int) or not 0 <= label < classes]
    if wrong:
        raise CorruptDataError(file, f"has the label {wrong[0]!r}; expected 0 to {classes - 1}", remedy)
    images = torch.from_numpy(np.ascontiguousarray(data)).view(-1, 3, _SIZE, _SIZE)
    return images, torch.tensor(labels, dtype=torch.int64)
