"""Learn a rotation that a network predicts as a 3 × 3 matrix, starting where torch's gradient is NaN.

A network that predicts a pose often ends in a matrix M and takes the nearest rotation to it, U diag(1, 1, ±1) Vᵀ. It
starts near the identity, where all singular values are tied. Run with ``python examples/pose.py``; it takes a second.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import eigengrad as eg


def by_hand(svd: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
    """The nearest rotation as it is usually written, through the singular vectors."""

    def rotation(M: Tensor) -> Tensor:
        U, _, Vh = svd(M)
        sign = torch.det(U @ Vh).detach()
        return U @ torch.diag(torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign])) @ Vh

    return rotation


ROTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.linalg.svd": by_hand(torch.linalg.svd),
    "eigengrad.svd": by_hand(eg.svd),
    "eigengrad.polar": lambda M: eg.polar(M, special=True).U,
}


def learn(rotation: Callable[[Tensor], Tensor], points: Tensor, seen: Tensor) -> list[float]:
    """Gradient descent on M from the identity: the mean squared distance after 0, 10, 50 and 200 steps."""
    M = torch.eye(3, requires_grad=True)
    optimizer = torch.optim.SGD([M], lr=0.1)
    losses = []
    for _ in range(201):
        loss = (points @ rotation(M).mT - seen).square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [losses[step] for step in (0, 10, 50, 200)]


def main() -> None:
    """Three ways to the same rotation; then the rigid motion between noisy points in one call."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(100, 3, generator=generator)
    truth = torch.matrix_exp(torch.tensor([[0.0, -0.9, 0.4], [0.9, 0.0, -0.7], [-0.4, 0.7, 0.0]]))
    seen = points @ truth.mT
    print(f"{'mean squared distance after step':<34}{'0':>10}{'10':>10}{'50':>10}{'200':>10}")
    for name, rotation in ROTATIONS.items():
        try:
            print(f"  {name:<32}" + "".join(f"{loss:10.2e}" for loss in learn(rotation, points, seen)))
        except torch.linalg.LinAlgError as error:
            print(f"  {name:<32}  the gradient was NaN, and then: {str(error)[:44]} …")

    seen = seen + torch.tensor([1.0, 2.0, 3.0]) + 0.01 * torch.randn(100, 3, generator=generator)
    weights = torch.ones(100).requires_grad_()  # a network's confidence in each point, say
    R, t, _ = eg.kabsch(points, seen, weights)
    error = (R - truth).square().sum()
    error.backward()
    print(f"\nkabsch: translation {[round(x, 2) for x in t.tolist()]}, error of the rotation {error.sqrt():.1e}")
    print(f"and its gradient reaches the weights: {weights.grad.norm():.1e}")


if __name__ == "__main__":
    main()
