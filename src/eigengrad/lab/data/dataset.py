"""What every data set is: two splits of labelled images, the names of the classes, and how to prepare the images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...arguments import require_integer
from .augment import Augmentation
from .pictures import Images

__all__ = ["Dataset", "Split"]


@dataclass(frozen=True)
class Split:
    """Labelled images.

    Args:
        images: uint8 (N, C, H, W), or :class:`~eigengrad.lab.data.pictures.Pictures`, which are read when needed.
        labels: int64 (N,).
    """

    images: Images
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Split:
        """The images of these indices, in this order."""
        return Split(self.images[indices], self.labels[indices])

    def singles(self) -> list[Split]:
        """Splits of one image each."""
        return [self.take(index) for index in torch.arange(len(self)).split(1)]


@dataclass(frozen=True)
class Dataset:
    """A training and a test split, and what a loader needs to know about them.

    Args:
        name: of the data set.
        train, test: the splits.
        classes: names, in the order of the labels.
        augmentation: what is done to training images, and which view of a test image counts.
        mean, std: of the channels, for values between 0 and 1.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    augmentation: Augmentation
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def channels(self) -> int:
        """The number of channels of an image."""
        return len(self.mean)

    @property
    def image_size(self) -> int:
        """Height and width of the images that a loader gives."""
        size = self.augmentation.output_size
        if size is None:
            assert isinstance(self.train.images, Tensor)  # what lies in files is scaled to a size
            size = self.train.images.shape[-1]
        return size

    def subset(self, count: int, seed: int = 0) -> Dataset:
        """This data set with ``count`` training images, as many of each class as of every other where there are enough.

        Which images are drawn depends on ``seed`` only; they keep their order.
        """
        require_integer("subset", "count", count, minimum=1)
        return replace(self, train=self.train.take(_balanced(self.train.labels, self.classes, count, seed)))


def _balanced(labels: Tensor, classes: Sequence[str], count: int, seed: int) -> Tensor:
    """Indices, ascending, of ``count`` images drawn as evenly over the classes as these allow."""
    available = torch.bincount(labels, minlength=len(classes))
    present = int((available > 0).sum())
    if count > len(labels):
        raise ValueError(f"subset: got {count}, but there are {len(labels)} training images")
    if count < present:
        raise ValueError(f"subset: got {count}, but there are {present} classes; expected at least one image of each")
    # The largest quota that all classes can be held to without exceeding the count; what is left goes one by one to
    # the first classes that have more.
    quota = next(q for q in range(count, 0, -1) if int(available.clamp(max=q).sum()) <= count)
    quotas = available.clamp(max=quota)
    more = (available > quota).nonzero().flatten()
    quotas[more[: count - int(quotas.sum())]] += 1
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen = [shuffled[labels[shuffled] == c][:q] for c, q in enumerate(quotas.tolist())]
    return torch.cat(chosen).sort().values
