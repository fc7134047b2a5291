"""Compiled CPU kernels, from the extra ``fast`` (numba). Everything works without them, only slower.

Whoever has a kernel asks here whether it may be used; the modules beside this one import numba and are loaded on first
use, so that importing eigengrad stays quick.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .._inputs import is_concrete

__all__ = ["available", "taylor_kernels", "usable"]


_REAL = frozenset({torch.float32, torch.float64})


@functools.cache
def available() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def usable(X: Tensor) -> bool:
    """Whether a kernel can work on ``X``: real numbers in main memory, with no derivative to record."""
    return not torch.is_grad_enabled() and X.is_cpu and X.dtype in _REAL and available() and is_concrete(X)


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
