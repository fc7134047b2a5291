"""Batches of a split, in an order that depends on nothing but the arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._arguments import require_integer
from .augment import Augmentation
from .dataset import Split

__all__ = ["Loader", "loader"]


@dataclass(frozen=True)
class Loader:
    """An iterable over the batches of one epoch; see :func:`loader`."""

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
        for number, indices in enumerate(self.batches):
            mine = slice(len(indices) * self.rank // self.world, len(indices) * (self.rank + 1) // self.world)
            part = self.split.take(indices[mine])
            if self.train:
                draws = torch.rand(
                    len(indices),
                    self.augmentation.draws,
                    generator=_generator("augment", self.seed, self.epoch, number),
                )
                images = self.augmentation.train(part.images, draws[mine])
            else:
                images = self.augmentation.test(part.images)
            yield (
                (images.to(torch.float32, memory_format=torch.contiguous_format) - self.mean).mul_(self.std),
                part.labels,
            )


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
    the only one), so that statistics of a batch always come from as many images. In testing every image comes once, in
    its order; batches are of nearly equal size.

    What comes depends on the arguments only, not on any global random state. The batches of all ``world`` processes,
    joined in the order of ``rank``, are those of one process.

    Args:
        split: the images.
        batch_size: of all processes together.
        train: shuffle and augment.
        augmentation: of the images.
        mean, std: of the channels, for values between 0 and 1.
        seed, epoch: of the order and the augmentation.
        rank, world: which process this is, of how many.
    """
    for argument, value, minimum in (("batch_size", batch_size, 1), ("world", world, 1), ("rank", rank, 0)):
        require_integer("loader", argument, value, minimum=minimum)
    if rank >= world:
        raise ValueError(f"loader: rank must be less than world = {world}; got {rank}")
    count = len(split)
    if count < world:
        raise ValueError(f"loader: split has {count} images; expected at least one for each of {world} processes")
    if train:
        order = torch.randperm(count, generator=_generator("order", seed, epoch))
        size = min(batch_size, count)
        if size % world:
            raise ValueError(f"loader: a batch of {size} images cannot be shared equally by {world} processes")
        batches = order[: count // size * size].split(size)
    else:
        batches = torch.arange(count).tensor_split(-(-count // batch_size))
    scale = [torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1, 1) * 255 for values in (mean, std)]
    return Loader(split, batches, train, augmentation, scale[0], 1 / scale[1], seed, epoch, rank, world)


def _generator(*parts: str | int) -> torch.Generator:
    """A generator of its own for every purpose, seed, epoch and batch: neighbouring seeds have nothing in common."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
