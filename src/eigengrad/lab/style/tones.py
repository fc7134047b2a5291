"""Light stays light: a painting whose tones follow those of the photograph.

Whitening takes every direction of the features to the same size, the average brightness of a place among them, so a
face may come out darker than its own shadow, or as light as the wall behind it. At the size of faces and larger the
painting therefore keeps its tones, but in the order in which the photograph has them; smaller than that are strokes.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["in_order_of"]

LEVELS = 256  # of brightness; places of one level get one tone


def in_order_of(content: Tensor, made: Tensor) -> Tensor:
    """The tones ``made``, rearranged so that what is lighter in ``content`` is lighter in the result.

    Args:
        content: brightness (H, W), from 0 to 1.
        made: brightness (H, W) of the painting.
    """
    level = (content * (LEVELS - 1)).round().clamp(0, LEVELS - 1).long().flatten()
    tones = torch.empty(level.numel(), dtype=made.dtype)
    tones[level.argsort(stable=True)] = made.flatten().sort().values
    count = torch.zeros(LEVELS).index_add_(0, level, torch.ones_like(tones))
    curve = torch.zeros(LEVELS).index_add_(0, level, tones) / count.clamp(min=1)
    return curve[level].view_as(made)
