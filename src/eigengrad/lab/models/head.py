"""How feature maps become one vector an image: by their average, or by their second-order statistics."""

from __future__ import annotations

from torch import nn

from ...errors import unknown_choice
from ...gradients import resolve
from ...nn import SecondOrderPool2d
from ...nn.second_order_pool import METHODS, PoolingMethod

__all__ = ["POOLINGS", "average", "pooled", "pooling_method", "second_order"]

#: "average" is first-order; the others are the methods of :class:`eigengrad.nn.SecondOrderPool2d`.
POOLINGS = ("average", *METHODS)


def pooled(
    pooling: str, channels: int, size: int, *, window: int, reduced: int, eps: float | None = None
) -> tuple[nn.Module, int]:
    """The named pooling of square feature maps, and the length of the vector that it makes.

    Args:
        pooling: a name in :data:`POOLINGS`.
        channels, size: of the feature maps.
        window: side of the squares that "average" averages, or all of a map that is smaller.
        reduced: channels that a 1×1 convolution leaves for second-order pooling.
        eps: ε of second-order pooling; ``None`` is the method's own.
    """
    if pooling == "average":
        return average(channels, size, window)
    return second_order(pooling, channels, reduced, eps)


def average(channels: int, size: int, window: int) -> tuple[nn.Module, int]:
    """Averages over squares, flattened, and how many there are."""
    window = min(window, size)
    return nn.Sequential(nn.AvgPool2d(window), nn.Flatten()), channels * (size // window) ** 2


def second_order(method: str, channels: int, reduced: int | None, eps: float | None = None) -> tuple[nn.Module, int]:
    """Second-order pooling, behind a 1×1 convolution unless ``reduced`` is None, and the length of its vector."""
    layer = SecondOrderPool2d(channels, reduced, method=pooling_method(method), eps=eps)
    return layer, layer.num_features


def pooling_method(name: str) -> PoolingMethod:
    """A method of second-order pooling by name; or of a gradient rule by name, the root of the covariance with it.

    >>> pooling_method("clip(threshold=50)").gradient
    Clip(threshold=50)
    """
    if name in METHODS:
        return METHODS[name]
    try:
        return PoolingMethod(gradient=resolve(name))
    except ValueError as error:
        if "expected one of" in str(error):
            raise unknown_choice("pooling", name, POOLINGS) from None
        raise
