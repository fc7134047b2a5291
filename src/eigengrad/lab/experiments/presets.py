"""The protocols: data, network, schedule, dimensions and trials, at each scale.

``paper`` is the paper's protocol, number by number. ``small`` is the same experiment with fewer images, a slim network
and few epochs, sized for two cores. ``smoke`` is the digits that come with scikit-learn, to see that everything works.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..training import Config
from .experiment import check_scale

__all__ = ["PROTOCOLS", "Preset", "claimed_steps", "preset"]


@dataclass(frozen=True)
class Preset:
    """What an experiment at a scale trains.

    Args:
        base: what all of its runs share.
        group_sizes: the dimensions d; none where the network has no groups.
        trials: seeds for each setting.
        images: how many there are to train with, where ``base.subset`` does not say.
        cost: seconds for a training image in one epoch on one core, measured with batch norm, evaluation included.
        network: in words.
    """

    base: Config
    group_sizes: tuple[int, ...]
    trials: int
    images: int
    cost: float
    network: str

    @property
    def train_images(self) -> int:
        """Number of training images."""
        return self.images if self.base.subset is None else self.base.subset

    @property
    def seconds(self) -> float:
        """Estimated seconds of one run on one core."""
        return self.train_images * self.base.epochs * self.cost

    @property
    def steps(self) -> int:
        """Training steps of one run."""
        return math.ceil(self.train_images / self.base.batch_size) * self.base.epochs

    def conditions(self, trials: int | None = None) -> dict[str, str]:
        """The conditions that are printed next to every number."""
        data = f"{DATA_NAMES[self.base.data]}, {self.train_images:,} training images"
        size = f", {self.base.image_size} px" if self.base.image_size else ""
        return {
            "data": data + size,
            "network": self.network,
            "epochs": str(self.base.epochs),
            "trials": str(self.trials if trials is None else trials),
        }


DATA_NAMES = {
    "digits": "digits (scikit-learn)",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "Tiny ImageNet",
    "imagenet": "ImageNet",
    "folder": "Imagenette (8 classes)",
}

_PAPER_SIZES, _FEW_SIZES = (4, 8, 16, 32, 64), (4, 16, 64)

_CIFAR = Config(
    data="cifar10",
    model="resnet18",
    stem_width=64,
    width=64,
    epochs=350,
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    weight_decay=5e-4,
    lr_step=100,
    lr_factor=0.1,
    eps=0.01,
    degree=9,
)
_SLIM = _CIFAR.replace(width=16, subset=3000, epochs=5, lr_step=4)
_DIGITS = Config(data="digits", model="convnet", stem_width=64, width=16, epochs=3, lr=0.05, lr_step=2)
_LONGER = _DIGITS.replace(epochs=12, lr_step=5)
#: As MPN-COV trains AlexNet, which the paper takes over.
_IMAGENET = Config(
    data="imagenet",
    image_size=227,
    colour_jitter=0.4,
    model="alexnet_mpncov",
    norm="batchnorm",
    stem_width=96,
    width=64,
    pooling="svd_taylor",
    # logspace(−1.2, −5.2, 20): a rate for every epoch.
    epochs=20,
    batch_size=100,
    lr=10**-1.2,
    momentum=0.9,
    weight_decay=5e-4,
    lr_step=1,
    lr_factor=10 ** (-4 / 19),
)
_TINY = _DIGITS.replace(model="resnet18", stem_width=16, width=4, subset=500, epochs=1)
_FULL_TEXT, _SLIM_TEXT = "ResNet-18", "slim ResNet-18 (stem 64, blocks from 16)"
_BOTH_TEXT, _BOTH_SLIM_TEXT = "ResNet-18 and ResNet-50", "slim ResNet-18 and ResNet-50 (stem 64, blocks from 16)"
_BOTH_TINY_TEXT = "tiny ResNet-18 and ResNet-50 (stem 16, blocks from 4)"
_TOY_TEXT = "convolutional network (stem 64)"
_ALEXNET_TEXT = "AlexNet with batch norm behind every layer (covariance of 256 channels)"

#: protocol → scale → preset.
PROTOCOLS: dict[str, dict[str, Preset]] = {
    # `eigengrad compare`.
    "digits": {"smoke": Preset(_DIGITS.replace(epochs=5, lr_step=4), (16,), 2, 1297, 4e-4, _TOY_TEXT)},
    # Runs that are short enough for many seeds: who has the smaller error, and how ε and K matter. The largest
    # is the design, sized for a few hours of two cores.
    "paired": {
        "smoke": Preset(_DIGITS, (4, 16), 2, 1297, 4e-4, _TOY_TEXT),
        "small": Preset(_LONGER, _FEW_SIZES, 12, 1297, 4e-4, _TOY_TEXT),
        "paper": Preset(_LONGER, _PAPER_SIZES, 100, 1297, 4e-4, _TOY_TEXT),
    },
    "paired_settings": {
        "smoke": Preset(_DIGITS, (64,), 2, 1297, 4e-4, _TOY_TEXT),
        "small": Preset(_LONGER, (64,), 12, 1297, 4e-4, _TOY_TEXT),
        "paper": Preset(_LONGER, (64,), 75, 1297, 4e-4, _TOY_TEXT),
    },
    # How long trainings last; 950 epochs are 20,000 steps.
    "free_runs": {
        "smoke": Preset(_DIGITS, (4, 16), 2, 1297, 4e-4, _TOY_TEXT),
        "small": Preset(_LONGER, _FEW_SIZES, 10, 1297, 4e-4, _TOY_TEXT),
        "paper": Preset(_LONGER.replace(epochs=950, lr_step=400), _PAPER_SIZES, 10, 1297, 4e-4, _TOY_TEXT),
    },
    # Table 4, Figures 1(b) and 6.
    "cifar10": {
        "smoke": Preset(_DIGITS, (4, 16), 2, 1297, 4e-4, _TOY_TEXT),
        "small": Preset(_SLIM, _FEW_SIZES, 3, 50_000, 5.7e-3, _SLIM_TEXT),
        "paper": Preset(_CIFAR, _PAPER_SIZES, 15, 50_000, 0.037, _FULL_TEXT),
    },
    # Table 3 and Figure 5. The small one stays with CIFAR-10: a few images of each of a hundred classes teach nothing.
    "hyperparameters": {
        "smoke": Preset(_DIGITS, (64,), 2, 1297, 4e-4, _TOY_TEXT),
        "small": Preset(_SLIM, (64,), 8, 50_000, 5.7e-3, _SLIM_TEXT),
        "paper": Preset(_CIFAR.replace(data="cifar100"), (64,), 8, 50_000, 0.037, _FULL_TEXT),
    },
    # Table 5.
    "cifar100": {
        "smoke": Preset(_TINY, (4, 16), 1, 1297, 6e-3, _BOTH_TINY_TEXT),
        # A third of the images and three times the epochs: subsets with all of the hundred classes are small.
        "small": Preset(
            _SLIM.replace(data="cifar100", subset=1000, epochs=15, lr_step=12),
            _FEW_SIZES,
            1,
            50_000,
            0.012,
            _BOTH_SLIM_TEXT,
        ),
        "paper": Preset(_CIFAR.replace(data="cifar100"), _PAPER_SIZES, 8, 50_000, 0.073, _BOTH_TEXT),
    },
    # Table 6.
    "tiny_imagenet": {
        "smoke": Preset(_TINY, (4, 16), 1, 1297, 6e-3, _BOTH_TINY_TEXT),
        "small": Preset(
            _SLIM.replace(data="tiny_imagenet", image_size=32), _FEW_SIZES, 1, 100_000, 0.012, _BOTH_SLIM_TEXT
        ),
        "paper": Preset(
            _CIFAR.replace(data="tiny_imagenet", epochs=90, lr_step=30), _PAPER_SIZES, 5, 100_000, 0.28, _BOTH_TEXT
        ),
    },
    # Table 7.
    "pooling": {
        "smoke": Preset(
            _DIGITS.replace(norm="batchnorm", pooling="svd_taylor", width=16), (), 1, 1297, 4e-4, _TOY_TEXT
        ),
        "small": Preset(
            _IMAGENET.replace(
                data="folder",
                colour_jitter=0.0,
                model="alexnet",
                norm="batchnorm",  # without it, eight epochs of few images teach the slim network nothing
                image_size=128,
                width=16,
                stem_width=32,
                epochs=8,
                batch_size=32,
                lr=0.02,
                lr_step=6,
                lr_factor=0.1,
            ),
            (),
            3,
            2400,
            2.2e-3,
            "slim AlexNet with batch norm behind its first layer (covariance of 64 channels)",
        ),
        "paper": Preset(_IMAGENET, (), 1, 1_281_167, 6e-2, _ALEXNET_TEXT),
    },
    # Whether SVD-PI converges at 256 channels. Few images: power iterations take a quarter of a second for each.
    "large_covariances": {
        "smoke": Preset(
            _DIGITS.replace(norm="batchnorm", pooling="svd_taylor", width=16),
            (),
            2,
            1297,
            4e-4,
            f"{_TOY_TEXT} (covariance of 16 channels)",
        ),
        "small": Preset(
            _IMAGENET.replace(
                data="folder",
                colour_jitter=0.0,
                model="alexnet",
                image_size=128,
                width=64,
                stem_width=64,
                subset=480,
                epochs=12,
                batch_size=16,
                lr=0.02,
                lr_step=9,
                lr_factor=0.1,
            ),
            (),
            3,
            2400,
            2e-2,
            "AlexNet with batch norm behind its first layer (covariance of 256 channels)",
        ),
        "paper": Preset(_IMAGENET, (), 3, 1_281_167, 6e-2, _ALEXNET_TEXT),
    },
    # The slim network of Table 4 with enough seeds for a verdict; the largest is the design.
    "cifar10_pairs": {
        "smoke": Preset(_DIGITS, (4, 16), 2, 1297, 4e-4, _TOY_TEXT),
        "small": Preset(_SLIM, _FEW_SIZES, 6, 50_000, 5.7e-3, _SLIM_TEXT),
        "paper": Preset(_SLIM, _FEW_SIZES, 23, 50_000, 5.7e-3, _SLIM_TEXT),
    },
}


def claimed_steps(protocol: str) -> int:
    """The length of the paper's own runs: what its claims about failures are about."""
    return PROTOCOLS[protocol]["paper"].steps


def preset(protocol: str, scale: str, *, trials: int | None = None) -> Preset:
    """The preset of a protocol at a scale, with another number of trials if one is given."""
    chosen = PROTOCOLS[protocol][check_scale(scale)]
    return chosen if trials is None else replace(chosen, trials=trials)
