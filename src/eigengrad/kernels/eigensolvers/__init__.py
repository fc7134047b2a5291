"""Eigensolvers for real symmetric matrices up to n = 512: Jacobi, batched QL, and divide and conquer.

A plan says which of them decomposes matrices of a shape; it is made once for each shape.

The kernels take a number of the matrices' type (see :mod:`..simd.arrays`), the addresses of A (batch, n, n), L (batch,
n) and V (batch, n, n), all contiguous, and work on chunks of the batch (:mod:`..runtime.work`). A's lower triangles are
read; L gets the eigenvalues, ascending, and V the eigenvectors as rows. Status bits: 1, some matrix is not finite; 2,
some did not converge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...errors import LinAlgError
from .. import costs
from ..dispatch import REAL, KernelsUnavailableError, available, load, vector_bytes
from ..memory import InMemory, address, column_major, maker, readable

if TYPE_CHECKING:
    from ..runtime.launch import Launcher

__all__ = ["Plan", "column_major", "decompose", "plan", "plan_exists"]


class Plan(NamedTuple):
    """How matrices of one shape are decomposed."""

    n: int
    batch: int
    dtype: torch.dtype
    new_values: Callable[[], InMemory]
    new_vectors: Callable[[], InMemory]  # with contiguous columns: torch's own layout
    kernel: Launcher
    unit: int  # the kernel takes so many matrices at a time
    microseconds: float


def plan_exists(n: int, entries: int, dtype: torch.dtype) -> bool:
    """Whether there is a kernel for n × n matrices of a type with so many entries in all."""
    return dtype in REAL and 0 < n <= costs.LARGEST and entries > 0


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
    batched = n <= costs.LARGEST_BATCHED_QL
    shared = costs.shared_divide_and_conquer(n, batch, unit, single)
    if n <= 4:
        module, name, microseconds = "jacobi", "jacobi", costs.jacobi(n, batch, unit)
    elif (
        _halves() and 2 * batch <= unit and n <= costs.LARGEST_BATCHED_QL and costs.batched_ql_half(n, single) <= shared
    ):
        module, name, microseconds = "batched_ql", "batched_ql_half", costs.batched_ql_half(n, single)
    elif batched and costs.batched_ql(n, batch, unit) <= shared:
        module, name, microseconds = "batched_ql", "batched_ql", costs.batched_ql(n, batch, unit)
    else:
        microseconds = costs.divide_and_conquer(n, batch, unit, single)
        module, name, unit = "divide_and_conquer", "divide_and_conquer", 1
    values, vectors = maker(shape[:-1], dtype), maker(shape, dtype, column_major(shape))
    return Plan(n, batch, dtype, values, vectors, load(f"eigensolvers.{module}", name, dtype), unit, microseconds)


def _halves() -> bool:
    """Whether half registers pay for few matrices: where whole ones have 64 bytes, which some CPUs take in halves."""
    return vector_bytes() == 64


def decompose(A: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., n), ascending, and eigenvectors (..., n, n) of A (..., n, n), whose lower triangles are read.

    Raises:
        LinAlgError: some matrix is not finite, or does not converge.
    """
    n, batch, dtype, new_values, new_vectors, kernel, unit, microseconds = plan
    M, L, V = readable(A, dtype, batch * n * n), new_values(), new_vectors()
    if kernel.launch((address(M), address(L), address(V), batch, n), batch, unit, microseconds):
        raise LinAlgError("not finite, or no convergence")
    return L, V
