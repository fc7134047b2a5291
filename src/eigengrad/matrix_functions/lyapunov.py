"""The equation S X + X S = C by products alone: the backward pass of iterative square roots."""

from __future__ import annotations

import torch
from torch import Tensor

from ..matmul import precise_matmul

__all__ = ["lyapunov_by_products"]


def lyapunov_by_products(S: Tensor, C: Tensor, steps: int) -> Tensor:
    """X with S X + X S ≈ C, by coupled Newton–Schulz iterations for the sign of [[S, C], [0, −S]].

    From B = S/‖S‖, C/‖S‖:  C ← ½ (C (3 I − B²) − B² C + B C B),  B ← ½ B (3 I − B²);  X = ½ C. Eigenvalues of B grow by
    1.5 a step until they are 1, so ``steps`` reach what is above ‖S‖/1.5^steps: 4 % of the norm in 8 steps.

    Args:
        S: Hermitian and positive definite, (..., n, n).
        C: (..., n, n).
        steps: iterations, at least 1.
    """
    largest = S.detach().abs().amax((-2, -1), keepdim=True) if S.numel() else S.detach().sum((-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, torch.ones_like(largest))  # whose squares are in range
    norm = torch.linalg.vector_norm(S / largest, dim=(-2, -1), keepdim=True) * largest
    norm = torch.where(norm > 0, norm, torch.ones_like(norm))
    three = 3 * torch.eye(S.shape[-1], dtype=S.dtype, device=S.device)
    B, C = S / norm, C / norm
    for _ in range(steps):
        square = precise_matmul(B, B)
        rest = three - square
        C = 0.5 * (precise_matmul(C, rest) - precise_matmul(square, C) + precise_matmul(precise_matmul(B, C), B))
        B = 0.5 * precise_matmul(B, rest)
    return 0.5 * C
