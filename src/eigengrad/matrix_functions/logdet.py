"""The logarithm of the determinant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._inputs import check_matrix
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..arguments import require_non_negative
from ..eigh import decompose
from ..precision import full_precision, real_dtype, widen
from .hermitian import require_hermitian
from .log import Log
from .power import WholePower
from .spectral import into_domain, spectral

__all__ = ["logdet"]

_NAME = "logdet"


def logdet(A: Tensor, *, eps: float = 0.0, driver: str | None = None, check_finite: bool | None = None) -> Tensor:
    """Logarithm of the determinant Σ log λ_i of a positive definite matrix, with its exact gradient.

    gA = g A⁻¹: no divided difference, so nothing that a tie could harm. First, second and third derivatives. A matrix
    that is not positive definite is an error which names it, where :func:`torch.logdet` returns NaN, minus infinity, or
    the logarithm of the product of two negative eigenvalues. (:func:`torch.linalg.slogdet`, for matrices of any
    kind, needs no replacement: its gradient is the inverse too, and exact at ties to every order.)

    Args:
        A: Hermitian, (..., n, n); refused if it is not, to √finfo.eps.
        eps: added to the diagonal, and the spectrum is clamped there.
        driver, check_finite: as in :func:`eigengrad.eigh`.

    Returns:
        (...), real.

    >>> import torch, eigengrad as eg
    >>> A = (2 * torch.eye(2)).requires_grad_()
    >>> eg.logdet(A).backward()
    >>> A.grad
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    check_matrix(_NAME, A, square=True)
    require_non_negative(_NAME, "eps", eps)
    require_hermitian(_NAME, A, check_finite)
    with full_precision(A):
        M = widen(A)
        L, V = decompose(_NAME, M, driver, check_finite)
        L = into_domain(_NAME, Log(), L + eps if eps else L, eps)
        value: Tensor = _log_det_op(M, L, V)
        return value.to(real_dtype(A.dtype))


def _inverse(ctx: Any) -> Tensor:
    """A⁻¹ as a function of A."""
    A, L, V = saved(ctx)
    return spectral(A, L, V, WholePower(-1.0))


class _LogDet(Batched):
    @staticmethod
    def forward(A: Tensor, L: Tensor, V: Tensor) -> Any:
        return torch.log(L).sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with full_precision(g):
            return g[..., None, None] * _inverse(ctx), None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        with full_precision(dA):
            return (_inverse(ctx).conj() * dA).real.sum((-2, -1))


_log_det_op = Differentiable(_LogDet)
