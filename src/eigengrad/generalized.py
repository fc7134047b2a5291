"""The generalised eigenvalue problem A x = λ B x, reduced to an ordinary one by the Cholesky factor of B."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._execution import can_read, functorch_active
from ._inputs import check_matrix
from ._transforms import Batched, Differentiable
from .errors import NotPositiveDefiniteError, first_index
from .solvers import require_finite

__all__ = ["check_pair", "reduce_pencil"]


def check_pair(A: Tensor, B: Tensor) -> None:
    """Refuse a B that does not go with A."""
    check_matrix("eigh", B, square=True, argument="B")
    if A.dtype != B.dtype:
        raise TypeError(f"eigh: A and B must have the same type; got {A.dtype} and {B.dtype}")
    if A.device != B.device:
        raise ValueError(f"eigh: A and B must be on the same device; got {A.device} and {B.device}")
    try:
        torch.broadcast_shapes(A.shape, B.shape)
    except RuntimeError:
        fits = False
    else:
        fits = A.shape[-1] == B.shape[-1]
    if not fits:
        raise ValueError(
            f"eigh: B must be of the size of A, and their batches must broadcast; got A {tuple(A.shape)} and "
            f"B {tuple(B.shape)}"
        )


def reduce_pencil(A: Tensor, B: Tensor, UPLO: str, check_finite: bool | None) -> tuple[Tensor, Tensor]:
    """(C, F) with B = F Fᴴ and C = F⁻¹ A F⁻ᴴ: if C y = λ y, then x = F⁻ᴴ y has A x = λ B x and xᴴ B x = 1.

    Args:
        A, B: Hermitian, (..., n, n), of one type; batches broadcast.
        UPLO: the triangle that is read of both.
        check_finite: as in :func:`eigengrad.eigh`.
    """
    for argument, M in (("A", A), ("B", B)):
        require_finite("eigh", M, check_finite, UPLO, argument)
    A, B = torch.broadcast_tensors(_from_triangle(A, UPLO), _from_triangle(B, UPLO))
    F, info = torch.linalg.cholesky_ex(B)
    _require_positive_definite(info)
    F = torch.where((info > 0)[..., None, None], torch.nan, F)  # where nobody can raise an error
    half = torch.linalg.solve_triangular(F, A, upper=False)
    return torch.linalg.solve_triangular(F, half.mH, upper=False).mH, F


def _from_triangle(A: Tensor, UPLO: str) -> Tensor:
    """The Hermitian matrix of which A holds a triangle; its gradient is Hermitian, as that of ``eigh`` is."""
    mirrored: Tensor = _mirror_op(A, UPLO)
    return mirrored


class _Mirror(Batched):
    """The other triangle is not read, but moves with the one that is."""

    @staticmethod
    def forward(A: Tensor, UPLO: str) -> Any:
        triangle, rest = (A.tril(), A.tril(-1)) if UPLO == "L" else (A.triu(), A.triu(1))
        return triangle + rest.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        return (G + G.mH) * 0.5, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, _: None) -> Any:
        return (dA + dA.mH) * 0.5


_mirror_op = Differentiable(_Mirror)


def _require_positive_definite(info: Tensor) -> None:
    if functorch_active():
        if not torch.compiler.is_compiling():
            _Check.apply(info)  # type: ignore[no-untyped-call]
    elif info.device.type == "cpu" and can_read(info):
        _name_first(info)


def _name_first(info: Tensor) -> None:
    failed = info > 0
    if failed.any():
        index = first_index(failed)
        raise NotPositiveDefiniteError("eigh", index, "B", int(info[index]))


class _Check(Batched):
    """The check as an autograd function: in its forward the numbers can be looked at even inside a transform."""

    @staticmethod
    def forward(info: Tensor) -> Any:
        if info.device.type == "cpu":
            _name_first(info)
        return torch.empty_like(info, dtype=torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...
