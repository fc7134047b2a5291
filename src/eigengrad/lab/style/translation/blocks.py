"""The convolutions that every network of the translation is made of."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

__all__ = ["ConvBlock", "ResidualBlock", "initialise"]

#: From a number of channels to a normalisation.
Norm = Callable[[int], nn.Module]


class ConvBlock(nn.Sequential):
    """A convolution of a map with mirrored borders (zeros leave a frame in pictures), a norm and an activation."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int,
        stride: int = 1,
        *,
        norm: Norm | None = None,
        activation: nn.Module | None = None,
    ) -> None:
        # A kernel of 4 with stride 2 halves the map with one pixel of border.
        border = (kernel - 1) // 2
        layers: list[nn.Module] = [
            nn.Conv2d(channels_in, channels_out, kernel, stride, border, padding_mode="reflect" if border else "zeros")
        ]
        layers += [norm(channels_out)] if norm is not None else []
        layers += [activation] if activation is not None else []
        super().__init__(*layers)


class ResidualBlock(nn.Module):
    """x + f(x) with two convolutions of 3×3."""

    def __init__(self, channels: int, *, norm: Norm | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ConvBlock(channels, channels, 3, norm=norm, activation=nn.ReLU()),
            ConvBlock(channels, channels, 3, norm=norm),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The output, in the shape of ``x``."""
        y: Tensor = x + self.body(x)
        return y


def initialise(network: nn.Module, fill: Callable[[Tensor], object]) -> None:
    """Fill the weights of all convolutions and linear layers; their biases are zero."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            fill(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
