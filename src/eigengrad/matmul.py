"""Matrix products for code that is differentiated step by step.

A backward pass may run under autocast, where the derivative of ``A @ B`` would be computed in half precision. This
product keeps the precision of its factors in every derivative.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ._execution import is_constant
from ._saved import save, saved
from ._transforms import Batched, Differentiable
from .precision import full_precision

__all__ = ["precise_matmul"]


def precise_matmul(A: Tensor, B: Tensor) -> Tensor:
    """A @ B for factors of the same batch shape."""
    with full_precision(A):
        if is_constant(A) and is_constant(B):
            return A @ B
        product: Tensor = _matmul_op(A, B)
        return product


class _Matmul(Batched):
    @staticmethod
    def forward(A: Tensor, B: Tensor) -> Any:
        return A @ B

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        A, B = saved(ctx)
        needs_A, needs_B = ctx.needs_input_grad
        return precise_matmul(G, B.mH) if needs_A else None, precise_matmul(A.mH, G) if needs_B else None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor | None, dB: Tensor | None) -> Any:
        A, B = saved(ctx)
        if dA is None:
            return None if dB is None else precise_matmul(A, dB)
        product = precise_matmul(dA, B)
        return product if dB is None else product + precise_matmul(A, dB)


_matmul_op = Differentiable(_Matmul)
