"""The polar decomposition, and orthogonal Procrustes on top of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from .. import solvers
from .._inputs import check_matrix, full_precision, widen
from .._matmul import precise_matmul
from .._transforms import Batched, no_gradient, run
from ..svd import decompose

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
    U, M = _polar_factor("polar", A, driver, check_finite)
    with full_precision(A):
        H = precise_matmul(U.mH, M)
        H = (H + H.mH) * 0.5
        return Polar(U.to(A.dtype), H.to(A.dtype))


def _polar_factor(name: str, A: Tensor, driver: str | None, check_finite: bool | None) -> tuple[Tensor, Tensor]:
    """U of A, both in the type that is computed in."""
    with full_precision(A):
        M = widen(A)
        wide = M.shape[-1] > M.shape[-2]
        tall = M.mH if wide else M
        P, sigma, Qh = decompose(name, tall, driver, check_finite)
        U: Tensor = run(_Polar, _PolarTransforms, tall, P, _without_round_off(sigma, tall.shape[-2]), Qh)
        return U.mH.resolve_conj() if wide else U, M


def procrustes(A: Tensor, B: Tensor, *, driver: str | None = None, check_finite: bool | None = None) -> Tensor:
    """The orthogonal matrix Q that brings A closest to B: argmin ‖A Q − B‖ over Qᴴ Q = I, the polar factor of Aᴴ B.

    Args:
        A, B: points as rows, (..., m, n); batches broadcast. Reflections are allowed; centre the points first if they
            may be translated.
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
    check_matrix("procrustes", B, square=False, argument="B")
    if A.dtype != B.dtype:
        raise TypeError(f"procrustes: A and B must have the same type; got {A.dtype} and {B.dtype}")
    if A.shape[-2:] != B.shape[-2:]:
        raise ValueError(f"procrustes: A and B must have the same (m, n); got {tuple(A.shape)} and {tuple(B.shape)}")
    try:
        torch.broadcast_shapes(A.shape, B.shape)
    except RuntimeError as error:
        raise ValueError(
            f"procrustes: the batches of A and B must broadcast; got {tuple(A.shape)} and {tuple(B.shape)}"
        ) from error
    for argument, points in (("A", A), ("B", B)):
        solvers.require_finite("procrustes", widen(points), check_finite, argument=argument)
    with full_precision(A):
        # Q does not depend on the scale of either, but the product of two small or large ones leaves the range.
        X, Y = torch.broadcast_tensors(_unit_scale(widen(A)), _unit_scale(widen(B)))
        return _polar_factor("procrustes", precise_matmul(X.mH, Y), driver, check_finite)[0].to(A.dtype)


def _without_round_off(sigma: Tensor, m: int) -> Tensor:
    """Singular values, descending, of matrices with m ≥ n rows; what is zero to round-off is zero.

    Each by itself: the sum of two that are just below round-off is above it.
    """
    return torch.where(sigma > sigma[..., :1] * (m * torch.finfo(sigma.dtype).eps), sigma, torch.zeros_like(sigma))


def _unit_scale(A: Tensor) -> Tensor:
    """A divided by its largest entry (a constant), per matrix."""
    if A.numel() == 0:
        return A
    largest = A.detach().abs().amax((-2, -1), keepdim=True)
    return A / torch.where(largest > 0, largest, torch.ones_like(largest))


class _Polar(Function):
    """U = P Qᴴ for tall A = P diag(σ) Qᴴ = U H.

    For C = Uᴴ G − Gᴴ U, with Y the solution of the Lyapunov equation H Y + Y H = C: gA = U Y + (I − U Uᴴ) G H⁻¹.
    Both terms are differentiable functions of A, U and G again, so every order follows.
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
        return _derivative(A, U, sigma, Qh, G), None, None, None


class _PolarTransforms(_Polar, Batched):
    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        A, U, sigma, Qh = ctx.saved_tensors
        return _derivative(A, U, sigma, Qh, dA)


def _derivative(A: Tensor, U: Tensor, sigma: Tensor, Qh: Tensor, E: Tensor) -> Tensor:
    """The derivative of U in direction E; it is self-adjoint, so the backward pass is the same."""
    if A.numel() == 0:
        return no_gradient(E, A)
    with full_precision(U):
        H = U.mH @ A
        H = (H + H.mH) * 0.5
        UhE = U.mH @ E
        result = U @ _solve(H, UhE - UhE.mH, sigma, Qh, True)
        if U.shape[-2] > U.shape[-1]:
            result = result + _solve(H, E - U @ UhE, sigma, Qh, False)
        return result


def _solve(H: Tensor, C: Tensor, sigma: Tensor, Qh: Tensor, lyapunov: bool) -> Tensor:
    """The solution X of H X + X H = C if ``lyapunov``, of X H = C otherwise, as a function of H and C.

    H = Q diag(σ) Qᴴ. Where a divisor is zero, H determines nothing and X has no such component.
    """
    X: Tensor = run(_Solve, _SolveTransforms, H, C, sigma, Qh, lyapunov)
    return X


class _Solve(Function):
    @staticmethod
    def forward(H: Tensor, C: Tensor, sigma: Tensor, Qh: Tensor, lyapunov: bool) -> Any:
        divisor = sigma.unsqueeze(-2) + sigma.unsqueeze(-1) if lyapunov else sigma.unsqueeze(-2)
        inverse = torch.where(divisor > 0, 1.0 / divisor, torch.zeros_like(divisor))
        X = (C @ Qh.mH) * inverse if not lyapunov else Qh.mH @ ((Qh @ C @ Qh.mH) * inverse)
        return X @ Qh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        H, _, sigma, Qh, ctx.lyapunov = inputs
        ctx.save_for_backward(H, output, sigma, Qh)
        ctx.save_for_forward(H, output, sigma, Qh)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        H, X, sigma, Qh = ctx.saved_tensors
        with full_precision(X):
            Y = _solve(H, G, sigma, Qh, ctx.lyapunov)
            gH = X.mH @ Y + Y @ X.mH if ctx.lyapunov else X.mH @ Y
            return (gH + gH.mH) * -0.5, Y, None, None, None


class _SolveTransforms(_Solve, Batched):
    @staticmethod
    def jvp(ctx: Any, dH: Tensor | None, dC: Tensor | None, *_: None) -> Any:
        H, X, sigma, Qh = ctx.saved_tensors
        with full_precision(X):
            right = torch.zeros_like(X) if dC is None else dC
            if dH is not None:
                right = right - X @ dH - dH @ X if ctx.lyapunov else right - X @ dH
            return _solve(H, right, sigma, Qh, ctx.lyapunov)
