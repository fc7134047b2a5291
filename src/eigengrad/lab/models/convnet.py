"""A small convolutional network for very small images, such as the 8×8 digits."""

from __future__ import annotations

from torch import Tensor, nn

from .head import pooled
from .normalisation import Normalisation

__all__ = ["ConvNet"]


class ConvNet(nn.Module):
    """Three 3×3 convolutions, the normalisation under test behind the first, batch norm behind the others.

    Args:
        classes: of the data.
        norm: from a number of channels to the normalisation under test.
        pooling: "average", or a method of :class:`eigengrad.nn.SecondOrderPool2d` on ``width`` channels.
        pooling_eps: ε of second-order pooling; ``None`` is the method's own.
        stem_width: channels of the first convolution.
        width: channels of the second; the third, which halves the size, has twice as many.
        in_channels: of the images.
        image_size: height and width of the images.
    """

    def __init__(
        self,
        classes: int,
        *,
        norm: Normalisation,
        pooling: str = "average",
        pooling_eps: float | None = None,
        stem_width: int = 64,
        width: int = 64,
        in_channels: int = 1,
        image_size: int = 8,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, stem_width, 3, padding=1, bias=False)
        self.bn1 = norm(stem_width)
        self.conv2 = nn.Conv2d(stem_width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * width)
        self.relu = nn.ReLU(inplace=True)
        size = (image_size + 1) // 2
        self.pool, features = pooled(pooling, 2 * width, size, window=size, reduced=width, eps=pooling_eps)
        self.fc = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes, (N, classes), for images (N, in_channels, H, W)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.relu(self.bn3(self.conv3(x)))
        scores: Tensor = self.fc(self.pool(x))
        return scores
