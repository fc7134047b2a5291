"""Square roots by matrix polynomials and rational functions: MTP and MPA, with a Lyapunov backward pass.

With W = A/‖A‖_F, whose eigenvalues are in [0, 1], and Z = I − W:

- Taylor polynomial (MTP): √(1 − z) = 1 − Σ_k |C(½, k)| z^k, cut off behind the degree.
- Padé approximant (MPA), diagonal, at w = 1, with N = 2·degree + 1. Its numerator and denominator are the even and the
  odd part of (1 + √w)^N, whose values range over 2^N, which a linear solve feels. As partial fractions no term is
  negative, and each is well-conditioned:

      √w ≈ (1/N) [1 + 2 Σ_j w/(w cos²θ_j + sin²θ_j)],  θ_j = jπ/N;    1/√w ≈ (1/N) [1 + 2 Σ_j 1/(w cos²θ_j + sin²θ_j)],
      θ_j = (j − ½)π/N;    j = 1 … degree.

The backward pass does not differentiate the approximant: S gA + gA S = G, at the S that was found.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import solvers
from .._execution import forward_mode
from .._inputs import add_to_diagonal, check_matrix
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..arguments import require_integer, require_non_negative
from ..matmul import precise_matmul
from ..precision import full_precision, widen
from .lyapunov import lyapunov_by_products
from .newton_schulz import frobenius

__all__ = ["pade_inv_sqrt", "pade_sqrt", "taylor_inv_sqrt", "taylor_sqrt"]


def pade_sqrt(A: Tensor, degree: int = 5, *, steps: int = 8, eps: float = 0.0) -> Tensor:
    """Approximate square root of a positive semi-definite matrix by a matrix Padé approximant: MPA.

    A^½ ≈ √c r(A/c) with c = ‖A‖_F and r the diagonal approximant of √w at 1; the gradient solves S gA + gA S = G by
    ``steps`` coupled Newton–Schulz iterations (Song, Sebe and Wang 2022, "Fast differentiable matrix square root").
    Linear solves forward, all at once; products backward. An eigenvalue λ has a relative error of about
    2 exp(−2 (2·degree + 1) √(λ/c)), and a gradient if its root is above 4 % of the root's norm (8 steps);
    :func:`matrix_sqrt` is exact.

    (This is not "SVD-Padé", which puts a diagonal Padé approximant in place of 1/(1 − q) in the gradient of the
    eigenvectors. The approximant of 1/(1 − q) is 1/(1 − q) itself: see :class:`eigengrad.Exact`.)

    Args:
        A: Hermitian, (..., n, n).
        degree: of numerator and denominator, at least 1; the authors use 5.
        steps: iterations of the Lyapunov solver, at least 1; the authors use 8.
        eps: added to the diagonal.

    Returns:
        (..., n, n).

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> S = eg.pade_sqrt(A)
    >>> torch.allclose(S @ S, A, atol=1e-4)
    True
    """
    return _root("pade_sqrt", A, degree, steps, eps, "pade", False)


def pade_inv_sqrt(A: Tensor, degree: int = 5, *, steps: int = 8, eps: float = 0.0) -> Tensor:
    """Approximate inverse square root of a positive definite matrix by a matrix Padé approximant: MPA.

    A^(−½) ≈ r(A/c)/√c with r the diagonal approximant of 1/√w at 1; the gradient solves S gA + gA S = −S² G S².
    Arguments as in :func:`pade_sqrt`.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> W = eg.pade_inv_sqrt(A)
    >>> torch.allclose(W @ A @ W, torch.eye(2), atol=1e-4)
    True
    """
    return _root("pade_inv_sqrt", A, degree, steps, eps, "pade", True)


def taylor_sqrt(A: Tensor, degree: int = 10, *, steps: int = 8, eps: float = 0.0) -> Tensor:
    """Approximate square root of a positive semi-definite matrix by a matrix Taylor polynomial: MTP.

    √c (I − Σ_k |C(½, k)| Z^k) with Z = I − A/c, c = ‖A‖_F: products only. It converges slowly where eigenvalues are far
    below c; :func:`pade_sqrt` of half the degree is more accurate. Backward pass and arguments as there; the authors
    use 10 for ``degree``.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> S = eg.taylor_sqrt(A, degree=40)
    >>> torch.allclose(S @ S, A, atol=1e-4)
    True
    """
    return _root("taylor_sqrt", A, degree, steps, eps, "taylor", False)


def taylor_inv_sqrt(A: Tensor, degree: int = 10, *, steps: int = 8, eps: float = 0.0) -> Tensor:
    """Approximate inverse square root of a positive definite matrix by a matrix Taylor polynomial: MTP.

    (I + Σ_k |C(−½, k)| Z^k)/√c; else as :func:`taylor_sqrt`, with the backward pass of :func:`pade_inv_sqrt`.

    >>> import torch, eigengrad as eg
    >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> W = eg.taylor_inv_sqrt(A, degree=60)
    >>> torch.allclose(W @ A @ W, torch.eye(2), atol=1e-4)
    True
    """
    return _root("taylor_inv_sqrt", A, degree, steps, eps, "taylor", True)


def _root(name: str, A: Tensor, degree: int, steps: int, eps: float, kind: str, inverse: bool) -> Tensor:
    check_matrix(name, A, square=True)
    require_integer(name, "degree", degree, minimum=1)
    require_integer(name, "steps", steps, minimum=1)
    require_non_negative(name, "eps", eps)
    with full_precision(A):
        M = widen(A)
        solvers.require_finite(name, M, None)
        S: Tensor = _root_op(add_to_diagonal(M, eps) if eps else M, degree, steps, kind, inverse)
        return S.to(A.dtype)


class _Root(Batched):
    @staticmethod
    def forward(M: Tensor, degree: int, steps: int, kind: str, inverse: bool) -> Any:
        c = frobenius(M)
        c = torch.where(c == 0, torch.ones_like(c), c)
        W = M / c
        value = _pade(W, degree, inverse) if kind == "pade" else _taylor(W, degree, inverse)
        return value * (torch.rsqrt(c) if inverse else torch.sqrt(c))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, ctx.steps, _, ctx.inverse = inputs
        save(ctx, output)
        if forward_mode():
            ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        (S,) = saved(ctx)
        with full_precision(S):
            return _derivative(S, (G + G.mH) * 0.5, ctx.steps, ctx.inverse), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dM: Tensor, *_: None) -> Any:
        (S,) = saved(ctx)
        with full_precision(S):
            return _derivative(S, (dM + dM.mH) * 0.5, ctx.steps, ctx.inverse)


_root_op = Differentiable(_Root)


def _derivative(S: Tensor, E: Tensor, steps: int, inverse: bool) -> Tensor:
    """dS in a direction E, and the gradient for an incoming E: the map is its own adjoint."""
    X = lyapunov_by_products(S, E, steps)
    if not inverse:
        return X
    square = precise_matmul(S, S)
    return -precise_matmul(precise_matmul(square, X), square)


def _pade(W: Tensor, degree: int, inverse: bool) -> Tensor:
    N = 2 * degree + 1
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    angles = [(j - 0.5 * inverse) * math.pi / N for j in range(1, degree + 1)]
    terms = torch.stack([math.cos(a) ** 2 * W + math.sin(a) ** 2 * identity for a in angles])
    right = identity.expand_as(terms) if inverse else W.expand_as(terms)
    # Off the CPU, an error of a matrix that is not positive would make the host wait.
    solved = torch.linalg.solve_ex(terms, right, check_errors=W.device.type == "cpu").result
    found: Tensor = (identity + 2 * solved.sum(0)) / N
    return found


def _taylor(W: Tensor, degree: int, inverse: bool) -> Tensor:
    coefficients, power = [1.0], -0.5 if inverse else 0.5
    for k in range(1, degree + 1):  # of (1 − z)^power
        coefficients.append(coefficients[-1] * (k - 1 - power) / k)
    return _horner(coefficients, torch.eye(W.shape[-1], dtype=W.dtype, device=W.device) - W)


def _horner(coefficients: list[float], W: Tensor) -> Tensor:
    """Σ_k c_k W^k."""
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    total = coefficients[-1] * identity.expand_as(W)
    for c in reversed(coefficients[:-1]):
        total = precise_matmul(total, W) + c * identity
    return total
