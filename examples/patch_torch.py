"""Train through a library that calls torch.linalg itself, without changing a line of it.

``Bottleneck`` stands for code that is not yours: it keeps the leading principal components of a batch, and its import
was bound before anybody could replace it. The features start out isotropic, so all components are tied. Run with
``python examples/patch_torch.py``; it takes a second.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.linalg import eigh  # as in the library

import eigengrad as eg


class Bottleneck(nn.Module):
    """Somebody else's layer: features projected on their leading principal components."""

    def __init__(self, components: int) -> None:
        super().__init__()
        self.components = components

    def forward(self, x: Tensor) -> Tensor:
        """Features (M, C) to the ones they are projected on."""
        V = eigh(x.mT @ x / len(x)).eigenvectors[:, -self.components :]
        return x @ V @ V.mT


def train(data: Tensor, target: Tensor) -> list[float]:
    """Learn a linear map in front of the layer, from the identity: the loss after 0, 100 and 1000 steps."""
    weight = torch.eye(data.shape[-1]).requires_grad_()
    layer, optimizer = Bottleneck(2), torch.optim.Adam([weight], 0.02)
    losses = []
    for _ in range(1001):
        loss = (layer(data @ weight) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses[step] for step in (0, 100, 1000)]


def main() -> None:
    """Train without the patch, under it, and without it again: nothing of it is left."""
    generator = torch.Generator().manual_seed(0)
    data = torch.cat([torch.eye(6), -torch.eye(6)])  # covariance: a multiple of the identity
    target = data @ torch.randn(6, 2, generator=generator) @ torch.randn(2, 6, generator=generator)

    def attempt(name: str) -> None:
        try:
            print(f"  {name:<24}" + "".join(f"{loss:10.4f}" for loss in train(data, target)))
        except torch.linalg.LinAlgError as error:
            print(f"  {name:<24}  the gradient was NaN, and then: {str(error)[:44]} …")

    print(f"{'loss after step':<26}{'0':>10}{'100':>10}{'1000':>10}")
    attempt("plain torch")
    with eg.patch_torch():
        attempt("with eg.patch_torch():")
    attempt("plain torch, afterwards")


if __name__ == "__main__":
    main()
