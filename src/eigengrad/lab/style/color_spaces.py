"""Colours as coordinates in which distances are meant: RGB as it is stored, or CIELAB (D65)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["SPACES", "ColorSpace", "lab_to_rgb", "rgb_to_lab"]

# Linear sRGB to XYZ divided by the white point, so that white is (1, 1, 1).
TO_XYZ = (
    (0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883),
)
TO_LAB = ((0.0, 1.16, 0.0), (5.0, -5.0, 0.0), (0.0, 2.0, -2.0))


def rgb_to_lab(rgb: Tensor) -> Tensor:
    """CIELAB (3, M) divided by 100, so lightness is from 0 to 1, of sRGB (3, M).

    >>> import torch
    >>> rgb_to_lab(torch.tensor([[1.0], [1.0], [1.0]])).squeeze().round(decimals=3).abs()
    tensor([1., 0., 0.])
    """
    linear = _bent(rgb, 0.04045, 1 / 12.92, lambda x: _power(x.add_(0.055).div_(1.055), 2.4))
    xyz = _matrix(TO_XYZ, rgb) @ linear
    root = _bent(xyz, (6 / 29) ** 3, 841 / 108, lambda x: _power(x, 1 / 3)).add_(4 / 29)
    lab = _matrix(TO_LAB, rgb) @ root
    lab[0] -= 0.16
    return lab


def lab_to_rgb(lab: Tensor) -> Tensor:
    """The inverse of :func:`rgb_to_lab`. What no screen shows is outside 0 to 1: the curve goes on, odd about zero."""
    from_lab = _inverse(TO_LAB, lab)
    black = from_lab[:, :1] * 0.16 - 4 / 29
    xyz = _bent(torch.addmm(black, from_lab, lab), 2 / 29, 108 / 841, lambda x: x.add_(4 / 29).pow_(3))
    linear = _inverse(TO_XYZ, lab) @ xyz
    return _bent(linear.abs(), 0.0031308, 12.92, lambda x: _power(x, 1 / 2.4).mul_(1.055)).copysign_(linear)


def _bent(x: Tensor, bend: float, slope: float, curve: Callable[[Tensor], Tensor]) -> Tensor:
    """slope·x up to ``bend``, and from there on the curve, moved to where the line ends.

    The curve may overwrite its argument. What happens below and above the bend is added: choosing between the two with
    ``torch.where`` takes longer than everything else.
    """
    start = float(curve(torch.tensor(bend, dtype=torch.float64)))
    return curve(x.clamp(min=bend)).sub_(start).add_(x.clamp(max=bend), alpha=slope)


def _power(x: Tensor, exponent: float) -> Tensor:
    """x^exponent for x > 0, in place: in a third of the time of ``torch.pow``, and right to about 1e-6."""
    return x.log_().mul_(exponent).exp_()


def _matrix(rows: tuple[tuple[float, ...], ...], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=like.dtype, device=like.device)


def _inverse(rows: tuple[tuple[float, ...], ...], like: Tensor) -> Tensor:
    """The inverse of a matrix, in double precision: in single it would be the largest error on the way and back."""
    inverse: Tensor = torch.linalg.inv(torch.tensor(rows, dtype=torch.float64))
    return inverse.to(like)


@dataclass(frozen=True)
class ColorSpace:
    """Coordinates (3, M) of colours, and the way back."""

    of_rgb: Callable[[Tensor], Tensor]
    to_rgb: Callable[[Tensor], Tensor]


SPACES = {
    "rgb": ColorSpace(lambda rgb: rgb, lambda rgb: rgb),
    "lab": ColorSpace(rgb_to_lab, lab_to_rgb),
}
