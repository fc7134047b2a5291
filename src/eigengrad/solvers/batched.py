"""Eigendecompositions by the compiled CPU kernels: many matrices side by side, or the rows of one.

They exist for real matrices up to n = 512 in main memory; everything else is for ``torch.linalg``.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .. import kernels
from .._inputs import is_concrete, real_dtype
from ..errors import LinAlgError
from ..kernels.memory import address, empty_like, readable
from ..kernels.templates import template
from . import lapack

if TYPE_CHECKING:
    from ..kernels.runtime.launch import Launcher

__all__ = ["Plan", "eigh", "eigh_at_once", "plan", "suits", "svd"]

svd = lapack.svd

_LARGEST = 512
_SHARED = 120.0  # microseconds from which threads share single matrices with gain
_SIDE_BY_SIDE = 64  # larger ones do not fit the cache together


def suits(A: Tensor) -> bool:
    """Whether there are kernels that decompose ``A``."""
    return (
        A.is_cpu
        and kernels.available()
        and _exist_for(A.shape[-1], A.numel(), A.dtype)
        and (is_concrete(A) or torch.compiler.is_compiling())
    )


def _exist_for(n: int, entries: int, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for n×n matrices of so many entries in all."""
    return dtype in kernels.REAL and 0 < n <= _LARGEST and entries > 0


def eigh(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of matrices that :func:`suits`; LinAlgError where one is not finite or fails."""
    if torch.compiler.is_compiling():
        L, V = _eigh_operator(A, UPLO)
        return L, V
    how = plan(A)
    assert how is not None
    return _decompose(A if UPLO == "L" else A.mT, how)


def plan(A: Tensor) -> Plan | None:
    """How the kernels decompose what is in main memory, or claims to be; None if that is not for them."""
    return _plan(A.shape, A.dtype) if kernels.available() else None


def eigh_at_once(A: Tensor, plan: Plan | None) -> tuple[Tensor, Tensor] | None:
    """:func:`eigh` by its :func:`plan`; None if there is none, A has no memory after all, or the kernels fail."""
    try:
        return None if plan is None else _decompose(A, plan)
    except RuntimeError:
        return None


def _decompose(A: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    n, batch, values, vectors, kernel, unit, microseconds = plan
    M, L, V = readable(A, vectors.dtype, batch * n * n), empty_like(values), empty_like(vectors)
    status = kernel.launch((address(M), address(L), address(V)), batch, unit, (n,), microseconds)
    if status:
        raise LinAlgError("not finite, or no convergence")
    return L, V


class Plan(NamedTuple):
    """How matrices of one shape are decomposed, worked out once."""

    n: int
    batch: int
    values: Tensor  # templates
    vectors: Tensor  # with contiguous columns: torch's own layout
    kernel: Launcher
    unit: int  # the kernel takes so many matrices at a time
    microseconds: float  # that it takes alone, about

    def __repr__(self) -> str:
        """Without the templates, which have no memory to print."""
        return f"{type(self).__name__}(n={self.n}, batch={self.batch}, unit={self.unit})"


@functools.lru_cache(maxsize=1024)
def _plan(shape: torch.Size, dtype: torch.dtype) -> Plan | None:
    """Which kernel, by measurement; None where there is none.

    From the shape alone, so that a result does not depend on the threads.
    """
    square = len(shape) >= 2 and shape[-1] == shape[-2]
    if not square or not _exist_for(shape[-1], shape.numel(), dtype):
        return None
    from ..kernels import eigh as entries

    n, batch = shape[-1], shape[:-2].numel()
    single = dtype == torch.float32
    unit = 16 if single else 8
    blocks = -(-batch // unit)
    side_by_side = blocks * (1.5 + 0.02 * n**2 + 1.35e-3 * n**3)  # microseconds, as is what follows
    few = 1 + (0.014 if single else 0.016) * n**2 + (6.2e-4 if single else 7.2e-4) * n**3
    divided = batch * (4 + 0.15 * n + (5e-3 if single else 6.5e-3) * n**2 + (7e-5 if single else 1.2e-4) * n**3)
    # Threads can share single matrices, but not a block.
    shared = divided * (1.0 if divided < _SHARED else 0.6 if blocks == 1 else 0.8)
    if n <= 4:
        name, microseconds = "by_jacobi", blocks * 0.5
    elif entries.HALVES and 2 * batch <= unit and n <= _SIDE_BY_SIDE and few <= shared:
        name, microseconds = "few_side_by_side", few
    elif n <= _SIDE_BY_SIDE and side_by_side <= shared:
        name, microseconds = "side_by_side", side_by_side
    else:
        name, microseconds, unit = "divided", divided, 1
    values, vectors = template(shape[:-1], dtype), template(shape, dtype, _strides(shape))
    return Plan(n, batch, values, vectors, kernels.load("eigh", name, dtype), unit, microseconds)


def _strides(shape: torch.Size) -> tuple[int, ...]:
    """Of batches of matrices whose columns are contiguous."""
    n = shape[-1]
    strides = [1, n]
    for size in (n * n, *reversed(shape[1:-2])):
        strides.insert(0, size * (strides[0] if len(strides) > 2 else 1))
    return tuple(strides[-len(shape) :])


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
        return lapack.eigh(A, UPLO) if how is None else _decompose(A if UPLO == "L" else A.mT, how)
    except LinAlgError:
        name_non_finite("eigh", A, UPLO)
        return once_more("eigh", lambda M: lapack.eigh(M, UPLO), A)


@_eigh_operator.register_fake
def _(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape[:-1], dtype=real_dtype(A.dtype)), A.new_empty_strided(A.shape, _strides(A.shape))
