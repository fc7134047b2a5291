"""Compiled CPU kernels, from the extra ``fast`` (numba). Everything works without them, only slower.

Whoever has a kernel asks here whether it may be used; the modules beside this one import numba and are loaded on first
use, so that importing eigengrad stays quick.
"""

from __future__ import annotations

import cmath
import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._inputs import is_concrete

__all__ = ["REAL", "all_finite", "available", "eigensolvers", "taylor_kernels", "usable"]


REAL = frozenset({torch.float32, torch.float64})
_SMALL = 1 << 14


_INSTALLED = importlib.util.find_spec("numba") is not None


def available() -> bool:
    """Whether numba is installed."""
    return _INSTALLED


def usable(X: Tensor) -> bool:
    """Whether a kernel can work on ``X``: real numbers in main memory, with no derivative to record."""
    return not torch.is_grad_enabled() and X.is_cpu and X.dtype in REAL and available() and is_concrete(X)


@functools.cache
def finite_kernel(dtype: torch.dtype) -> Callable[[int, int], bool]:
    """The check of :mod:`eigengrad.kernels.finite` for ``dtype``."""
    from . import finite

    check: Callable[[int, int], bool] = finite.finite32 if dtype == torch.float32 else finite.finite64
    return check


def all_finite(A: Tensor) -> bool:
    """Whether ``A`` holds neither NaN nor infinity; a sum that overflows counts as a no.

    By the kernel where that is at hand: for small contiguous matrices, once numba has been loaded.
    """
    if "numba" in sys.modules and A.dtype in REAL and A.is_cpu and A.is_contiguous() and A.numel() <= _SMALL:
        return finite_kernel(A.dtype)(A.data_ptr(), A.numel())
    return cmath.isfinite(A.sum().item())


class Eigensolvers(NamedTuple):
    """What :mod:`eigengrad.kernels.eigh` offers for one type."""

    jacobi: Callable[[int, int, int, int, int, int], int]
    lanes: Callable[[int, int, int, int, int, int], int]
    divided: Callable[[int, int, int, int, int, int], int]


@functools.cache
def eigensolvers(dtype: torch.dtype) -> Eigensolvers:
    """The eigensolvers for ``dtype``, loaded when they are first needed."""
    from . import eigh

    if dtype == torch.float32:
        return Eigensolvers(eigh.jacobi32, eigh.lanes32, eigh.divided32)
    return Eigensolvers(eigh.jacobi64, eigh.lanes64, eigh.divided64)


class TaylorKernels(NamedTuple):
    """What :mod:`eigengrad.kernels.taylor` offers for one type."""

    bracket: Callable[..., None]
    pullback: Callable[..., None]


@functools.cache
def taylor_kernels(dtype: torch.dtype) -> TaylorKernels:
    """The kernels for ``dtype``, loaded when they are first needed."""
    from . import taylor

    if dtype == torch.float32:
        return TaylorKernels(taylor.bracket32, taylor.pullback32)
    return TaylorKernels(taylor.bracket64, taylor.pullback64)
