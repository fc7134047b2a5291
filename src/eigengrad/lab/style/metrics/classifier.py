"""A classifier of style: a small network that learns from real pictures which domain a picture is of."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from ...files import DamagedFileWarning, make_folder
from ...tensors import load_tensors, save_tensors
from ...training import randomness
from .judge import Judge

__all__ = ["StyleClassifier", "load_or_fit"]

#: Of the training: passes over the pictures, pictures a step, largest learning rate, and weight decay.
_EPOCHS, _BATCH, _LR, _DECAY = 40, 32, 2e-3, 5e-2

#: Pixels that a picture is shifted by at most, for each 64 of its side.
_SHIFT = 6

#: Changes when the training or the network does, so that older weights are not taken for newer ones.
_VERSION = 1


class StyleClassifier(Judge):
    """Five convolutions with batch norm, the mean over the positions, and a linear layer.

    It is small because it learns from a few hundred pictures. The mean over the positions makes it look at textures and
    colours wherever they are.

    Args:
        classes: names of the domains.
        width: channels of the first convolution.
    """

    about = (
        "a small network trained here on the real training pictures only: no weights with features of ImageNet are at "
        "hand (they would be looked for in DATA_ROOT/weights)"
    )

    def __init__(self, classes: Sequence[str], width: int = 24) -> None:
        super().__init__(classes)
        widths = (3, width, 2 * width, 2 * width, 4 * width, 4 * width)
        strides = (2, 1, 2, 2, 1)
        blocks = [
            nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
            for i, o, stride in zip(widths, widths[1:], strides, strict=False)
        ]
        self.lower, self.upper = nn.Sequential(*blocks[:2]), nn.Sequential(*blocks[2:])
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(widths[-1], len(self.classes))

    def features(self, images: Tensor) -> Tensor:
        """Features of the middle layer, (N, 2·width, H/2, W/2), for pictures (N, 3, H, W) from 0 to 1."""
        middle: Tensor = self.lower(2 * images - 1)
        return middle

    def forward(self, images: Tensor) -> Tensor:
        """Scores (N, classes) of pictures (N, 3, H, W) from 0 to 1."""
        scores: Tensor = self.last(self.dropout(self.upper(self.features(images)).mean((-2, -1))))
        return scores


def fit(pictures: Mapping[str, Tensor], *, epochs: int = _EPOCHS, seed: int = 0) -> StyleClassifier:
    """Train a classifier on real pictures, float (N, 3, H, W) from 0 to 1, by domain.

    Every domain counts the same, however many pictures it has. Pictures are mirrored, shifted, and changed a little in
    brightness and contrast, so that it is not the camera that is learned.
    """
    images = torch.cat(list(pictures.values()))
    labels = torch.cat([torch.full((len(part),), i) for i, part in enumerate(pictures.values())])
    weights = torch.tensor([len(images) / len(part) / len(pictures) for part in pictures.values()])
    with randomness.private():
        randomness.seed(seed)
        model = StyleClassifier(list(pictures))
        optimizer = torch.optim.AdamW(model.parameters(), _LR, weight_decay=_DECAY)
        steps = max(len(images) // _BATCH, 1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LR, total_steps=epochs * steps)
        model.train()
        for _ in range(epochs):
            for chosen in torch.randperm(len(images))[: steps * _BATCH].split(_BATCH):
                loss = cross_entropy(model(_varied(images[chosen])), labels[chosen], weights, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return model.eval()


def load_or_fit(pictures: Mapping[str, Tensor], folder: Path, *, epochs: int = _EPOCHS) -> StyleClassifier:
    """The classifier for these pictures, read from the folder, or trained and saved there."""
    path = folder / f"style-classifier-{_fingerprint(pictures, epochs)}.pt"
    if path.exists():
        try:
            content = load_tensors(path)
            if content["classes"] != list(pictures):
                raise ValueError(f"its classes are not {', '.join(pictures)}")
            model = StyleClassifier(list(pictures))
            model.load_state_dict(content["weights"])
            return model.eval()
        except Exception as error:  # what a damaged file raises depends on where it is damaged
            text = f"{path} is damaged ({str(error)[:300]}); the classifier is trained again"
            warnings.warn(text, DamagedFileWarning, stacklevel=2)
    model = fit(pictures, epochs=epochs)
    make_folder(folder)
    save_tensors(path, {"classes": list(model.classes), "weights": model.state_dict()})
    return model


def _fingerprint(pictures: Mapping[str, Tensor], epochs: int) -> str:
    """A hash of all that the training depends on."""
    about = {name: [list(images.shape), float(images.double().sum())] for name, images in pictures.items()}
    return hashlib.sha256(json.dumps([_VERSION, epochs, about]).encode()).hexdigest()[:8]


def _varied(images: Tensor) -> Tensor:
    """Augmented pictures: mirrored, shifted, and a little brighter or darker, with more contrast or less."""
    count, size = len(images), images.shape[-1]
    border = max(_SHIFT * size // 64, 1)
    padded = pad(images, (border,) * 4, mode="reflect")
    down, right = torch.randint(2 * border + 1, (2, count)).tolist()
    cut = torch.stack([image[:, d : d + size, r : r + size] for image, d, r in zip(padded, down, right, strict=True)])
    cut = torch.where(torch.rand(count, 1, 1, 1) < 0.5, cut.flip(-1), cut)
    contrast, brightness = 0.8 + 0.4 * torch.rand(count, 1, 1, 1), 0.2 * torch.rand(count, 1, 1, 1) - 0.1
    return ((cut - 0.5) * contrast + 0.5 + brightness).clamp(0, 1)
