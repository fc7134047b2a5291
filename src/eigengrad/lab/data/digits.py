"""Handwritten digits, 8×8, which come with scikit-learn: nothing to download."""

from __future__ import annotations

from pathlib import Path

import torch

from .augment import RandomShift
from .dataset import Dataset, Split
from .resize import resized

__all__ = ["digits"]

#: The images are in the order in which people wrote them, so most writers of the test images are not in training.
_TRAIN = 1297


def digits(root: Path | None = None, image_size: int | None = None) -> Dataset:
    """1,797 digits with one channel of 8×8: the first 1,297 for training, the last 500 for testing."""
    if root is not None:
        raise ValueError(f"digits: come with scikit-learn and take no root; got {str(root)!r}. Which data is there?")
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("The digits come with scikit-learn: pip install scikit-learn") from error
    bunch = load_digits()
    # Values are whole numbers from 0 to 16.
    images = torch.from_numpy(bunch.images / 16 * 255).round().to(torch.uint8).unsqueeze(1)
    images = resized(images, image_size)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    return Dataset(
        name="digits",
        train=Split(images[:_TRAIN], labels[:_TRAIN]),
        test=Split(images[_TRAIN:], labels[_TRAIN:]),
        classes=tuple("0123456789"),
        augmentation=RandomShift(padding=images.shape[-1] // 8, flip=False),
        mean=(0.3059,),
        std=(0.3754,),
    )
