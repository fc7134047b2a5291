"""Which types are computed in, and full precision inside mixed-precision training."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ._compat import any_autocast_enabled

__all__ = ["COMPUTED", "REAL", "WIDENED", "autocasting", "full_precision", "real_dtype", "widen"]

#: The types that decompositions are computed in.
COMPUTED = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})
#: Those that are computed in a wider one.
WIDENED = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
#: The real types that are computed, some in a wider one.
REAL = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


def widen(A: Tensor) -> Tensor:
    """Half precision is computed in float32; everything else as it comes."""
    return A.to(WIDENED[A.dtype]) if A.dtype in WIDENED else A


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the eigenvalues of a matrix of this type."""
    return dtype.to_real() if dtype.is_complex else dtype


def autocasting(A: Tensor) -> bool:
    """Whether autocast is on for the device of ``A``."""
    if not torch.compiler.is_compiling() and not any_autocast_enabled():
        return False  # in half the time of asking for a device
    if A.device.type == "cpu":
        return torch.is_autocast_enabled("cpu")
    device = A.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def full_precision(A: Tensor) -> AbstractContextManager[None]:
    """Context in which autocast is off for the device of ``A``, free of charge where it is off already."""
    return torch.autocast(A.device.type, enabled=False) if autocasting(A) else _NO_CONTEXT
