"""Eigendecompositions by the compiled CPU kernels: many matrices side by side, or the rows of one.

Where they do not apply, or LAPACK is faster, this is ``torch.linalg``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import kernels
from .._inputs import is_concrete
from ..errors import LinAlgError
from ..kernels import threads
from . import lapack

__all__ = ["eigh", "suits", "svd"]

svd = lapack.svd

_LARGEST = 512
_PARALLEL = 200.0  # microseconds of work from which a second thread pays


class _Plan(NamedTuple):
    """Which kernel, how many matrices it takes at a time, and about how many microseconds it needs for one."""

    kernel: Callable[[int, int, int, int, int, int], int]
    unit: int
    cost: float


def suits(A: Tensor) -> bool:
    """Whether the kernels can decompose ``A``, and are faster than LAPACK."""
    return (
        A.is_cpu
        and A.dtype in kernels.REAL
        and 0 < A.shape[-1] <= _LARGEST
        and A.numel() > 0
        and (is_concrete(A) or torch.compiler.is_compiling())
    )


def eigh(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of matrices that :func:`suits`; LinAlgError where one is not finite or fails."""
    if torch.compiler.is_compiling():
        L, V = _eigh_operator(A, UPLO)
        return L, V
    M = (A if UPLO == "L" else A.mT).contiguous()
    L, V = _outputs(M)
    n = M.shape[-1]
    batch = M.numel() // (n * n)
    plan = _plan(n, batch, M.dtype)
    places = M.data_ptr(), L.data_ptr(), V.data_ptr()
    if batch * plan.cost < _PARALLEL or torch.get_num_threads() == 1:
        status = plan.kernel(*places, 0, batch, n)
    else:
        shares = threads.shares(batch, plan.unit)
        status = max(threads.parallel(plan.kernel, [(*places, first, last, n) for first, last in shares]))
    if status:
        raise LinAlgError("not finite, or no convergence")
    return L, V


def _outputs(A: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the eigenvalues, and for the eigenvectors, each contiguous, as columns: torch's own layout."""
    *batch, n, _ = A.shape
    strides = [n * n] * len(batch)
    for i in range(len(batch) - 2, -1, -1):
        strides[i] = strides[i + 1] * batch[i + 1]
    return A.new_empty(A.shape[:-1]), A.new_empty_strided(A.shape, (*strides, 1, n))


@torch.library.custom_op("eigengrad::eigh", mutates_args=())
def _eigh_operator(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """What the compiler sees of the kernels: an operator that it does not look into."""
    from . import eigh as checked

    return checked(A, UPLO, "batched", None)


@_eigh_operator.register_fake
def _(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    return _outputs(A)


def _plan(n: int, batch: int, dtype: torch.dtype) -> _Plan:
    """By measurement. The choice depends on the shape alone, so that a result does not depend on the threads."""
    solvers = kernels.eigensolvers(dtype)
    wide = 16 if dtype == torch.float32 else 8
    scale = 16 / wide
    if n <= 4:
        return _Plan(solvers.jacobi, wide, 0.04 * scale)
    if n <= 16 or (n <= 40 and batch >= 4):
        return _Plan(solvers.lanes, wide, 2.5e-4 * n**3 * scale)
    return _Plan(solvers.divided, 1, 2e-4 * n**3 * scale)
