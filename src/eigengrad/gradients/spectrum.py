"""Measures of a spectrum: gaps, and what they are relative to. Eigenvalues ascend."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["pair_gaps", "reciprocal_where", "round_off", "spectrum_scale", "spread"]


def pair_gaps(L: Tensor) -> Tensor:
    """|λ_i − λ_j| for every pair of ascending eigenvalues: (..., n) to (..., n, n).

    By the order of the indices instead of an absolute value, which would have no derivative at a tie.
    """
    upper = torch.triu(L.unsqueeze(-2) - L.unsqueeze(-1), 1)
    return upper + upper.mT


def spectrum_scale(eigenvalues: Tensor) -> Tensor:
    """max |λ|, (..., 1): what round-off is relative to. The zero matrix has no scale and counts as 1."""
    scale = torch.maximum(eigenvalues[..., :1].abs(), eigenvalues[..., -1:].abs())
    return torch.where(scale > 0, scale, 1.0)


def spread(eigenvalues: Tensor, scale: Tensor | None = None) -> Tensor:
    """λ_max − λ_min, (..., 1): what gaps are relative to, for it does not feel a shift.

    Where all eigenvalues are equal to round-off, their scale takes its place.

    Args:
        eigenvalues: (..., n).
        scale: their :func:`spectrum_scale`, from a caller who has it.
    """
    scale = spectrum_scale(eigenvalues) if scale is None else scale
    difference = eigenvalues[..., -1:] - eigenvalues[..., :1]
    return torch.where(difference > scale * _relative_round_off(eigenvalues), difference, scale)


def round_off(eigenvalues: Tensor) -> Tensor:
    """n · finfo.eps · max|λ|, (..., 1): how accurately the eigenvalues of a matrix are known."""
    return spectrum_scale(eigenvalues) * _relative_round_off(eigenvalues)


def _relative_round_off(eigenvalues: Tensor) -> float:
    return eigenvalues.shape[-1] * torch.finfo(eigenvalues.dtype).eps


def reciprocal_where(apart: Tensor, gaps: Tensor) -> Tensor:
    """1/gap where ``apart``, 0 elsewhere: the reciprocal of infinity, whose derivatives are zero as well."""
    return torch.where(apart, gaps, torch.inf).reciprocal()
