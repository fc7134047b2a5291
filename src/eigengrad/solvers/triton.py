"""Eigendecompositions by the Triton kernels: batches of real matrices up to n = 64, on a GPU.

Everything else, and everything if a kernel fails, is for ``torch.linalg``.
"""

from __future__ import annotations

from torch import Tensor

from ..kernels import gpu
from . import lapack

__all__ = ["eigh", "eigh_measured", "suits", "svd"]

svd = lapack.svd
suits = gpu.suits


def eigh(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors by a kernel wherever there is one. NaN for a matrix that is not finite."""
    if gpu.is_operator("eigh", A, asked=True):
        return _operator(A, UPLO, asked=True)
    found = gpu.eigh(A if UPLO == "L" else A.mT) if suits(A) else None
    return lapack.eigh(A, UPLO) if found is None else found


def eigh_measured(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors by a kernel or by torch, whichever was faster when it was measured."""
    if gpu.is_operator("eigh", A):
        return _operator(A, UPLO, asked=False)
    if not suits(A):
        return lapack.eigh(A, UPLO)
    return gpu.eigh_measured(A if UPLO == "L" else A.mT, lambda: lapack.eigh(A, UPLO))


def _operator(A: Tensor, UPLO: str, asked: bool) -> tuple[Tensor, Tensor]:
    from .. import gpu_operators

    L, V = gpu_operators.eigh(A if UPLO == "L" else A.mT, asked)
    return L, V
