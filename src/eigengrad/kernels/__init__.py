"""Compiled CPU kernels, from the extra ``fast`` (numba). Everything works without them, only slower.

Whoever has a kernel asks here whether it may be used; the modules beside this one import numba and are loaded on first
use, so that importing eigengrad stays quick.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from .._inputs import is_concrete

__all__ = ["available", "taylor_bracket", "usable"]


@functools.cache
def available() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def usable(X: Tensor) -> bool:
    """Whether a kernel can work on ``X``: real numbers in main memory, with no derivative to record."""
    return (
        X.is_cpu
        and (X.dtype == torch.float32 or X.dtype == torch.float64)
        and not torch.is_grad_enabled()
        and is_concrete(X)
        and available()
    )


@functools.cache
def taylor_bracket(dtype: torch.dtype) -> Callable[..., None]:
    """The kernel for ``dtype``, loaded when it is first needed."""
    from . import taylor

    kernel: Callable[..., None] = taylor.bracket32 if dtype == torch.float32 else taylor.bracket64
    return kernel
