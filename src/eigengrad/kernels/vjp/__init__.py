"""Vector–Jacobian products: backward passes through eigendecompositions and matrix functions, on tensors.

A plan says whether one kernel does all of it, or what is between products of BLAS; it is made once for each shape.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..._inputs import matmul
from .. import costs
from ..dispatch import KernelsUnavailableError, load, vector_bytes
from ..memory import address, empty_like, readable, readable_strided
from ..templates import template
from .codes import FUNCTIONS, INCOMPLETE, REMOVED, RULES

if TYPE_CHECKING:
    from ..runtime.launch import Launcher

__all__ = ["RuleVjp", "eigh_vjp", "function_vjp"]

_BATCHED = 32  # up to this n many matrices are taken at once, a matrix a lane,
_LARGEST = 512  # and up to this one by one,
_SINGLE = 64  # unless it is a single one that is larger than this: its products are for BLAS and its threads


class RuleVjp(NamedTuple):
    """The gradient of A, and what a rule did to it."""

    gradient: Tensor
    removed: bool  #: the rule removed more than half of the gradient of some matrix
    incomplete: bool  #: some gradient is incomplete whatever the rule: see ``gradients.observation.is_incomplete``


def eigh_vjp(
    rule: str, parameters: tuple[float, float], L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor
) -> RuleVjp | None:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV and the rule's R; None if no kernel can be compiled.

    Args:
        rule: its name, one of :data:`.codes.RULES`.
        parameters: see :func:`.rules.make_ready`.
        L, V: eigenvalues (..., n) and eigenvectors (..., n, n).
        gL, gV: their gradients. All tensors are ``usable``.
    """
    shape, dtype = gV.shape, gV.dtype
    plan = _plan_or_none(shape, dtype, "rule")
    if plan is None:
        return None
    n, values = plan.n, plan.batch * plan.n
    L_ = readable(L, dtype, values)
    slopes = 0
    if gL is not None:
        gL = readable(gL, dtype, values)
        slopes = address(gL)
    options = n, RULES[rule], *parameters
    if not plan.complete:
        Vt = V.mT
        X = readable(matmul(Vt, gV), dtype, values * n)
        status = plan.run((address(X), address(L_), slopes), options)
        return RuleVjp(matmul(matmul(V, X), Vt), bool(status & REMOVED), bool(status & INCOMPLETE))
    by_rows = gV.is_contiguous()
    G = readable(gV if by_rows else gV.mT, dtype, values * n)
    W = readable_strided(V, dtype, shape, plan.columns)
    gA = empty_like(plan.result)
    status = plan.run((address(W), address(G), int(by_rows), address(L_), slopes, address(gA)), options)
    return RuleVjp(gA, bool(status & REMOVED), bool(status & INCOMPLETE))


def function_vjp(function: str, L: Tensor, V: Tensor, G: Tensor) -> Tensor | None:
    """V [F ∘ (Vᵀ G V)] Vᵀ of the symmetric part of G, with the function's divided differences F; None if too large.

    For tensors that are ``usable``, and a function in :data:`.codes.FUNCTIONS`.
    """
    shape, dtype = G.shape, G.dtype
    plan = _plan_or_none(shape, dtype, "function") if G.numel() > 0 else None
    if plan is None:
        return None
    values = plan.batch * plan.n
    L_, W = readable(L, dtype, values), readable_strided(V, dtype, shape, plan.columns)
    E, gA = readable(G, dtype, values * plan.n), empty_like(plan.result)
    plan.run((address(W), address(E), address(L_), address(gA)), (plan.n, FUNCTIONS[function]))
    return gA


class _Plan(NamedTuple):
    """How gradients at matrices of one shape are computed, worked out once."""

    n: int
    batch: int
    complete: bool  # the kernel does all of it; or else what is between products
    result: Tensor  # a template
    columns: tuple[int, ...]  # strides of matrices whose columns are contiguous
    kernel: Launcher
    unit: int  # it takes so many matrices at a time
    microseconds: float  # that it takes alone, about

    def __repr__(self) -> str:
        """Without the templates, which have no memory to print."""
        return f"{type(self).__name__}(n={self.n}, batch={self.batch}, unit={self.unit})"

    def run(self, places: Sequence[Any], options: Sequence[Any]) -> int:
        """Run the kernel; its status bits."""
        return self.kernel.launch(places, self.batch, self.unit, options, self.microseconds)


def _plan_or_none(shape: torch.Size, dtype: torch.dtype, what: str) -> _Plan | None:
    try:
        return _plan(shape, dtype, what)
    except KernelsUnavailableError:
        return None


@functools.lru_cache(maxsize=1024)
def _plan(shape: torch.Size, dtype: torch.dtype, what: str) -> _Plan | None:
    """Which kernel pulls gradients through a "rule" or a "function", by measurement; None if a function has none."""
    n, batch = shape[-1], shape[:-2].numel()
    complete = n <= _SINGLE or (n <= _LARGEST and batch > 1)
    function, unit = what == "function", vector_bytes() // dtype.itemsize
    if not complete and function:
        return None
    batched = costs.vjp_batched(n, batch, unit, function)
    single = costs.vjp_single(n, batch, dtype == torch.float32)
    if n <= _BATCHED and batched <= single:
        module, name, microseconds = "batched", f"{what}_vjp_batched", batched
    elif complete:
        module, name, unit, microseconds = "single", f"{what}_vjp_single", 1, single
    else:
        module, name, unit, microseconds = "single", "fill_bracket", 1, costs.bracket(n, batch)
    result, run = template(shape, dtype), load(f"vjp.{module}", name, dtype)
    columns = (*result.stride()[:-2], 1, n)
    return _Plan(n, batch, complete, result, columns, run, unit, microseconds)
