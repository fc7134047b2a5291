"""Eigendecompositions on a GPU: by the Triton kernels for batches of real matrices up to n = 64.

Larger ones may be faster on the CPU, copies there and back included, because ``torch.linalg.eigh`` on CUDA decomposes
them one by one; that is measured. Everything else, and everything if a kernel fails, is for ``torch.linalg``.
"""

from __future__ import annotations

from torch import Tensor

from .. import kernels
from .._execution import ExecutionMode, execution_mode
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
    lower = A if UPLO == "L" else A.mT
    if suits(A):
        return gpu.eigh_measured(lower, lambda: lapack.eigh(A, UPLO))
    plan = _plan_on_cpu(A)
    if plan is None:
        return lapack.eigh(A, UPLO)
    return gpu.eigh_by_copy(lower, lambda: lapack.eigh(A, UPLO), lambda: _by_cpu(lower, plan))


def _plan_on_cpu(A: Tensor) -> kernels.Plan | None:
    """How the CPU kernels would decompose A (..., n, n) with n > 64; None if they cannot, or nobody may look."""
    if A.shape[-1] <= gpu.LARGEST or execution_mode() is not ExecutionMode.EAGER:
        return None
    return kernels.plan(A.shape, A.dtype)


def _by_cpu(A: Tensor, plan: kernels.Plan) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors by the CPU kernels, from the lower triangle, with a copy there and back."""
    L, V = kernels.decompose(A.cpu(), plan)
    return L.to(A.device), V.to(A.device)


def _operator(A: Tensor, UPLO: str, asked: bool) -> tuple[Tensor, Tensor]:
    from .. import gpu_operators

    L, V = gpu_operators.eigh(A if UPLO == "L" else A.mT, asked)
    return L, V
