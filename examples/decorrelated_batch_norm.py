"""Train a small network on handwritten digits with batch norm and with decorrelated batch norm.

``python examples/decorrelated_batch_norm.py`` takes less than a minute on a laptop; needs the extra ``lab``.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from eigengrad.nn import DecorrelatedBatchNorm2d, fuse_conv_dbn

STEPS, BATCH = 200, 128


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 × 8, and their labels."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return images, torch.tensor(data.target)


def network() -> nn.Sequential:
    """Two convolutions, with a batch norm behind the first."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """SGD for STEPS batches; the error on the last 500 images, in per cent."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(STEPS):
        chosen = torch.randint(0, len(images) - 500, (BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        return 100 * (model(images[-500:]).argmax(-1) != labels[-500:]).float().mean().item()


def main() -> None:
    """Compare, then fold the whitening layer into the convolution before it."""
    images, labels = digits()
    torch.manual_seed(0)
    print(f"batch norm                  error {train(network(), images, labels):.1f} %")
    for d in (4, 16, 32):
        torch.manual_seed(0)
        model = DecorrelatedBatchNorm2d.convert_batchnorm(network(), group_size=d, eps=1e-2)
        print(f"decorrelated, groups of {d:<3} error {train(model, images, labels):.1f} %")
    folded = nn.Sequential(fuse_conv_dbn(model[0], model[1]), *model[2:])
    same = torch.allclose(folded(images[:10]), model(images[:10]), atol=1e-3)
    print(f"folded into the convolution: {len(folded)} layers instead of {len(model)}, same outputs: {same}")


if __name__ == "__main__":
    main()
