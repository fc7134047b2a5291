"""The polar decomposition, and orthogonal Procrustes on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .._inputs import check_matrix, full_precision, widen
from .._transforms import Batched, select
from ..svd import svd
from .inv_sqrt import InvSqrt
from .spectral import directional, spectral
from .sqrt import Sqrt

__all__ = ["Polar", "polar", "procrustes"]


class Polar(NamedTuple):
    """What :func:`polar` returns."""

    U: Tensor
    H: Tensor


def polar(A: Tensor, *, driver: str | None = None, check_finite: bool | None = None) -> Polar:
    """Polar decomposition A = U H: U with orthonormal columns (rows if A is wide), H = (Aᴴ A)^½.

    U is the nearest such matrix to A. With A = P diag(σ) Qᴴ its derivative has 1/(σ_i + σ_j) where that of the singular
    vectors has 1/(σ_i − σ_j), so it needs no approximation: finite at ties, exact, derivatives of every order. Pairs of
    singular values that are both zero, to round-off, determine nothing and get no gradient.

    Args:
        A: (..., m, n).
        driver, check_finite: as in :func:`eigengrad.svd`.

    Returns:
        ``Polar(U, H)``: (..., m, n) and (..., n, n).

    >>> import torch, eigengrad as eg
    >>> U, H = eg.polar(torch.tensor([[0.0, -2.0], [2.0, 0.0]]))
    >>> U
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    """
    check_matrix("polar", A, square=False)
    with full_precision(A):
        M = widen(A)
        wide = M.shape[-1] > M.shape[-2]
        tall = M.mH if wide else M
        P, sigma, Vh = svd(
            tall.detach(), full_matrices=False, gradient="mask", driver=driver, check_finite=check_finite
        )
        U = select(_Polar, _PolarTransforms).apply(tall, P, sigma, Vh)
        U = U.mH if wide else U
        H = U.mH @ M
        H = (H + H.mH) * 0.5
        return Polar(U.to(A.dtype), H.to(A.dtype))


def procrustes(A: Tensor, B: Tensor, *, driver: str | None = None, check_finite: bool | None = None) -> Tensor:
    """The orthogonal matrix Q that brings A closest to B: argmin ‖A Q − B‖ over Qᴴ Q = I, the polar factor of Aᴴ B.

    Args:
        A, B: points as rows, (..., m, n). Reflections are allowed; centre the points first if they may be translated.
        driver, check_finite: as in :func:`eigengrad.svd`.

    Returns:
        (..., n, n), with the exact gradient of :func:`polar`.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    >>> Q = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    >>> torch.allclose(eg.procrustes(A, A @ Q), Q, atol=1e-6)
    True
    """
    check_matrix("procrustes", A, square=False)
    check_matrix("procrustes", B, square=False)
    if A.shape[-2:] != B.shape[-2:]:
        raise ValueError(f"procrustes: A and B must have the same (m, n); got {tuple(A.shape)} and {tuple(B.shape)}")
    with full_precision(A):
        cross = widen(A).mH @ widen(B)
    return polar(cross, driver=driver, check_finite=check_finite).U.to(A.dtype)


@dataclass(frozen=True)
class _SumOfRoots(Sqrt):
    """The square root with f[x, y] = 0 where x and y are both zero, to round-off in their roots."""

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        total = torch.sqrt(x) + torch.sqrt(y)
        largest = total.amax((-2, -1), keepdim=True)
        apart = total > largest * (total.shape[-1] * torch.finfo(total.dtype).eps)
        return torch.where(apart, 1.0 / torch.where(apart, total, torch.ones_like(total)), torch.zeros_like(total))


@dataclass(frozen=True)
class _PseudoInvSqrt(InvSqrt):
    """The inverse square root, 0 where the root is zero to round-off."""

    def value(self, x: Tensor) -> Tensor:
        root = torch.sqrt(x)
        apart = root > root.amax(-1, keepdim=True) * (root.shape[-1] * torch.finfo(root.dtype).eps)
        return torch.where(apart, 1.0 / torch.where(apart, root, torch.ones_like(root)), torch.zeros_like(root))


class _Polar(Function):
    """U = P Qᴴ for tall A = P diag(σ) Qᴴ.

    From A = U H follows, for C = Uᴴ G − Gᴴ U, the solution Y of the Lyapunov equation H Y + Y H = C, and
    gA = U Y + (I − U Uᴴ) G H⁻¹. As H = (Aᴴ A)^½, Y is the derivative of the square root at Aᴴ A, known to every order.
    """

    @staticmethod
    def forward(A: Tensor, P: Tensor, sigma: Tensor, Qh: Tensor) -> Any:
        return P @ Qh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, _, sigma, Qh = inputs
        ctx.save_for_backward(A, output, sigma, Qh)
        ctx.save_for_forward(A, output, sigma, Qh)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        A, U, sigma, Qh = ctx.saved_tensors
        with full_precision(U):
            return _derivative(A, U, sigma, Qh, U.mH @ G, G), None, None, None


class _PolarTransforms(_Polar, Batched):
    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        A, U, sigma, Qh = ctx.saved_tensors
        with full_precision(U):
            return _derivative(A, U, sigma, Qh, U.mH @ dA, dA)


def _derivative(A: Tensor, U: Tensor, sigma: Tensor, Qh: Tensor, UhE: Tensor, E: Tensor) -> Tensor:
    """The derivative of U in direction E; it is self-adjoint, so the backward pass is the same."""
    # σ is brought to 1 before it is squared: squares of small numbers underflow.
    scale = sigma.amax(-1)[..., None, None] if sigma.shape[-1] else torch.ones_like(UhE[..., :1, :1].real)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    scaled = A / scale
    gram, L, V = scaled.mH @ scaled, (sigma / scale[..., 0]) ** 2, Qh.mH
    result = U @ directional(gram, (UhE - UhE.mH) / scale, L, V, _SumOfRoots())
    if U.shape[-2] > U.shape[-1]:
        result = result + (E - U @ UhE) / scale @ spectral(gram, L, V, _PseudoInvSqrt())
    return result
