"""AlexNet, whose fully connected layers second-order pooling replaces."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from .head import POOLINGS, second_order
from .normalisation import Normalisation

__all__ = ["AlexNet"]


class AlexNet(nn.Module):
    """AlexNet with the sizes and names of torchvision's, for the paper's comparison of covariance poolings.

    With second-order pooling, the last max-pooling and the three fully connected layers give way to a 1×1 convolution
    to 256 channels, the pooling, and one fully connected layer. With "average" it is AlexNet as it was.

    Args:
        classes: of the data.
        norm: from a number of channels to a normalisation behind the first convolution; AlexNet itself has none.
        pooling: "average", or a method of :class:`eigengrad.nn.SecondOrderPool2d`.
        pooling_eps: ε of second-order pooling; ``None`` is the method's own.
        stem_width: channels of the first convolution.
        width: scale of the other layers: 64 is AlexNet, 16 has a quarter of its channels (and 64 in the covariance).
        in_channels: of the images.
        image_size: height and width of the images, at least 63 with "average" and 31 otherwise. The paper has 256.
    """

    def __init__(
        self,
        classes: int,
        *,
        norm: Normalisation,
        pooling: str = "exact",
        pooling_eps: float | None = None,
        stem_width: int = 64,
        width: int = 64,
        in_channels: int = 3,
        image_size: int = 256,
    ) -> None:
        super().__init__()
        average = pooling == POOLINGS[0]
        smallest = 63 if average else 31
        if image_size < smallest:
            raise ValueError(f"AlexNet: image_size must be at least {smallest} for {pooling!r}; got {image_size}")
        # The numbers are torchvision's names; the normalisation has none there.
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["0"] = nn.Conv2d(in_channels, stem_width, 11, stride=4, padding=2)
        layers["norm"] = norm(stem_width)
        layers["1"] = nn.ReLU(inplace=True)
        layers["2"] = nn.MaxPool2d(3, stride=2)
        layers["3"] = nn.Conv2d(stem_width, 3 * width, 5, padding=2)
        layers["4"] = nn.ReLU(inplace=True)
        layers["5"] = nn.MaxPool2d(3, stride=2)
        layers["6"] = nn.Conv2d(3 * width, 6 * width, 3, padding=1)
        layers["7"] = nn.ReLU(inplace=True)
        layers["8"] = nn.Conv2d(6 * width, 4 * width, 3, padding=1)
        layers["9"] = nn.ReLU(inplace=True)
        layers["10"] = nn.Conv2d(4 * width, 4 * width, 3, padding=1)
        layers["11"] = nn.ReLU(inplace=True)
        if average:
            layers["12"] = nn.MaxPool2d(3, stride=2)
        self.features = nn.Sequential(layers)
        self.pool: nn.Module
        self.classifier: nn.Module
        if average:
            hidden = 64 * width
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten())
            self.classifier = nn.Sequential(
                nn.Dropout(),
                nn.Linear(4 * width * 36, hidden),
                nn.ReLU(inplace=True),
                nn.Dropout(),
                nn.Linear(hidden, hidden),
                nn.ReLU(inplace=True),
                nn.Linear(hidden, classes),
            )
        else:
            self.pool, features = second_order(pooling, 4 * width, 4 * width, pooling_eps)
            self.classifier = nn.Linear(features, classes)
        # With torch's own initial weights the features shrink from layer to layer, until their covariance is lost in ε.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes, (N, classes), for images (N, in_channels, H, W)."""
        scores: Tensor = self.classifier(self.pool(self.features(x)))
        return scores
