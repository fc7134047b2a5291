"""Eigendecompositions by the CPU kernels, without the checks and the fallback around them."""

from torch import Tensor

from eigengrad import kernels

__all__ = ["eigh", "suits"]


def suits(A: Tensor) -> bool:
    """Whether there is a kernel for the shape and the type of ``A`` (..., n, n)."""
    return A.is_cpu and kernels.plan(A.shape, A.dtype) is not None


def eigh(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., n) and eigenvectors (..., n, n) of A, of which a triangle is read."""
    plan = kernels.plan(A.shape, A.dtype)
    assert plan is not None
    return kernels.decompose(A if UPLO == "L" else A.mT, plan)
