"""The polar decomposition, whose unitary factor is the nearest orthogonal matrix or the nearest rotation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._inputs import check_matrix
from .._saved import save, saved
from .._transforms import Batched, Differentiable, no_gradient
from ..gradients.equations import inverse, skew_solution
from ..gradients.spectrum import reciprocal_where
from ..matmul import precise_matmul
from ..precision import full_precision, widen
from ..svd import decompose

__all__ = ["Polar", "polar"]


class Polar(NamedTuple):
    """What :func:`polar` returns."""

    U: Tensor
    H: Tensor


def polar(A: Tensor, *, special: bool = False, driver: str | None = None, check_finite: bool | None = None) -> Polar:
    """Polar decomposition A = U H: U with orthonormal columns (rows if A is wide), H = (Aᴴ A)^½.

    U is the nearest such matrix to A. With A = P diag(σ) Qᴴ its derivative has 1/(σ_i + σ_j) where that of the singular
    vectors has 1/(σ_i − σ_j), so it needs no approximation: finite at ties, exact, derivatives of every order. Pairs of
    singular values that are both zero, to round-off, determine nothing and get no gradient.

    With ``special=True``, U is the nearest *rotation* to a real square A: P diag(1, …, 1, ±1) Qᵀ with determinant one,
    as in the layers that predict a pose. The last singular value then has the sign of det A, in H = Uᵀ A too, which is
    symmetric, and indefinite if det A < 0. U is smooth where det A changes its sign. It is not determined where
    det A ≤ 0 and the two smallest singular values are tied: such a pair, if it is tied to round-off, gets no gradient.

    Args:
        A: (..., m, n).
        special: let U have determinant one; A must be real and square.
        driver, check_finite: as in :func:`eigengrad.svd`.

    Returns:
        ``Polar(U, H)``: (..., m, n) and (..., n, n).

    >>> import torch, eigengrad as eg
    >>> U, H = eg.polar(torch.tensor([[0.0, -2.0], [2.0, 0.0]]))
    >>> U
    tensor([[ 0., -1.],
            [ 1.,  0.]])
    >>> reflection = torch.tensor([[2.0, 0.0], [0.0, -1.0]])
    >>> eg.polar(reflection, special=True).U
    tensor([[1., 0.],
            [0., 1.]])
    """
    check_matrix("polar", A, square=False)
    if special:
        check_special("polar", A)
        if A.shape[-1] != A.shape[-2]:
            raise ValueError(f"polar: with special=True, A must be square, of shape (..., n, n); got {tuple(A.shape)}")
    with full_precision(A):
        M = widen(A)
        U = polar_factor("polar", M, special, driver, check_finite)
        H = precise_matmul(U.mH, M)
        H = (H + H.mH) * 0.5
        return Polar(U.to(A.dtype), H.to(A.dtype))


def check_special(function: str, A: Tensor) -> None:
    """Refuse complex matrices, among which no rotation is the nearest one in the sense of ``special=True``."""
    if A.dtype.is_complex:
        raise TypeError(f"{function}: with special=True, A must be of a real type; got {A.dtype}")


def polar_factor(
    function: str,
    A: Tensor,
    special: bool,
    driver: str | None,
    check_finite: bool | None,
    rtol: Tensor | float | None = None,
) -> Tensor:
    """U of the polar decomposition of A, (..., m, n), which is of a type that is computed in; autocast is off.

    What is below ``rtol`` times the largest singular value, a number or (...), is zero; by default max(m, n)·eps.
    """
    wide = A.shape[-1] > A.shape[-2]
    tall = A.mH if wide else A
    P, sigma, Qh = decompose(function, tall, driver, check_finite)
    if special and A.shape[-1] > 0:
        P, sigma = _with_determinant_one(P, sigma, Qh)
    floor = sigma[..., :1].abs() * (tall.shape[-2] * torch.finfo(sigma.dtype).eps if rtol is None else rtol)
    U: Tensor = _polar_op(tall, P, Qh, *_reciprocals(sigma, floor))
    return U.mH.resolve_conj() if wide else U


def _with_determinant_one(P: Tensor, sigma: Tensor, Qh: Tensor) -> tuple[Tensor, Tensor]:
    """P and σ of P diag(σ) Qᵀ, with the last column and the last singular value negated where det(P Qᵀ) = −1."""
    determinant = torch.linalg.det(P @ Qh).unsqueeze(-1)
    last = torch.where(determinant < 0, -torch.ones_like(determinant), torch.ones_like(determinant))
    signs = torch.cat([torch.ones_like(sigma[..., 1:]), last], -1)
    return P * signs.unsqueeze(-2), sigma * signs


def _reciprocals(sigma: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """1/(σ_i + σ_j) and 1/σ_j, (..., n, n) and (..., n), zero where the divisor is at most ``floor``, (..., 1).

    Each σ is compared by itself first: the sum of two that are just below round-off is above it. Only the last may be
    negative, so that all sums but the last on the diagonal, which nobody uses then, are non-negative.
    """
    sigma = sigma.masked_fill(sigma.abs() <= floor, 0.0)
    sums = sigma.unsqueeze(-2) + sigma.unsqueeze(-1)
    return reciprocal_where(sums > floor.unsqueeze(-1), sums), reciprocal_where(sigma > 0, sigma)


class _Polar(Batched):
    """U = P Qᴴ for tall A = P diag(σ) Qᴴ = U H, given 1/(σ_i + σ_j) and 1/σ_j.

    For an incoming G, with Y the skew-Hermitian solution of H Y + Y H = Uᴴ G − Gᴴ U: gA = U Y + (I − U Uᴴ) G H⁻¹.
    Both terms are differentiable functions of A, U and G again, so every order follows.
    """

    @staticmethod
    def forward(A: Tensor, P: Tensor, Qh: Tensor, pairs: Tensor, singles: Tensor) -> Any:
        return P @ Qh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, _, Qh, pairs, singles = inputs
        save(ctx, A, output, Qh, pairs, singles)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        A, U, Qh, pairs, singles = saved(ctx)
        return _derivative(A, U, Qh, pairs, singles, G), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        A, U, Qh, pairs, singles = saved(ctx)
        return _derivative(A, U, Qh, pairs, singles, dA)


_polar_op = Differentiable(_Polar)


def _derivative(A: Tensor, U: Tensor, Qh: Tensor, pairs: Tensor, singles: Tensor, E: Tensor) -> Tensor:
    """The derivative of U in direction E; it is self-adjoint, so the backward pass is the same."""
    if A.numel() == 0:
        return no_gradient(E, A)
    H = precise_matmul(U.mH, A)
    H = (H + H.mH) * 0.5
    inside = precise_matmul(U.mH, E)
    result = precise_matmul(U, skew_solution(H, inside, Qh, pairs))
    if U.shape[-2] > U.shape[-1]:
        result = result + precise_matmul(E - precise_matmul(U, inside), inverse(H, Qh, singles))
    return result
