"""Eigendecompositions by the compiled CPU kernels: many matrices at once, or the rows of one.

They exist for real matrices up to n = 512 in main memory; everything else is for ``torch.linalg``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from ..kernels import Plan, column_major, plan_exists
from ..precision import real_dtype
from .fallback import decompose, name_non_finite

__all__ = ["Plan", "eigh_operator", "is_operator", "plan"]


def plan(A: Tensor) -> Plan | None:
    """How the kernels decompose what is in main memory; None if that is not for them."""
    return kernels.plan(A.shape, A.dtype)


def is_operator(A: Tensor) -> bool:
    """Whether the compiler is to see the kernels as an operator: it compiles, and there are kernels for ``A``."""
    return (
        torch.compiler.is_compiling()
        and A.device.type == "cpu"
        and kernels.available()
        and plan_exists(A.shape[-1], A.numel(), A.dtype)
    )


def eigh_operator(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors by an operator that the compiler does not look into."""
    L, V = _eigh_operator(A, UPLO)
    return L, V


@torch.library.custom_op("eigengrad::eigh", mutates_args=())
def _eigh_operator(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    """What the compiler sees of the kernels.

    Here are numbers to compute with, although ``torch.compiler.is_compiling`` may hold: it does for all threads while
    one of them compiles, and while the compiler folds constants.
    """
    found = plan(A) if A.device.type == "cpu" else None  # a program may be saved and moved
    if found is None and A.device.type == "cpu":
        name_non_finite("eigh", A, UPLO)
    return decompose("eigh", A, UPLO, found)


@_eigh_operator.register_fake
def _(A: Tensor, UPLO: str) -> tuple[Tensor, Tensor]:
    strides = column_major(A.shape)
    return A.new_empty(A.shape[:-1], dtype=real_dtype(A.dtype)), A.new_empty_strided(A.shape, strides)
