"""Colours that no screen has, brought back into the cube [0, 1]³ without flat patches or false hues.

Clamping each channel turns a bright orange yellow, and a gradient that leaves the cube into a patch. Here a colour
moves along a straight line towards a grey of about its own brightness, so its hue stays, and by a smooth curve of how
far out it is, so neighbours stay neighbours. The curve bends only as much as the picture needs: it is the identity for
a picture that is inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["GamutCurve", "luma"]

LUMA = (0.299, 0.587, 0.114)
KNEE = 0.7  # colours nearer to their grey than this share of the way to the surface of the cube are never changed
COVERED = 0.999  # share of the pixels that the curve brings inside; the few beyond end on the surface
TOLERANCE = 1e-3  # what rounding to 8 bits would hide is inside


@dataclass(frozen=True)
class GamutCurve:
    """The curve for pictures whose colours go as far as ``reach``: 1 is the surface of the cube, 2 twice as far.

    >>> import torch
    >>> inside, outside = torch.rand(3, 100), 1.5 * torch.rand(3, 100)
    >>> torch.equal(GamutCurve.fit(inside)(inside), inside)
    True
    >>> bool((GamutCurve.fit(outside)(outside) <= 1).all())
    True
    """

    reach: float

    @classmethod
    def fit(cls, colours: Tensor, weights: Tensor | None = None) -> GamutCurve:
        """The curve for colours (3, M) of a picture, or an even sample of them, whose weight (M,) is not zero."""
        if weights is not None:
            colours = colours[:, weights > 0]
        if colours.shape[1] == 0:
            return cls(1.0)
        distance = _distance(colours, _grey(colours))
        return cls(float(distance.kthvalue(max(1, int(COVERED * distance.numel()))).values))

    def __call__(self, colours: Tensor) -> Tensor:
        """Map colours (3, M) into the cube."""
        if self.reach > 1 + TOLERANCE:
            grey = _grey(colours)
            distance = _distance(colours, grey)
            # k + u/(1 + u/s) of u = distance − k has slope 1 at the knee k, and is 1 at the reach.
            u = (distance - KNEE).clamp_(min=0)
            inverse_s = 1 / (1 - KNEE) - 1 / (self.reach - KNEE)
            bent = u.div(u.mul(inverse_s).add_(1)).add_(KNEE)
            colours = torch.lerp(grey, colours, bent.div_(distance.clamp_(min=KNEE)))
        return colours.clamp(0, 1)


def luma(colours: Tensor) -> Tensor:
    """The brightness (...) of colours (3, ...)."""
    red, green, blue = colours
    brightness: Tensor = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return brightness


def _grey(colours: Tensor) -> Tensor:
    """The grey (M,) that each colour moves towards: half-way from its own brightness to the middle of the cube.

    At its own brightness a bright yellow would have to lose most of its colour to get inside.
    """
    return luma(colours).clamp_(0, 1).mul_(0.5).add_(0.25)


def _distance(colours: Tensor, grey: Tensor) -> Tensor:
    """How far (M,) the colours are from their grey, as a share of the way to the surface of the cube."""
    above = (colours.amax(0) - grey).div_(1 - grey)
    below = (grey - colours.amin(0)).div_(grey)
    return torch.maximum(above, below)
