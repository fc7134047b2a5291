"""Compiled CPU kernels, from the extra ``fast`` (numba). Everything works without them, only slower.

Whoever has a kernel asks here whether it may be used; the modules beside this one import numba and are loaded on first
use, so that importing eigengrad stays quick.
"""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.util
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._inputs import forward_mode, is_concrete

if TYPE_CHECKING:
    from .runtime.launch import Launcher

__all__ = ["INCOMPLETE", "REAL", "REMOVED", "TOGETHER", "Function", "Rule", "available", "load", "usable"]


REAL = frozenset({torch.float32, torch.float64})
# Without its compiler (people switch it off to debug their own kernels) numba is of no use here.
_INSTALLED = importlib.util.find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


def available() -> bool:
    """Whether numba is installed and compiles."""
    return _INSTALLED


def usable(X: Tensor, *others: Tensor | None) -> bool:
    """Whether a kernel can work on ``X``, and on others like it: real, in main memory, with no derivative to record."""
    if torch.is_grad_enabled() or not _INSTALLED or X.dtype not in REAL or not X.is_cpu or forward_mode():
        return False
    return is_concrete(X, *others)


class Rule(enum.IntEnum):
    """The gradient rules that kernels know: what stands for 1/(λ_j − λ_i)."""

    EXACT = 0
    TAYLOR = 1
    CLIP = 2
    LORENTZIAN = 3
    MASK = 4
    SATURATE = 5


#: What the kernels of rules return, as bits: more than half of a gradient was removed; it cannot be complete.
REMOVED, INCOMPLETE = 1, 2
#: The share of the largest entries of Vᴴ gV from which on its Hermitian part is more than chance.
TOGETHER = 2.0**-10


class Function(enum.IntEnum):
    """The functions whose divided differences kernels know."""

    SQRT = 0
    INV_SQRT = 1


@functools.cache
def load(module: str, name: str, dtype: torch.dtype) -> Launcher:
    """A kernel from one of the modules here for numbers of a type, loaded or compiled when it is first needed."""
    kernel = getattr(importlib.import_module(f".{module}", __name__), name)
    launcher: Launcher = kernel.launcher(str(dtype).removeprefix("torch."))
    return launcher
