"""Whether what is in a picture is still there after it was painted."""

from __future__ import annotations

import torch
from torch import Tensor

from .judge import Judge
from .sharpness import intensity

__all__ = ["edge_similarity", "feature_similarity"]


def edge_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Correlation of where the edges of two pictures are, from −1 to 1, (N,).

    Edges are the norms of the gradient of the intensity. Colours and contrast do not matter, only where they change.

    Args:
        first, second: (N, 3, H, W).
    """
    return _correlation(*(_edges(images).flatten(1) for images in (first, second)))


def feature_similarity(classifier: Judge, first: Tensor, second: Tensor) -> Tensor:
    """Correlation of the features of two pictures over their positions, mean over the channels, from −1 to 1, (N,).

    The features are those of the middle of the style classifier. A correlation forgets the mean and the scale of a
    channel, which are the style, and leaves where it is active, which is the content. Channels that are silent in both
    pictures do not count.

    Args:
        classifier: that has the features.
        first, second: (N, 3, H, W) from 0 to 1.
    """
    with torch.no_grad():
        one, other = (classifier.features(images).flatten(2) for images in (first, second))
    active = (one.amax(-1) > one.amin(-1)) | (other.amax(-1) > other.amin(-1))
    return (_correlation(one, other) * active).sum(1) / active.sum(1).clamp(min=1)


def _edges(images: Tensor) -> Tensor:
    down, right = torch.gradient(intensity(images), dim=(-2, -1))
    return torch.hypot(down, right)


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    """Correlation over the last dimension; 0 where one of the two is constant."""
    first, second = (x - x.mean(-1, keepdim=True) for x in (first, second))
    norms = torch.linalg.vector_norm(first, dim=-1) * torch.linalg.vector_norm(second, dim=-1)
    product = (first * second).sum(-1)
    return torch.where(norms > 0, product / torch.where(norms > 0, norms, torch.ones_like(norms)), 0)
