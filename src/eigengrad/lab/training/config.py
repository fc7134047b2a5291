"""The configuration of a classification run."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ...arguments import require_non_negative, require_positive
from ...errors import unknown_choice
from ..data import DATASETS
from ..models import MODELS
from ..models.head import POOLINGS, pooling_method
from ..models.normalisation import NORMALISATIONS, whitening_rule
from .settings import Settings

__all__ = ["Config"]

_CHOICES: dict[str, Collection[str]] = {
    "data": DATASETS,
    "model": MODELS,
    "norm": NORMALISATIONS,
    "whitening": ("zca", "pca", "cholesky"),
    "average": ("covariance", "whitening"),
}

_WHITENING = ("gradient", "degree", "eps", "whitening")

#: Which options of the whitening each normalisation does without.
_IDLE = {
    "dbn": (),
    "iternorm": _WHITENING,
    "mpa": _WHITENING,
    "mtp": _WHITENING,
    "batchnorm": ("group_size", "average", "whitened", *_WHITENING),
    "none": ("group_size", "average", "whitened", "norm_momentum", *_WHITENING),
}

#: Options that are not named where they have their default: runs of before they existed keep their names.
_LATER = {"whitening": "zca", "average": "covariance", "norm_momentum": 0.1, "whitened": "first", "pooling_eps": None}
_LATER["colour_jitter"] = 0.0


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Everything a classification run is told; the defaults train a small network on the digits of scikit-learn.

    Args:
        data: name of the data set.
        subset: number of training images, balanced over the classes; ``None`` is all of them.
        image_size: side of the images in pixels; ``None`` leaves them as they are.
        colour_jitter: strength of random contrast and saturation, with the lighting of AlexNet; 0 leaves colours alone.
        model: name of the network.
        stem_width, width: channels of its first layer and of its narrowest block.
        norm: the normalisation under test: "dbn", "iternorm", "batchnorm" or "none".
        group_size: d, the channels that are decorrelated together.
        gradient: how the whitening is differentiated: "exact", "taylor", "clip", "power_iteration", "svd", "pi",
            "released", or any rule by name, with parameters such as "clip(threshold=50)"; see
            :func:`~eigengrad.lab.models.normalisation.whitening_rule`.
        degree: K of the Taylor expansion; SVD-PI takes K + 1 power iterations.
        eps: ε, added to the covariance.
        whitening: "zca", "pca" or "cholesky".
        average: what is averaged for evaluation: "covariance", or "whitening", the whitening matrix itself.
        norm_momentum: share of a new batch in the running statistics.
        whitened: which normalisations are under test: "first", that behind the first convolution; "all"; or names of
            batch norms as ``model.named_modules()`` has them, separated by commas, in addition to the first.
        pooling: "average", a method of :class:`eigengrad.nn.SecondOrderPool2d`, or a gradient rule by name, with
            parameters or without, for the square root of the covariance.
        pooling_eps: its ε; ``None`` is the method's own.
        epochs, batch_size: of the training; with several processes, the batch of all of them together.
        lr, momentum, weight_decay: of stochastic gradient descent.
        lr_step, lr_factor: every ``lr_step`` epochs the learning rate is multiplied by ``lr_factor``.
        seed, precision, threads, data_root: see :class:`Settings`.

    >>> config = Config(group_size=8, epochs=3)
    >>> Config.from_dict(config.to_dict()) == config
    True
    """

    data: str = "digits"
    subset: int | None = None
    image_size: int | None = None
    colour_jitter: float = 0.0
    model: str = "convnet"
    stem_width: int = 32
    width: int = 32
    norm: str = "dbn"
    group_size: int = 16
    gradient: str = "taylor"
    degree: int = 9
    eps: float = 0.01
    whitening: str = "zca"
    average: str = "covariance"
    norm_momentum: float = 0.1
    whitened: str = "first"
    pooling: str = "average"
    pooling_eps: float | None = None
    epochs: int = 12
    batch_size: int = 64
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    lr_step: int = 5
    lr_factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise unknown_choice(name, getattr(self, name), choices)
        for name in ("stem_width", "width", "group_size", "epochs", "batch_size", "lr_step"):
            self._integer(name, minimum=1)
        self._integer("degree", minimum=0)
        for name in ("subset", "image_size"):
            if getattr(self, name) is not None:
                self._integer(name, minimum=1)
        for name in ("eps", "lr", "lr_factor"):
            self._number(name, require_positive)
        for name in ("momentum", "weight_decay", "norm_momentum", "colour_jitter"):
            self._number(name, require_non_negative)
        if self.colour_jitter >= 1:
            raise ValueError(f"Config: colour_jitter must be below 1; got {self.colour_jitter}")
        if self.pooling_eps is not None:
            self._number("pooling_eps", require_non_negative)
        if not isinstance(self.whitened, str) or not self.whitened:
            raise ValueError(f"Config: whitened must be 'first', 'all' or names; got {self.whitened!r}")
        whitening_rule(self.gradient, self.degree, self.eps)  # which refuses what is no gradient
        if self.pooling != POOLINGS[0]:
            pooling_method(self.pooling)

    def _number(self, name: str, require: Any) -> None:
        require(type(self).__name__, name, getattr(self, name))
        object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 are the same run

    def hash_fields(self) -> dict[str, Any]:
        """The fields that the result depends on: without the options that the chosen normalisation does not have."""
        idle = set(_IDLE[self.norm])
        if self.gradient.partition("(")[0].strip() not in ("taylor", "power_iteration", "released"):
            idle.add("degree")
        if self.whitening == "cholesky":
            idle |= {"gradient", "degree"}
        if self.pooling == "average":
            idle.add("pooling_eps")
        idle |= {name for name, usual in _LATER.items() if getattr(self, name) == usual}
        return {name: value for name, value in super().hash_fields().items() if name not in idle}

    def label(self) -> str:
        """Data, model, method and seed."""
        fields = self.hash_fields()
        parts = [self.data, self.model, _slug(self.pooling) if self.pooling != "average" else "", self.norm]
        parts += [_slug(self.gradient)] if "gradient" in fields else []
        parts += [f"d{self.group_size}"] if "group_size" in fields else []
        return "-".join(part for part in (*parts, super().label()) if part)


def _slug(name: str) -> str:
    """A name with its parameters as part of the name of a folder."""
    return re.sub(r"[^\w.=-]+", "_", name).strip("_")
