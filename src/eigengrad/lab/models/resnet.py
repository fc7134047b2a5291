"""ResNet-18 and ResNet-50 for small images, as Table 2 of the paper has them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .head import pooled
from .normalisation import Normalisation

__all__ = ["BasicBlock", "Bottleneck", "ResNet", "resnet18", "resnet50"]


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of ``width`` channels."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        z: Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return z


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions and a shortcut; the stride is in the 3×3 one, as in torchvision."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Feature maps of 4·``width`` channels."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        z: Tensor = self.relu(y + (x if self.downsample is None else self.downsample(x)))
        return z


class ResNet(nn.Module):
    """The paper's Table 2: a 3×3 stem of stride 1, the norm under test, stages of strides 1, 2, 2, 2, 4×4 averages.

    There is no max-pooling, and every other normalisation is batch norm. Names of parameters are torchvision's.

    Args:
        block: :class:`BasicBlock` or :class:`Bottleneck`.
        depths: how many blocks each of the four stages has.
        classes: of the data.
        norm: from a number of channels to the normalisation under test, which stands behind the first convolution.
        pooling: "average", or a method of :class:`eigengrad.nn.SecondOrderPool2d` on 4·``width`` channels.
        pooling_eps: ε of second-order pooling; ``None`` is the method's own.
        stem_width: channels of the stem, those that are whitened.
        width: channels of the first stage; each later stage has twice as many as the one before it.
        in_channels: of the images.
        image_size: height and width of the images. A map that is smaller than 4×4 in the end is averaged as a whole.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        classes: int,
        *,
        norm: Normalisation,
        pooling: str = "average",
        pooling_eps: float | None = None,
        stem_width: int = 64,
        width: int = 64,
        in_channels: int = 3,
        image_size: int = 32,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, stem_width, 3, padding=1, bias=False)
        self.bn1 = norm(stem_width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(block, depths[0], stem_width, width, 1)
        self.layer2 = _stage(block, depths[1], width * block.expansion, 2 * width, 2)
        self.layer3 = _stage(block, depths[2], 2 * width * block.expansion, 4 * width, 2)
        self.layer4 = _stage(block, depths[3], 4 * width * block.expansion, 8 * width, 2)
        size = -(-image_size // 8)
        self.avgpool, features = pooled(
            pooling, 8 * width * block.expansion, size, window=4, reduced=4 * width, eps=pooling_eps
        )
        self.fc = nn.Linear(features, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes, (N, classes), for images (N, in_channels, H, W)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: Tensor = self.fc(self.avgpool(x))
        return scores


def resnet18(classes: int, **options: Any) -> ResNet:
    """ResNet-18: two basic blocks a stage. Options are those of :class:`ResNet`."""
    return ResNet(BasicBlock, (2, 2, 2, 2), classes, **options)


def resnet50(classes: int, **options: Any) -> ResNet:
    """ResNet-50: three, four, six and three bottlenecks. Options are those of :class:`ResNet`."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, **options)


def _stage(
    block: type[BasicBlock] | type[Bottleneck], depth: int, in_channels: int, width: int, stride: int
) -> nn.Sequential:
    """Blocks of one width, the first of which changes the shape."""
    first = block(in_channels, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module | None:
    """The 1×1 convolution that a shortcut needs where a block changes the shape."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))
