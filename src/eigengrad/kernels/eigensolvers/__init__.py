"""Eigensolvers for real symmetric matrices up to n = 512: Jacobi, batched QL, and divide and conquer.

A plan says which of them decomposes matrices of a shape; it is made once for each shape.

The kernels take a number of the matrices' type (see :mod:`..simd.arrays`), the addresses of A (batch, n, n), L (batch,
n) and V (batch, n, n), all contiguous, and work on chunks of the batch (:mod:`..runtime.work`). A's lower triangles are
read; L gets the eigenvalues, ascending, and V the eigenvectors as rows. Status bits: 1, some matrix is not finite; 2,
some did not converge.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...errors import LinAlgError
from .. import costs
from ..dispatch import REAL, KernelsUnavailableError, available, load, vector_bytes
from ..memory import address, empty_like, readable
from ..templates import template

if TYPE_CHECKING:
    from ..runtime.launch import Launcher

__all__ = ["Plan", "column_major", "decompose", "plan", "plan_exists"]

_LARGEST = 512
_BATCHED = 64  # larger matrices do not fit the cache together
_SHARED = 120.0  # microseconds from which threads share single matrices with gain


class Plan(NamedTuple):
    """How matrices of one shape are decomposed."""

    n: int
    batch: int
    values: Tensor  # a template of the eigenvalues,
    vectors: Tensor  # and of the eigenvectors, with contiguous columns: torch's own layout
    kernel: Launcher
    unit: int  # the kernel takes so many matrices at a time
    microseconds: float

    def __repr__(self) -> str:
        """Without the templates, which have no memory to print."""
        return f"{type(self).__name__}(n={self.n}, batch={self.batch}, unit={self.unit})"


def plan_exists(n: int, entries: int, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for n × n matrices of a type with so many entries in all."""
    return dtype in REAL and 0 < n <= _LARGEST and entries > 0


def plan(shape: torch.Size, dtype: torch.dtype) -> Plan | None:
    """How to decompose matrices of a shape and type; None where there is no kernel."""
    try:
        return _plan(shape, dtype) if available() else None
    except KernelsUnavailableError:
        return None


@functools.lru_cache(maxsize=1024)
def _plan(shape: torch.Size, dtype: torch.dtype) -> Plan | None:
    square = len(shape) >= 2 and shape[-1] == shape[-2]
    if not square or not plan_exists(shape[-1], shape.numel(), dtype):
        return None
    n, batch, single = shape[-1], shape[:-2].numel(), dtype == torch.float32
    unit = vector_bytes() // dtype.itemsize
    divided = costs.divide_and_conquer(n, batch, single)
    # Threads can share single matrices, but not a block of them.
    shared = divided * (1.0 if divided < _SHARED else 0.6 if batch <= unit else 0.8)
    if n <= 4:
        module, name, microseconds = "jacobi", "jacobi", costs.jacobi(n, batch, unit)
    elif _halves() and 2 * batch <= unit and n <= _BATCHED and costs.batched_ql_half(n, single) <= shared:
        module, name, microseconds = "batched_ql", "batched_ql_half", costs.batched_ql_half(n, single)
    elif n <= _BATCHED and costs.batched_ql(n, batch, unit) <= shared:
        module, name, microseconds = "batched_ql", "batched_ql", costs.batched_ql(n, batch, unit)
    else:
        module, name, microseconds, unit = "divide_and_conquer", "divide_and_conquer", divided, 1
    values, vectors = template(shape[:-1], dtype), template(shape, dtype, column_major(shape))
    return Plan(n, batch, values, vectors, load(f"eigensolvers.{module}", name, dtype), unit, microseconds)


def _halves() -> bool:
    """Whether half registers pay for few matrices: where whole ones have 64 bytes, which some CPUs take in halves."""
    return vector_bytes() == 64


def column_major(shape: torch.Size) -> tuple[int, ...]:
    """The strides of batches of matrices whose columns are contiguous."""
    n = shape[-1]
    strides = [1, n]
    for size in (n * n, *reversed(shape[1:-2])):
        strides.insert(0, size * (strides[0] if len(strides) > 2 else 1))
    return tuple(strides[-len(shape) :])


def decompose(A: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., n), ascending, and eigenvectors (..., n, n) of A (..., n, n), whose lower triangles are read.

    Raises:
        LinAlgError: some matrix is not finite, or does not converge.
    """
    n, batch, values, vectors, kernel, unit, microseconds = plan
    M, L, V = readable(A, vectors.dtype, batch * n * n), empty_like(values), empty_like(vectors)
    if kernel.launch((address(M), address(L), address(V)), batch, unit, (n,), microseconds):
        raise LinAlgError("not finite, or no convergence")
    return L, V
