"""Eigendecompositions by the compiled CPU kernels: many matrices at once, or the rows of one.

They exist for real matrices up to n = 512 in main memory; everything else is for ``torch.linalg``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from .._inputs import is_concrete, real_dtype
from ..errors import LinAlgError
from ..kernels import eigensolvers
from ..kernels.eigensolvers import Plan
from . import lapack

__all__ = ["Plan", "eigh", "eigh_at_once", "plan", "suits", "svd"]

svd = lapack.svd


def suits(A: Tensor) -> bool:
    """Whether there are kernels that decompose ``A``."""
    return (
        A.is_cpu
        and kernels.available()
        and eigensolvers.plan_exists(A.shape[-1], A.numel(), A.dtype)
        and (is_concrete(A) or torch.compiler.is_compiling())
    )


def eigh(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of matrices that :func:`suits`; LinAlgError where one is not finite or fails."""
    if torch.compiler.is_compiling():
        L, V = _eigh_operator(A, UPLO)
        return L, V
    how = plan(A)
    return lapack.eigh(A, UPLO) if how is None else eigensolvers.decompose(A if UPLO == "L" else A.mT, how)


def plan(A: Tensor) -> Plan | None:
    """How the kernels decompose what is in main memory, or claims to be; None if that is not for them."""
    return eigensolvers.plan(A.shape, A.dtype)


def eigh_at_once(A: Tensor, plan: Plan | None) -> tuple[Tensor, Tensor] | None:
    """:func:`eigh` by its :func:`plan`; None if there is none, A has no memory after all, or the kernels fail."""
    try:
        return None if plan is None else eigensolvers.decompose(A, plan)
    except RuntimeError:
        return None


@torch.library.custom_op("eigengrad::eigh", mutates_args=())
def _eigh_operator(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """What the compiler sees of the kernels: an operator that it does not look into.

    Here are numbers to compute with, although ``torch.compiler.is_compiling`` may hold: it does for all threads while
    one of them compiles, and while the compiler folds constants.
    """
    from . import name_non_finite, once_more

    how = plan(A) if A.is_cpu else None  # a program may be saved and moved
    if how is None and A.is_cpu:
        name_non_finite("eigh", A, UPLO)
    try:
        return lapack.eigh(A, UPLO) if how is None else eigensolvers.decompose(A if UPLO == "L" else A.mT, how)
    except LinAlgError:
        name_non_finite("eigh", A, UPLO)
        return once_more("eigh", lambda M: lapack.eigh(M, UPLO), A)


@_eigh_operator.register_fake
def _(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    strides = eigensolvers.column_major(A.shape)
    return A.new_empty(A.shape[:-1], dtype=real_dtype(A.dtype)), A.new_empty_strided(A.shape, strides)
