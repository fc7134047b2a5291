"""The decompositions of ``torch.linalg``: LAPACK on the CPU, cuSOLVER or MAGMA on CUDA.

torch's functions are bound here once, at import: somebody may put ours in their place (``torch.linalg.svd = eg.svd``),
and a name looked up at each call would then lead back to us without end.
"""

from __future__ import annotations

import torch
from torch import Tensor

_torch_eigh, _torch_svd = torch.linalg.eigh, torch.linalg.svd


def eigh(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    eigenvalues, eigenvectors = _torch_eigh(A, UPLO)
    return eigenvalues, eigenvectors


def svd(A: Tensor, full_matrices: bool, driver: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    U, S, Vh = _torch_svd(A, full_matrices=full_matrices, driver=driver)
    return U, S, Vh
