"""Measures of a spectrum: gaps, and what they are relative to. Eigenvalues ascend."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["pair_gaps", "reciprocal_where", "round_off", "spectrum_scale", "spread"]


def pair_gaps(L: Tensor) -> Tensor:
    """|λ_i − λ_j| for every pair: (..., n) to (..., n, n). Exact for close eigenvalues, which is where it matters."""
    return (L.unsqueeze(-2) - L.unsqueeze(-1)).abs()


def spectrum_scale(eigenvalues: Tensor) -> Tensor:
    """max |λ|, (..., 1): what tolerances are relative to. The zero matrix has no scale and counts as 1."""
    scale = eigenvalues.abs().amax(-1, keepdim=True)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def spread(eigenvalues: Tensor) -> Tensor:
    """λ_max − λ_min of ascending eigenvalues, (..., 1): what gaps are relative to, for it does not feel a shift.

    Where all eigenvalues are equal to round-off, max|λ| takes its place.
    """
    difference = eigenvalues[..., -1:] - eigenvalues[..., :1]
    return torch.where(difference > round_off(eigenvalues), difference, spectrum_scale(eigenvalues))


def round_off(eigenvalues: Tensor) -> Tensor:
    """n · finfo.eps · max|λ|, (..., 1): how accurately the eigenvalues of a matrix are known."""
    return spectrum_scale(eigenvalues) * (eigenvalues.shape[-1] * torch.finfo(eigenvalues.dtype).eps)


def reciprocal_where(apart: Tensor, gaps: Tensor) -> Tensor:
    """1/gap where ``apart``, 0 elsewhere, with derivatives that never see the division by zero."""
    safe = torch.where(apart, gaps, torch.ones_like(gaps))
    return torch.where(apart, 1.0 / safe, torch.zeros_like(gaps))
