"""Rectangular matrices with given singular values."""

import torch

from functions_matrix import rotation

F64 = torch.float64

SHAPES = [(3, 3), (5, 3), (3, 5)]


def with_singular_values(sigma, shape, dtype: torch.dtype = F64, rotate: bool = True) -> torch.Tensor:
    """A matrix of a shape (m, n) with singular values σ; not rotated, it is diagonal, and ties are exact."""
    wide = torch.complex128 if dtype.is_complex else F64
    m, n = shape
    A = torch.zeros(m, n, dtype=wide)
    A[: len(sigma), : len(sigma)] = torch.diag(torch.tensor(sigma, dtype=F64)).to(wide)
    if rotate:
        A = rotation(m, wide, 1) @ A @ rotation(n, wide, 2)
    return A.to(dtype)
