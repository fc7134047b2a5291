"""Equations with a Hermitian matrix H = Q diag(σ) Qᴴ, solved where H determines the solution, to every order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._execution import is_constant
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..matmul import precise_matmul
from ..precision import full_precision

__all__ = ["inverse", "skew_solution"]


def skew_solution(H: Tensor, C: Tensor, Qh: Tensor, pairs: Tensor) -> Tensor:
    """The skew-Hermitian solution X of H X + X H = C − Cᴴ, as a function of Hermitian H and any C.

    H = Q diag(σ) Qᴴ, and ``pairs`` is 1/(σ_i + σ_j). Where that is zero, H determines nothing, and X has no such
    component.
    """
    constant = is_constant(H) and is_constant(C)  # as in a plain backward pass
    X: Tensor = (_SkewSolution.forward if constant else _skew_solution_op)(H, C, Qh, pairs)
    return X


class _SkewSolution(Batched):
    """The solution is self-adjoint as a function of C, and its derivatives are solutions of the same equation.

    So all that is ever divided by σ_i + σ_j is skew-Hermitian, with a diagonal that is exactly zero if it is real:
    1/(2σ_i), which no derivative of a real square matrix contains, enters at no order. If it did, it would have to
    cancel, and leave round-off divided by the smallest singular value.
    """

    @staticmethod
    def forward(H: Tensor, C: Tensor, Qh: Tensor, pairs: Tensor) -> Any:
        with full_precision(C):
            rotated = Qh @ C @ Qh.mH
            return Qh.mH @ ((rotated - rotated.mH) * pairs) @ Qh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        H, _, Qh, pairs = inputs
        save(ctx, H, output, Qh, pairs)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        H, X, Qh, pairs = saved(ctx)
        gC = skew_solution(H, G, Qh, pairs)
        product = precise_matmul(X, gC)
        return (product + product.mH) * 0.5, gC, None, None

    @staticmethod
    def jvp(ctx: Any, dH: Tensor | None, dC: Tensor | None, *_: None) -> Any:
        H, X, Qh, pairs = saved(ctx)
        right = torch.zeros_like(X) if dC is None else dC
        return skew_solution(H, right if dH is None else right - precise_matmul(dH, X), Qh, pairs)


_skew_solution_op = Differentiable(_SkewSolution)


def inverse(H: Tensor, Qh: Tensor, singles: Tensor) -> Tensor:
    """H⁻¹ for Hermitian H = Q diag(σ) Qᴴ, given 1/σ, (..., n): where that is zero, the inverse has no such part."""
    result: Tensor = _inverse_op(H, Qh, singles)
    return result


class _Inverse(Batched):
    @staticmethod
    def forward(H: Tensor, Qh: Tensor, singles: Tensor) -> Any:
        with full_precision(H):
            return (Qh.mH * singles.unsqueeze(-2)) @ Qh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save(ctx, output)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        (inverse,) = saved(ctx)
        return -precise_matmul(precise_matmul(inverse, G), inverse), None, None

    @staticmethod
    def jvp(ctx: Any, dH: Tensor, *_: None) -> Any:
        (inverse,) = saved(ctx)
        return -precise_matmul(precise_matmul(inverse, dH), inverse)


_inverse_op = Differentiable(_Inverse)
