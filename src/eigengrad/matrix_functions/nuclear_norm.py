"""The sum of the singular values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._execution import forward_mode
from .._inputs import check_matrix
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..matmul import precise_matmul
from ..precision import full_precision, real_dtype, widen
from ..svd import decompose
from .polar import polar

__all__ = ["nuclear_norm"]


def nuclear_norm(A: Tensor, *, driver: str | None = None, check_finite: bool | None = None) -> Tensor:
    """Nuclear norm ‖A‖_* = Σ σ_i, with its exact gradient.

    gA = g U Vᴴ, with the singular vectors of the singular values that are not zero to round-off. For matrices of full
    rank that is the polar factor, so ties do not matter, and derivatives of every order exist. At rank deficiency the
    norm is not differentiable, as |x| is not at 0; U Vᴴ is then the subgradient of least norm, and second
    derivatives mean nothing.

    Args:
        A: (..., m, n).
        driver, check_finite: as in :func:`eigengrad.svd`.

    Returns:
        (...), real.

    >>> import torch, eigengrad as eg
    >>> A = torch.diag(torch.tensor([2.0, 2.0, 0.0])).requires_grad_()
    >>> eg.nuclear_norm(A).backward()
    >>> A.grad
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 0.]])
    """
    check_matrix("nuclear_norm", A, square=False)
    with full_precision(A):
        M = widen(A)
        U, sigma, Vh = decompose("nuclear_norm", M, driver, check_finite)
        cutoff = sigma[..., :1] * (max(M.shape[-2:]) * torch.finfo(sigma.dtype).eps)
        vectors = (Vh if M.shape[-2] >= M.shape[-1] else U.mH) * (sigma > cutoff).unsqueeze(-1)
        W = U @ vectors if M.shape[-2] >= M.shape[-1] else vectors.mH @ Vh
        norm: Tensor = _nuclear_norm_op(M, sigma, W, vectors, driver)
        return norm.to(real_dtype(A.dtype))


def _gradient(ctx: Any) -> Tensor:
    """W = U Vᴴ, (..., m, n), as a constant, or as a function of A where derivatives of it are wanted.

    ``vectors`` are rows that span the range of Aᴴ (of A if A is wide): the rest of the polar factor is left out.
    """
    A, W, vectors = saved(ctx)
    if not torch.is_grad_enabled() and not forward_mode():
        constant: Tensor = W
        return constant
    U = polar(A, driver=ctx.driver, check_finite=False).U
    inside = vectors.mH @ vectors
    return precise_matmul(U, inside) if A.shape[-2] >= A.shape[-1] else precise_matmul(inside, U)


class _NuclearNorm(Batched):
    @staticmethod
    def forward(A: Tensor, sigma: Tensor, W: Tensor, vectors: Tensor, driver: str | None) -> Any:
        return sigma.sum(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, _, W, vectors, ctx.driver = inputs
        save(ctx, A, W, vectors)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with full_precision(g):
            return g[..., None, None] * _gradient(ctx), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        with full_precision(dA):
            return (_gradient(ctx).conj() * dA).real.sum((-2, -1))


_nuclear_norm_op = Differentiable(_NuclearNorm)
