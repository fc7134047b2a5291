"""Vector–Jacobian products: backward passes through eigendecompositions and matrix functions, on tensors.

A plan says whether one kernel does all of it, or what is between products of BLAS; it is made once for each shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..._inputs import matmul
from .. import costs
from ..dispatch import KernelsUnavailableError, load, vector_bytes
from ..memory import InMemory, address, column_major, maker, readable, readable_strided
from .codes import FUNCTIONS, INCOMPLETE, REMOVED, RULES, TINY

if TYPE_CHECKING:
    from ..runtime.launch import Launcher

__all__ = ["RuleVjp", "eigh_vjp", "function_vjp", "rule_bracket"]


class RuleVjp(NamedTuple):
    """A gradient, and what a rule did to it."""

    gradient: Tensor  #: of A, or the part of it that is between products with vectors
    removed: bool  #: the rule removed more than half of the gradient of some matrix
    incomplete: bool  #: some gradient is incomplete whatever the rule: see ``gradients.observation.is_incomplete``
    tiny: bool  #: some matrix is zero, or so small that it has to be lifted first: see ``gradients.lift``

    @classmethod
    def of(cls, gradient: Tensor, status: int) -> RuleVjp:
        """From the status bits of a kernel."""
        return cls(gradient, bool(status & REMOVED), bool(status & INCOMPLETE), bool(status & TINY))


def eigh_vjp(
    rule: str, parameters: tuple[float, float], L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor
) -> RuleVjp | None:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV and the rule's R; None if no kernel can be compiled.

    Args:
        rule: its name, one of :data:`.codes.RULES`.
        parameters: see :func:`.rules.prepare`.
        L, V: eigenvalues (..., n) and eigenvectors (..., n, n).
        gL, gV: their gradients. All tensors are ``usable``.
    """
    shape, dtype = gV.shape, gV.dtype
    plan = _plan_or_none(shape, dtype, "rule")
    if plan is None:
        return None
    if not plan.complete:
        Vt = V.mT
        between = rule_bracket(rule, parameters, L, matmul(Vt, gV), gL)
        return between and between._replace(gradient=matmul(matmul(V, between.gradient), Vt))
    n, values = plan.n, plan.batch * plan.n
    L_ = readable(L, dtype, values)
    slopes = 0
    if gL is not None:
        gL = readable(gL, dtype, values)
        slopes = address(gL)
    options = RULES[rule], *parameters
    by_rows = gV.is_contiguous()
    G = readable(gV if by_rows else gV.mT, dtype, values * n)
    W = readable_strided(V, dtype, shape, plan.columns)
    gA = plan.new_result()
    status = plan.run((address(W), address(G), int(by_rows), address(L_), slopes, address(gA)), options)
    return RuleVjp.of(gA, status)


def rule_bracket(rule: str, parameters: tuple[float, float], L: Tensor, X: Tensor, gL: Tensor | None) -> RuleVjp | None:
    """½ (X − Xᵀ) ∘ R + diag(gλ) with the rule's R; None if no kernel can be compiled.

    Arguments as :func:`eigh_vjp` has them. X (..., n, n) may be overwritten.
    """
    shape, dtype = X.shape, X.dtype
    plan = _plan_or_none(shape, dtype, "bracket")
    if plan is None:
        return None
    values = plan.batch * plan.n
    L_, X = readable(L, dtype, values), readable(X, dtype, values * plan.n)
    slopes = 0 if gL is None else address(readable(gL, dtype, values))
    status = plan.run((address(X), address(L_), slopes), (RULES[rule], *parameters))
    return RuleVjp.of(X, status)


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
    rows = G if G.is_contiguous() else G.mT  # of which it is the symmetric part as well
    E, gA = readable(rows, dtype, values * plan.n), plan.new_result()
    plan.run((address(W), address(E), address(L_), address(gA)), (FUNCTIONS[function],))
    return gA


class _Plan(NamedTuple):
    """How gradients at matrices of one shape are computed, worked out once."""

    n: int
    batch: int
    complete: bool  # the kernel does all of it; or else what is between products
    new_result: Callable[[], InMemory]
    columns: tuple[int, ...]  # strides of matrices whose columns are contiguous
    kernel: Launcher
    unit: int  # it takes so many matrices at a time
    microseconds: float  # that it takes alone, about

    def run(self, places: Sequence[Any], options: Sequence[Any]) -> int:
        """Run the kernel and return its status bits."""
        return self.kernel.launch((*places, self.batch, self.n, *options), self.batch, self.unit, self.microseconds)


def _plan_or_none(shape: torch.Size, dtype: torch.dtype, what: str) -> _Plan | None:
    try:
        return _plan(shape, dtype, what)
    except KernelsUnavailableError:
        return None


@functools.lru_cache(maxsize=1024)
def _plan(shape: torch.Size, dtype: torch.dtype, what: str) -> _Plan | None:
    """Which kernel pulls gradients through a "rule" or a "function", by measurement; None if a function has none.

    "bracket" is what is between the products of a rule.
    """
    n, batch = shape[-1], shape[:-2].numel()
    complete = n <= costs.LARGEST_SINGLE_VJP or (n <= costs.LARGEST and batch > 1)
    function, unit = what == "function", vector_bytes() // dtype.itemsize
    if not complete and function:
        return None
    batched = costs.vjp_batched(n, batch, unit, function)
    single = costs.vjp_single(n, batch, unit, dtype == torch.float32)
    if what == "bracket" or not complete:
        module, name, unit, microseconds = "single", "fill_bracket", 1, costs.bracket(n, batch)
    elif n <= costs.LARGEST_BATCHED_VJP and batched <= single:
        module, name, microseconds = "batched", f"{what}_vjp_batched", batched
    else:
        module, name, unit, microseconds = "single", f"{what}_vjp_single", 1, single
    run = load(f"vjp.{module}", name, dtype)
    return _Plan(n, batch, complete, maker(shape, dtype), column_major(shape), run, unit, microseconds)
