"""The pictures of a domain: read from a folder, or drawn."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ....errors import unknown_choice
from ...data.errors import CorruptDataError, MissingDataError
from ...files import DamagedFileWarning
from ..images import PictureError, find_pictures, read_picture
from .config import TranslationConfig

__all__ = ["DRAWN", "Domain", "Pairs", "fitted", "load_domains"]

#: Of a folder that has no pictures to test with beside it, one in so many is kept for that.
_HELD_OUT = 10

#: So many pictures of each kind of drawing, for training and for testing.
_DRAWINGS = (24, 8)


@dataclass(frozen=True)
class Domain:
    """The pictures of a domain, each uint8 (3, H, W) with a shorter side of the size that the networks take.

    Args:
        name: of the domain.
        train, test: its pictures.
    """

    name: str
    train: Sequence[Tensor]
    test: Sequence[Tensor]


@dataclass(frozen=True)
class Pairs:
    """The batches of a stretch of training: pictures of A and of B, unpaired, each in a random order of its own.

    What comes depends on the arguments only. The batches of all ``world`` processes, joined, are those of one.
    """

    a: Domain
    b: Domain
    size: int
    batch_size: int
    count: int
    start: int
    seed: int
    rank: int = 0
    world: int = 1

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(self.start, self.start + self.count):
            yield self._batch("a", self.a.train, step), self._batch("b", self.b.train, step)

    def _batch(self, which: str, images: Sequence[Tensor], step: int) -> Tensor:
        share = range(self.batch_size * self.rank // self.world, self.batch_size * (self.rank + 1) // self.world)
        views = torch.rand(self.batch_size, 3, generator=_generator("view", which, self.seed, step)).tolist()
        chosen = []
        for index in share:
            turn, place = divmod(step * self.batch_size + index, len(images))
            order = torch.randperm(len(images), generator=_generator("order", which, self.seed, turn))
            chosen.append(_cut(images[int(order[place])], self.size, *views[index]))
        return _scaled(torch.stack(chosen))


def fitted(image: Tensor, size: int) -> Tensor:
    """A picture (3, H, W) from 0 to 1, scaled until its shorter side is ``size``, as uint8."""
    height, width = image.shape[-2:]
    factor = size / min(height, width)
    target = (max(round(height * factor), size), max(round(width * factor), size))
    if (height, width) != target:
        image = interpolate(image[None], target, mode="bicubic", antialias=True)[0]
    return image.clamp(0, 1).mul(255).round().to(torch.uint8)


def centres(images: Sequence[Tensor], size: int) -> Tensor:
    """The squares in the middle of pictures, (N, 3, size, size) from −1 to 1."""
    return _scaled(torch.stack([_cut(image, size, 0.5, 0.5, 1.0) for image in images]))


def load_domains(config: TranslationConfig) -> tuple[Domain, Domain]:
    """The two domains of a configuration.

    Raises:
        DataError: a folder is missing, or has no picture that can be read. Single broken ones are left out, with a
            :class:`DamagedFileWarning` that names them.
    """
    loaded = [
        _load(name, folder, config)
        for name, folder in ((config.domain_a, config.folder_a), (config.domain_b, config.folder_b))
    ]
    return loaded[0], loaded[1]


def test_folder(folder: Path) -> Path | None:
    """The pictures to test with that belong to those of …/train/NAME: …/test/NAME, if it is there."""
    beside = folder.parent.parent / "test" / folder.name
    return beside if folder.parent.name == "train" and beside.is_dir() else None


def read_folder(folder: Path, size: int) -> list[Tensor]:
    """The pictures in a folder, in the order of their names."""
    if not folder.is_dir():
        raise MissingDataError(folder, "is not a folder; expected one with pictures")
    paths = find_pictures(folder)

    def read(path: Path) -> Tensor | PictureError:
        try:
            return fitted(read_picture(path).pixels, size)
        except PictureError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(read, paths))
    for error in found:
        if isinstance(error, PictureError):
            warnings.warn(f"left out: {error}", DamagedFileWarning, stacklevel=2)
    images = [image for image in found if isinstance(image, Tensor)]
    if not images:
        broken = f"; the {len(paths)} files there cannot be read" if paths else ""
        raise CorruptDataError(folder, f"has no pictures{broken}")
    return images


def _load(name: str, folder: str | None, config: TranslationConfig) -> Domain:
    size = config.image_size
    if folder is None and config.data_root is None:
        if name not in DRAWN:
            problem = unknown_choice("domain", name, DRAWN)
            raise MissingDataError(name, f"has no folder, and is nothing that can be drawn ({problem})")
        training, testing = _DRAWINGS
        images = [
            fitted(DRAWN[name](size, torch.rand(8, generator=_generator("drawing", name, number))), size)
            for number in range(training + testing)
        ]
        return Domain(name, images[:training], images[training:])
    place = Path(folder) if folder is not None else Path(config.data_root or "") / "train" / name
    images = read_folder(place, size)
    beside = test_folder(place)
    if beside is not None:
        return Domain(name, images, read_folder(beside, size))
    if len(images) < 2:
        raise CorruptDataError(place, "has only one picture; expected at least two, as one is kept for testing")
    test = images[::-_HELD_OUT][::-1]
    return Domain(name, [image for i, image in enumerate(reversed(images)) if i % _HELD_OUT][::-1], test)


def _cut(image: Tensor, size: int, down: float, right: float, mirror: float) -> Tensor:
    """Cut a square out of a picture at a place between 0 and 1, and mirror it if the last number is below a half."""
    top, left = (int(share * (side - size + 1)) for share, side in zip((down, right), image.shape[-2:], strict=True))
    cut = image[:, top : top + size, left : left + size]
    return cut.flip(-1) if mirror < 0.5 else cut


def _scaled(images: Tensor) -> Tensor:
    """Pixels of type uint8 as float32 from −1 to 1."""
    return images.to(torch.float32).div_(127.5).sub_(1)


def _generator(*parts: str | int) -> torch.Generator:
    """A generator of its own for every purpose: neighbouring seeds and steps have nothing in common."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def _hills(size: int, random: Tensor) -> Tensor:
    """A blue sky over green hills, smooth: something like a photograph."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    r = random.tolist()
    horizon = 0.35 + 0.3 * r[0] + 0.1 * torch.sin(2 * math.pi * ((1 + 2 * r[1]) * x + r[2]))
    land = torch.sigmoid((y - horizon) * size / 3)
    shade = 0.75 + 0.25 * torch.sin(2 * math.pi * (2 * x * r[3] + y + r[4]))
    sky = torch.stack([0.5 + 0.3 * y, 0.65 + 0.2 * y, 0.95 - 0.1 * y])
    green = torch.stack([0.2 + 0.2 * r[5] * shade, 0.35 + 0.3 * shade, 0.15 + 0.1 * shade])
    return sky * (1 - land) + green * land


def _strokes(size: int, random: Tensor) -> Tensor:
    """Wavy strokes of ochre and dark blue: something like a painting."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    r = random.tolist()
    bend = torch.sin(2 * math.pi * (x * (1 + r[0]) + r[1])) * 0.15
    wave = torch.sin(2 * math.pi * ((5 + 3 * r[2]) * (y + bend) + 2 * r[3] * x))
    ink = torch.sigmoid(4 * wave)
    ochre, blue = torch.tensor([0.85, 0.6 + 0.15 * r[4], 0.2]), torch.tensor([0.1, 0.15, 0.35 + 0.2 * r[5]])
    return ochre[:, None, None] * ink + blue[:, None, None] * (1 - ink)


#: Domains that need no files, by name: a picture (3, size, size) from a size and eight random numbers.
DRAWN: dict[str, Callable[[int, Tensor], Tensor]] = {"hills": _hills, "strokes": _strokes}
