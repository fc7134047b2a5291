"""A classifier of style by features of ImageNet: how strong each is in a picture, and how much it varies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..codec import Codec
from ..weights import WeightsError, load_codec
from .judge import Judge

__all__ = ["FeatureClassifier", "find_features"]

#: Of the fit: iterations of L-BFGS, and the weight of the squares of the coefficients.
_ITERATIONS, _PENALTY = 200, 1e-2


class FeatureClassifier(Judge):
    """Mean and standard deviation of each feature over the positions, and a linear layer.

    The features are those of the deepest encoder of a codec, such as VGG-19's conv3_1, and are not trained further: a
    few hundred pictures are enough for what remains.

    Args:
        classes: names of the domains.
        codec: encoders that were trained on ImageNet.
    """

    centre: Tensor
    scale: Tensor

    def __init__(self, classes: Sequence[str], codec: Codec) -> None:
        super().__init__(classes)
        numbers = sorted(codec.levels)
        deepest, middle = codec.levels[numbers[-1]], codec.levels[numbers[(len(numbers) - 1) // 2]]
        self.encoder, self.middle = deepest.encoder, middle.encoder
        self.about = (
            f"a linear one, trained here on the real training pictures, of the mean and standard deviation of the "
            f"features of {codec.name}, level {numbers[-1]}, which were trained on ImageNet"
        )
        self.last = nn.utils.skip_init(nn.Linear, 2 * deepest.channels, len(self.classes))
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        self.register_buffer("centre", torch.zeros(2 * deepest.channels))
        self.register_buffer("scale", torch.ones(2 * deepest.channels))

    def features(self, images: Tensor) -> Tensor:
        """Features of the middle of an encoder, for pictures whose sides are multiples of its stride."""
        middle: Tensor = self.middle(images)
        return middle

    def forward(self, images: Tensor) -> Tensor:
        """Scores (N, classes) of pictures (N, 3, H, W) from 0 to 1."""
        return self._scores(self._moments(images))

    def _moments(self, images: Tensor) -> Tensor:
        features = self.encoder(images).flatten(2)
        return torch.cat([features.mean(-1), features.std(-1)], 1)

    def _scores(self, moments: Tensor) -> Tensor:
        scores: Tensor = self.last((moments - self.centre) / self.scale)
        return scores

    @classmethod
    def fit(cls, pictures: Mapping[str, Tensor], codec: Codec) -> FeatureClassifier:
        """Fit by logistic regression on real pictures (N, 3, H, W) from 0 to 1, by domain, and their mirror images.

        Every domain counts the same, however many pictures it has. Nothing in it is random.
        """
        model = cls(list(pictures), codec)
        with torch.no_grad():
            moments = {
                name: torch.cat([model._moments(part) for both in (images, images.flip(-1)) for part in both.split(64)])
                for name, images in pictures.items()
            }
            known = torch.cat(list(moments.values()))
            model.centre.copy_(known.mean(0))
            model.scale.copy_(known.std(0).clamp(min=1e-6))
        labels = torch.cat([torch.full((len(part),), i) for i, part in enumerate(moments.values())])
        weights = torch.tensor([len(known) / len(part) / len(moments) for part in moments.values()])
        optimizer = torch.optim.LBFGS(model.last.parameters(), max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value: Tensor = cross_entropy(model._scores(known), labels, weights)
            value = value + _PENALTY * model.last.weight.square().sum()
            value.backward()
            return value

        optimizer.step(loss)
        return model.eval()


def find_features(data_root: Path | None) -> Codec | None:
    """The encoders in a folder of ``DATA_ROOT/weights`` whose deepest features are the most, if there are any."""
    folders = sorted((data_root / "weights").glob("*/")) if data_root is not None else []
    found = []
    for folder in folders:
        try:
            codec = load_codec(folder)
        except WeightsError:
            continue
        found.append((codec.levels[max(codec.levels)].channels, codec))
    return max(found, key=lambda pair: pair[0])[1] if found else None
