"""Tell textures apart that no average can: second-order pooling of a batch of images, with every method.

The two classes have the same mean and variance in every channel and differ only in how channels go together. Run with
``python examples/second_order_pooling.py``; it takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eigengrad.nn.second_order_pool import METHODS, SecondOrderPool2d

CHANNELS, STEPS = 8, 60


def textures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise (count, 8, 5, 5) whose channels 2k and 2k+1 agree in one class and are opposite in the other."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    first, second = torch.randn(2, count, CHANNELS // 2, 5, 5, generator=generator)
    sign = (2.0 * labels - 1)[:, None, None, None]
    images = torch.stack([first, 0.4 * sign * first + (1 - 0.4**2) ** 0.5 * second], 2).flatten(1, 2)
    return images, labels


def accuracy(pool: nn.Module, features: int) -> float:
    """Train a linear classifier after the pooling layer, and count what it gets right on other images."""
    torch.manual_seed(0)
    model = nn.Sequential(pool, nn.Linear(features, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    images, labels = textures(256, seed=0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    images, labels = textures(1000, seed=1)
    with torch.no_grad():
        return (model(images).argmax(-1) == labels).double().mean().item()


def main() -> None:
    """Average pooling, then every second-order method."""
    average = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    print(f"{'average pooling':<20} {accuracy(average, CHANNELS):6.1%}")
    for method in METHODS:
        torch.manual_seed(0)
        pool = SecondOrderPool2d(CHANNELS, CHANNELS, method=method)
        print(f"{method:<20} {accuracy(pool, pool.num_features):6.1%}")


if __name__ == "__main__":
    main()
