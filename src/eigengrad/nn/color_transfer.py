"""Whitening and colouring of raw pixels: an image in the colours of another."""

from __future__ import annotations

from torch import Tensor

from .._execution import can_read
from .whiten_color import whiten_color

__all__ = ["color_transfer"]


def color_transfer(image_a: Tensor, image_b: Tensor, *, clamp: bool = True, eps: float = 1e-6) -> Tensor:
    """Image A in the colours of image B: a linear map of its pixels that gives them the mean and covariance of B's.

    :func:`whiten_color` on raw pixels.

    Args:
        image_a: (3, H, W) or (N, 3, H, W), floating point, with values from 0 to 1.
        image_b: (3, H', W') or (N or 1, 3, H', W'), the same; of any size.
        clamp: to [0, 1], which the map may leave. The gradient of what is clamped is zero.
        eps: added to both covariances. The default is about the variance of rounding to 8 bits, 1/(12·255²).

    Returns:
        The shape and type of ``image_a``.

    >>> import torch
    >>> dark, bright = torch.rand(3, 8, 8) * 0.2, 0.4 + torch.rand(3, 6, 6) * 0.4
    >>> recoloured = color_transfer(dark, bright, clamp=False)
    >>> torch.allclose(recoloured.mean((1, 2)), bright.mean((1, 2)), atol=1e-5)
    True
    """
    for argument, image in (("image_a", image_a), ("image_b", image_b)):
        _check_image(argument, image, clamp)
    content, style = (image if image.ndim == 4 else image.unsqueeze(0) for image in (image_a, image_b))
    if style.shape[0] not in (1, content.shape[0]):
        raise ValueError(
            f"color_transfer: image_b must be one image, or one for each of image_a; "
            f"got {tuple(image_b.shape)} for {tuple(image_a.shape)}"
        )
    image = whiten_color(content, style, eps=eps)
    return (image.clamp(0, 1) if clamp else image).reshape(image_a.shape)


def _check_image(argument: str, image: Tensor, clamp: bool) -> None:
    """Refuse what is not floating-point RGB with the channels first, and say how to get there."""
    if not isinstance(image, Tensor):
        raise TypeError(f"color_transfer: {argument} must be a torch.Tensor; got {type(image).__name__}")
    if not image.is_floating_point():
        raise TypeError(
            f"color_transfer: {argument} must be of a floating-point type with values from 0 to 1; got {image.dtype}. "
            f"Divide by 255: {argument} / 255"
        )
    if image.ndim not in (3, 4) or image.shape[-3] != 3:
        last = image.ndim in (3, 4) and image.shape[-1] == 3
        raise ValueError(
            f"color_transfer: {argument} must have shape (3, H, W) or (N, 3, H, W); got {tuple(image.shape)}."
            + (" Bring the channels to the front: .movedim(-1, -3)" if last else "")
        )
    # Resizing overshoots 1 by a little; twice that is an image from 0 to 255, which clamping would turn white.
    if (
        clamp
        and image.device.type == "cpu"
        and can_read(image)
        and image.numel()
        and (largest := float(image.detach().max())) > 2
    ):
        raise ValueError(
            f"color_transfer: {argument} must have values from 0 to 1; got {largest:g}. "
            "Divide by 255, or pass clamp=False for other scales."
        )
