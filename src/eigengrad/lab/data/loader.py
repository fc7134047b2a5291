"""Batches of a split, in an order that depends on nothing but the arguments."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from ...arguments import require_integer
from .augment import Augmentation
from .dataset import Split
from .pictures import Images

__all__ = ["Loader", "loader"]

#: Batches of image files that are decoded while the network works.
_AHEAD = 2


@dataclass(frozen=True)
class Loader:
    """An iterable over the batches of one epoch; see :func:`loader`, which makes it."""

    split: Split
    batches: tuple[Tensor, ...]  # the indices of each batch, of all processes together
    train: bool
    augmentation: Augmentation
    mean: Tensor
    std: Tensor
    seed: int
    epoch: int
    rank: int
    world: int

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(self.split.images, Tensor):
            for number in range(len(self)):
                part, uniform = self._part(number)
                yield self._normalised(self._view(part.images, uniform)), part.labels
        else:
            yield from self._decoded_ahead()

    def _decoded_ahead(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of image files, one thread an image."""
        pool = ThreadPoolExecutor(os.cpu_count())
        waiting: deque[tuple[list[Future[Tensor]], Tensor]] = deque()
        try:
            for number in range(len(self)):
                part, uniform = self._part(number)
                singles = zip(part.singles(), uniform.split(1), strict=True)
                views = [pool.submit(self._view, single.images, numbers) for single, numbers in singles]
                waiting.append((views, part.labels))
                if len(waiting) > _AHEAD:
                    yield self._joined(*waiting.popleft())
            while waiting:
                yield self._joined(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _joined(self, views: list[Future[Tensor]], labels: Tensor) -> tuple[Tensor, Tensor]:
        return self._normalised(torch.cat([view.result() for view in views])), labels

    def _part(self, number: int) -> tuple[Split, Tensor]:
        """This process's share of a batch, and its share of the batch's random numbers."""
        indices = self.batches[number]
        share = slice(len(indices) * self.rank // self.world, len(indices) * (self.rank + 1) // self.world)
        generator = _generator("augmentation", self.seed, self.epoch, number)
        uniform = torch.rand(len(indices), self.augmentation.draws, generator=generator)
        return self.split.take(indices[share]), uniform[share]

    def _view(self, images: Images, uniform: Tensor) -> Tensor:
        return self.augmentation.train(images, uniform) if self.train else self.augmentation.test(images)

    def _normalised(self, images: Tensor) -> Tensor:
        images = images.to(torch.float32, memory_format=torch.contiguous_format)
        return images.sub_(self.mean).div_(self.std)


def loader(
    split: Split,
    batch_size: int,
    *,
    train: bool,
    augmentation: Augmentation,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int = 0,
    epoch: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Loader:
    """The batches of one epoch: (images, labels), float32 (N, C, H, W) and int64 (N,), with ``len()``.

    In training the images are shuffled and augmented, and a last batch that is not full is left out (unless it is
    the only one), so that the statistics of a batch always come from as many images. In testing every image comes once,
    in its order, in batches of nearly equal size.

    What comes depends on the arguments only, not on any global random state. The batches of all ``world`` processes,
    joined in the order of ``rank``, are those of one process.

    Args:
        split: the images.
        batch_size: of all processes together.
        train: shuffle and augment.
        augmentation: of the images.
        mean, std: of the channels, for values between 0 and 1.
        seed, epoch: of the order and the augmentation.
        rank, world: which process this is, and of how many.

    >>> from eigengrad.lab.data import load
    >>> data = load("digits")
    >>> options = dict(augmentation=data.augmentation, mean=data.mean, std=data.std)
    >>> images, labels = next(iter(loader(data.train, 64, train=True, **options)))
    >>> images.shape
    torch.Size([64, 1, 8, 8])
    """
    for argument, value, minimum in (
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("epoch", epoch, 0),
        ("rank", rank, 0),
        ("world", world, 1),
    ):
        require_integer("loader", argument, value, minimum=minimum)
    if rank >= world:
        raise ValueError(f"loader: rank must be less than world = {world}; got {rank}")
    count = len(split)
    if count < world:
        raise ValueError(f"loader: split has {count} images; expected at least one for each of {world} processes")
    if train:
        size = min(batch_size, count)
        if size % world:
            raise ValueError(f"loader: a batch of {size} images cannot be shared equally by {world} processes")
        order = torch.randperm(count, generator=_generator("order", seed, epoch))
        batches = order[: count // size * size].split(size)
    else:
        batches = torch.arange(count).tensor_split(-(-count // batch_size))
    return Loader(
        split, tuple(batches), train, augmentation, _per_channel(mean), _per_channel(std), seed, epoch, rank, world
    )


def _per_channel(values: Sequence[float]) -> Tensor:
    """Numbers for each channel, scaled to values between 0 and 255, in a shape that broadcasts over a batch."""
    return torch.tensor(values, dtype=torch.float32).mul(255).reshape(1, -1, 1, 1)


def _generator(*parts: str | int) -> torch.Generator:
    """A generator of its own for every purpose, seed, epoch and batch: neighbouring seeds have nothing in common."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
