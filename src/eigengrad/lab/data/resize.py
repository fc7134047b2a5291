"""Images of another size, smoothed where they become smaller."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import interpolate

__all__ = ["resized"]


def resized(images: Tensor, size: int | None) -> Tensor:
    """uint8 images (N, C, H, W) as squares of ``size``; ``None`` leaves them as they are."""
    if size is None or images.shape[-2:] == (size, size):
        return images
    return interpolate(images, (size, size), mode="bilinear", antialias=True)
