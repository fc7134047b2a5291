"""What every public function does with its matrix argument before the mathematics begins."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_COMPUTED = frozenset({torch.float32, torch.float64, torch.complex64, torch.complex128})
_WIDENED = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


def check_matrix(function: str, A: Tensor, *, square: bool) -> None:
    """Refuse what is not a floating-point or complex (batch of) matrices, saying what came."""
    if not isinstance(A, Tensor):
        raise TypeError(f"{function}: A must be a torch.Tensor; got {type(A).__name__}")
    if A.ndim < 2:
        raise ValueError(f"{function}: A must have shape (..., m, n); got {tuple(A.shape)}")
    if square and A.shape[-1] != A.shape[-2]:
        raise ValueError(f"{function}: A must be square, of shape (..., n, n); got {tuple(A.shape)}")
    if A.dtype not in _COMPUTED and A.dtype not in _WIDENED:
        raise TypeError(
            f"{function}: A must be of a floating-point or complex type; got {A.dtype!s}. "
            "Convert it, for example with A.float()."
        )


def widen(A: Tensor) -> Tensor:
    """Half precision is computed in float32; everything else as it comes."""
    return A if A.dtype in _COMPUTED else A.to(_WIDENED[A.dtype])


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the eigenvalues of a matrix of this type."""
    return dtype.to_real() if dtype.is_complex else dtype


def full_precision(A: Tensor) -> AbstractContextManager[None]:
    """Context in which autocast is off for the device of ``A``, free of charge where it is off already."""
    device = A.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return _NO_CONTEXT


def is_concrete(A: Tensor) -> bool:
    """Whether the numbers in ``A`` can be looked at: no compiler, exporter or fake tensor in between."""
    return type(A) in (Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling() and not A.is_meta
