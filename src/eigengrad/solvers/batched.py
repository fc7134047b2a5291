"""Eigendecompositions by the compiled CPU kernels: many matrices side by side, or the rows of one.

Where they do not apply, or LAPACK is faster, this is ``torch.linalg``.
"""

from __future__ import annotations

import functools
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
    plan = _plan(M.shape, M.dtype)
    L, V = torch.empty(plan.values, dtype=M.dtype), torch.empty_strided(M.shape, plan.strides, dtype=M.dtype)
    places = M.data_ptr(), L.data_ptr(), V.data_ptr()
    if plan.short or torch.get_num_threads() == 1:
        status = plan.kernel(*places, 0, plan.batch, plan.n)
    else:
        shares = threads.shares(plan.batch, plan.unit)
        status = max(threads.parallel(plan.kernel, [(*places, first, last, plan.n) for first, last in shares]))
    if status:
        raise LinAlgError("not finite, or no convergence")
    return L, V


class _Plan(NamedTuple):
    """How matrices of one shape are decomposed, worked out once."""

    n: int
    batch: int
    values: tuple[int, ...]  # the shape of the eigenvalues
    strides: tuple[int, ...]  # of the eigenvectors, which are contiguous, as columns: torch's own layout
    kernel: Callable[[int, int, int, int, int, int], int]
    unit: int  # the kernel takes so many matrices at a time
    short: bool  # not worth a second thread


@functools.lru_cache(maxsize=1024)
def _plan(shape: torch.Size, dtype: torch.dtype) -> _Plan:
    """Which kernel, by measurement: from the shape alone, so that a result does not depend on the threads."""
    n, batch = shape[-1], shape[:-2].numel()
    solvers = kernels.eigensolvers(dtype)
    wide = 16 if dtype == torch.float32 else 8
    if n <= 4:
        kernel, unit, cost = solvers.jacobi, wide, 0.6
    elif n <= 16 or (n <= 40 and batch >= 4):
        kernel, unit, cost = solvers.lanes, wide, 4e-3 * n**3
    else:
        kernel, unit, cost = solvers.divided, 1, 2e-4 * n**3
    microseconds = -(-batch // unit) * cost
    return _Plan(n, batch, tuple(shape[:-1]), _strides(shape), kernel, unit, microseconds < _PARALLEL)


def _strides(shape: torch.Size) -> tuple[int, ...]:
    """Of batches of matrices whose columns are contiguous."""
    n = shape[-1]
    strides = [1, n]
    for size in (n * n, *reversed(shape[1:-2])):
        strides.insert(0, size * (strides[0] if len(strides) > 2 else 1))
    return tuple(strides[-len(shape) :])


@torch.library.custom_op("eigengrad::eigh", mutates_args=())
def _eigh_operator(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """What the compiler sees of the kernels: an operator that it does not look into."""
    from . import eigh as checked

    return checked(A, UPLO, "batched", None)


@_eigh_operator.register_fake
def _(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape[:-1]), A.new_empty_strided(A.shape, _strides(A.shape))
