"""The interface of classifiers of style, which predict the domain of a picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Accuracy", "Judge"]


@dataclass(frozen=True)
class Accuracy:
    """Shares of pictures that were taken for what they are, in per cent.

    Args:
        by_class: of each domain.
        count: pictures of each domain.
    """

    by_class: dict[str, float]
    count: dict[str, int]

    @property
    def mean(self) -> float:
        """The mean over the domains."""
        return sum(self.by_class.values()) / len(self.by_class)


class Judge(nn.Module, ABC):
    """A classifier of pictures (N, 3, H, W) from 0 to 1.

    Args:
        classes: names of the domains.
    """

    #: What it is, for the notes of a table.
    about: str

    def __init__(self, classes: Sequence[str]) -> None:
        super().__init__()
        self.classes = tuple(classes)

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Features of the middle layer, (N, C, H', W'): what a picture shows, more than how."""

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Scores (N, classes) of pictures (N, 3, H, W) from 0 to 1."""

    @torch.no_grad()
    def predict(self, images: Tensor) -> list[str]:
        """The domain that each picture is most likely of."""
        self.eval()
        return [self.classes[i] for part in images.split(64) for i in self(part).argmax(1).tolist()]

    def share(self, images: Tensor, domain: str) -> float:
        """The share of pictures that are classified as the domain, in per cent."""
        guesses = self.predict(images)
        return 100 * sum(guess == domain for guess in guesses) / len(guesses)

    def accuracy(self, pictures: Mapping[str, Tensor]) -> Accuracy:
        """The accuracy on real pictures of each domain."""
        return Accuracy(
            {name: self.share(images, name) for name, images in pictures.items()},
            {name: len(images) for name, images in pictures.items()},
        )
