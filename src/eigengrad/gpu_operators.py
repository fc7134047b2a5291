"""The GPU kernels as operators, into which ``torch.compile`` does not look; it knows the shapes of their results.

Imported where a compiled function uses a kernel. Nothing is measured in here: an operator runs what was chosen before
for such matrices, or torch's operations, and those also where a kernel fails.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .gradients import from_kernel
from .kernels import column_major, gpu
from .matrix_functions.inv_sqrt import InvSqrt
from .matrix_functions.spectral import directional_of
from .matrix_functions.sqrt import Sqrt
from .solvers import lapack

__all__ = ["eigh", "eigh_vjp", "function_vjp"]

_FUNCTIONS = {"sqrt": Sqrt(), "inv_sqrt": InvSqrt()}


@torch.library.custom_op("eigengrad::gpu_eigh", mutates_args=())
def eigh(A: Tensor, asked: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues (..., n), ascending, and eigenvectors (..., n, n), by columns, of A (..., n, n), its lower triangle.

    Args:
        A: real, n ≤ 64.
        asked: whether the kernel was asked for by name, whatever has been measured.
    """
    found = gpu.eigh_unmeasured(A, lambda: lapack.eigh(A, "L"), asked)
    return found[0].contiguous(), found[1].mT.contiguous().mT


@eigh.register_fake
def _(A: Tensor, asked: bool) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape[:-1]), A.new_empty_strided(A.shape, column_major(A.shape))


@torch.library.custom_op("eigengrad::gpu_eigh_vjp", mutates_args=())
def eigh_vjp(
    rule: str, first: float, second: float, lifted: bool, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor
) -> Tensor:
    """The gradient of A (..., n, n) by a rule; arguments as those of :func:`.kernels.gpu.launch.eigh_vjp`."""
    pair_rule = from_kernel(rule, (first, second))
    gA: Tensor = gpu.eigh_vjp(
        rule, (first, second), lifted, L, V, gL, gV, lambda: pair_rule.pullback_in_torch(L, V, gL, gV), measure=False
    )
    return gA.contiguous()


@eigh_vjp.register_fake
def _(
    rule: str, first: float, second: float, lifted: bool, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor
) -> Tensor:
    return torch.empty_like(gV, memory_format=torch.contiguous_format)


@torch.library.custom_op("eigengrad::gpu_function_vjp", mutates_args=())
def function_vjp(function: str, L: Tensor, V: Tensor, G: Tensor) -> Tensor:
    """The gradient of A (..., n, n) through a matrix root; see :func:`.kernels.gpu.launch.function_vjp`."""
    f = _FUNCTIONS[function]
    gA: Tensor = gpu.function_vjp(function, L, V, G, lambda: directional_of((G + G.mT) * 0.5, L, V, f), measure=False)
    return gA.contiguous()


@function_vjp.register_fake
def _(function: str, L: Tensor, V: Tensor, G: Tensor) -> Tensor:
    return torch.empty_like(G, memory_format=torch.contiguous_format)
