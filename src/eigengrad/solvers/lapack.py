"""The decompositions of ``torch.linalg``: LAPACK on the CPU, cuSOLVER or MAGMA on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor


def eigh(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    eigenvalues, eigenvectors = torch.linalg.eigh(A, UPLO)
    return eigenvalues, eigenvectors


def svd(A: Tensor, full_matrices: bool) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = torch.linalg.svd(A, full_matrices=full_matrices)
    return U, S, Vh
