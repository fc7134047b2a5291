"""How feature maps become one vector an image: by their average, or by their second-order statistics."""

from __future__ import annotations

from torch import nn

from ...errors import choose
from ...nn import SecondOrderPool2d
from ...nn.second_order_pool import METHODS

__all__ = ["POOLINGS", "pooled"]

#: "average" is first-order; the others are the methods of :class:`eigengrad.nn.SecondOrderPool2d`.
POOLINGS = ("average", *METHODS)


def pooled(
    pooling: str, channels: int, size: int, *, window: int | None = None, reduced: int = 256
) -> tuple[nn.Module, int]:
    """The pooling layer for square maps of ``channels`` channels, and the length of the vector that it makes.

    Args:
        pooling: a name in :data:`POOLINGS`.
        channels: of the feature maps.
        size: height and width of the feature maps.
        window: side of the averaging window; ``None`` averages all positions.
        reduced: channels left by the 1×1 convolution in front of second-order pooling (the paper has 256).
    """
    if pooling not in POOLINGS:
        raise choose("pooling", pooling, POOLINGS)
    if pooling == "average":
        window = size if window is None else min(window, size)
        return nn.Sequential(nn.AvgPool2d(window), nn.Flatten()), channels * (size // window) ** 2
    layer = SecondOrderPool2d(channels, reduced, method=pooling)
    return layer, layer.num_features
