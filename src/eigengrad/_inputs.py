"""What every public function does with its matrix argument before the mathematics begins."""

from __future__ import annotations

import torch
from torch import Tensor

from ._compat import is_legacy_batchedtensor
from .precision import COMPUTED, WIDENED


def check_matrix(function: str, A: Tensor, *, square: bool, argument: str = "A") -> None:
    """Refuse what is not a floating-point or complex (batch of) matrices, saying what came."""
    if not isinstance(A, Tensor):
        raise TypeError(f"{function}: {argument} must be a torch.Tensor; got {type(A).__name__}")
    shape = A.shape
    if len(shape) < 2:
        raise ValueError(f"{function}: {argument} must have shape (..., m, n); got {tuple(shape)}")
    if square and shape[-1] != shape[-2]:
        raise ValueError(f"{function}: {argument} must be square, of shape (..., n, n); got {tuple(shape)}")
    if A.layout is not torch.strided:
        raise TypeError(f"{function}: {argument} must be dense; got {A.layout}. Convert it with .to_dense().")
    if A.dtype not in COMPUTED and A.dtype not in WIDENED:
        raise TypeError(
            f"{function}: {argument} must be of a floating-point or complex type; got {A.dtype}. "
            "Convert it, for example with .float()."
        )


def add_to_diagonal(A: Tensor, eps: float) -> Tensor:
    """A + eps·I, (..., n, n)."""
    return A + eps * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def detached(A: Tensor) -> Tensor:
    """``A`` as a constant, in gradients that are batched (``autograd.grad(..., is_grads_batched=True)``) as well."""
    if not torch.compiler.is_compiling() and is_legacy_batchedtensor(A):
        with torch.no_grad():  # it has no rule for detach, and no forward mode that would need it
            return A.clone()
    return A.detach()


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """A @ B without the two microseconds that broadcasting takes to find out it has nothing to do."""
    return torch.bmm(A, B) if A.ndim == 3 and B.ndim == 3 else A @ B
