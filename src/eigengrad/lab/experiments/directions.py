"""The column of K̃ that the paper's appendix follows, as each gradient rule fills it.

For eigenvalues λ1 ≥ λ2 ≥ λ3 the third column of K̃ is (1/(λ1 − λ3), 1/(λ2 − λ3), 0). A rule replaces its two entries;
its direction error is the angle by which that turns the column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...gradients import Clip, PairRule, Taylor

__all__ = ["CLIP", "TAYLOR", "column", "direction", "direction_error", "true_direction"]

#: The paper's settings. ε is far below the eigenvalues here, so it has no part in the result.
TAYLOR, CLIP = Taylor(degree=9, eps=1e-12), Clip(threshold=100.0)


def column(rule: PairRule, eigenvalues: Tensor) -> Tensor:
    """(K̂13, K̂23) of eigenvalues (..., 3) in falling order: (..., 2)."""
    R = rule.reciprocal(eigenvalues.flip(-1))  # rules take rising order: index 0 is λ3
    return torch.stack([R[..., 2, 0], R[..., 1, 0]], -1)


def direction(rule: PairRule, eigenvalues: Tensor) -> Tensor:
    """Angle of the column with the first axis, in degrees: the paper's β."""
    x, y = column(rule, eigenvalues).unbind(-1)
    return torch.rad2deg(torch.atan2(y, x))


def true_direction(eigenvalues: Tensor) -> Tensor:
    """Angle of the exact column in degrees, the paper's α: tan α = (λ1 − λ3)/(λ2 − λ3), 90° at a tie of λ2 and λ3.

    At a tie of all three both entries are infinite, and the paper takes the direction of (1, 1).
    """
    first, second, third = eigenvalues.unbind(-1)
    alpha = torch.rad2deg(torch.atan2(first - third, second - third))
    return torch.where(first == third, torch.full_like(alpha, 45.0), alpha)


def direction_error(rule: PairRule, eigenvalues: Tensor) -> Tensor:
    """β − α in degrees: the paper's ρ."""
    return direction(rule, eigenvalues) - true_direction(eigenvalues)
