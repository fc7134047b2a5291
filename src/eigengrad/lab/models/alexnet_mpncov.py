"""AlexNet as MPN-COV trains it: two groups, batch norm behind every convolution, covariance pooling before FC6."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from .head import POOLINGS, second_order
from .normalisation import Normalisation

__all__ = ["MpnCovAlexNet"]

#: Second-order pooling needs a map; with less there is none behind the second max-pooling.
_LEAST = 35


class MpnCovAlexNet(nn.Module):
    """The network of Li et al. 2017, whose training the paper's Table 7 takes over.

    Convolutions of 96, 256, 384, 384 and 256 channels, the second, fourth and fifth in two groups, batch norm behind
    each. With second-order pooling the last max-pooling gives way to the covariance of the 256 channels as they are,
    without a 1×1 convolution, whose upper triangle (32,896 numbers) FC6 reads. FC6 and FC7 have 4096 units
    either way; dropout behind both.

    Args:
        classes: of the data.
        norm: from a number of channels to the normalisation behind the first convolution; batch norm in the paper.
        pooling: "average" (AlexNet's own max-pooling and flat maps), or a method of
            :class:`eigengrad.nn.SecondOrderPool2d`.
        pooling_eps: ε of second-order pooling; ``None`` is the method's own.
        stem_width: channels of the first convolution; 96 as published.
        width: scale of the other layers: 64 as published, 16 has a quarter of the channels and units.
        in_channels: of the images.
        image_size: height and width of the crops, 227 as published; at least 67 with "average" and 35 otherwise.
    """

    def __init__(
        self,
        classes: int,
        *,
        norm: Normalisation,
        pooling: str = "exact",
        pooling_eps: float | None = None,
        stem_width: int = 96,
        width: int = 64,
        in_channels: int = 3,
        image_size: int = 227,
    ) -> None:
        super().__init__()
        average = pooling == POOLINGS[0]
        smallest = 67 if average else _LEAST
        if image_size < smallest:
            raise ValueError(f"MpnCovAlexNet: image_size must be at least {smallest} for {pooling!r}; got {image_size}")
        for argument, value in (("stem_width", stem_width), ("width", width)):
            if value % 2:
                raise ValueError(f"MpnCovAlexNet: {argument} must be even, for two groups; got {value}")
        layers: OrderedDict[str, nn.Module] = OrderedDict()

        def convolution(number: int, before: int, after: int, kernel: int, **options: Any) -> None:
            layers[f"conv{number}"] = nn.Conv2d(before, after, kernel, bias=False, **options)
            layers[f"bn{number}"] = norm(after) if number == 1 else nn.BatchNorm2d(after)
            layers[f"relu{number}"] = nn.ReLU(inplace=True)

        convolution(1, in_channels, stem_width, 11, stride=4)
        layers["pool1"] = nn.MaxPool2d(3, stride=2)
        convolution(2, stem_width, 4 * width, 5, padding=2, groups=2)
        layers["pool2"] = nn.MaxPool2d(3, stride=2)
        convolution(3, 4 * width, 6 * width, 3, padding=1)
        convolution(4, 6 * width, 6 * width, 3, padding=1, groups=2)
        convolution(5, 6 * width, 4 * width, 3, padding=1, groups=2)
        self.features = nn.Sequential(layers)
        self.pool: nn.Module
        if average:
            self.pool = nn.Sequential(nn.MaxPool2d(3, stride=2), nn.AdaptiveAvgPool2d(6), nn.Flatten())
            length = 4 * width * 36
        else:
            self.pool, length = second_order(pooling, 4 * width, None, pooling_eps)
        hidden = 64 * width
        self.classifier = nn.Sequential(
            nn.Linear(length, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(hidden, classes),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes, (N, classes), for images (N, in_channels, H, W)."""
        scores: Tensor = self.classifier(self.pool(self.features(x)))
        return scores
