"""How sharp a picture is: the paper's score."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["intensity", "sharpness"]

#: Rec. 601, as in greyscale conversion everywhere.
_LUMA = (0.299, 0.587, 0.114)


def intensity(images: Tensor) -> Tensor:
    """Grey values (N, H, W) of pictures (N, 3, H, W)."""
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"intensity: images must have shape (N, 3, H, W); got {tuple(images.shape)}")
    return torch.einsum("nchw,c->nhw", images, torch.tensor(_LUMA, dtype=images.dtype, device=images.device))


def sharpness(images: Tensor) -> Tensor:
    """Mean norm of the gradient of the intensity, in grey levels of 256 a pixel.

    The gradient is taken by central differences, by one-sided ones at the borders.

    Args:
        images: (N, 3, H, W) from 0 to 1, at least 2×2.

    Returns:
        (N,).

    >>> ramp = torch.linspace(0, 1, 256).expand(1, 3, 8, 256)
    >>> round(sharpness(ramp).item(), 3)
    1.0
    """
    down, right = torch.gradient(255 * intensity(images), dim=(-2, -1))
    return torch.hypot(down, right).mean((-2, -1))
