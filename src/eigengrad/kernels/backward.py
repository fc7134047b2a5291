"""Backward passes by kernels, on tensors: the choice between one call for all and products around a small kernel."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._inputs import matmul
from . import INCOMPLETE, REMOVED, Function, Rule, load
from .memory import address, empty_like, readable, readable_strided
from .templates import template

if TYPE_CHECKING:
    from .runtime.launch import Launcher

__all__ = ["function_pullback", "rule_pullback"]

_IN_LANES = 32  # up to this n matrices are taken side by side if there are many,
_LARGEST = 512  # and up to this one by one,
_ALONE = 64  # unless it is a single one that is larger than this: its products are for the library's threads


def rule_pullback(
    rule: Rule, one: float, two: float, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor
) -> tuple[Tensor, bool, bool]:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV and the rule's R, for tensors that are ``usable``.

    Returns it, whether the rule removed more than half of the gradient of some matrix, and whether some gradient is
    incomplete whatever the rule (see ``gradients.observation.is_incomplete``).
    """
    shape, dtype = gV.shape, gV.dtype
    plan = _plan(shape, dtype, "rule")
    assert plan is not None
    n, values = plan.n, plan.batch * plan.n
    L_ = readable(L, dtype, values)
    slopes = 0
    if gL is not None:
        gL = readable(gL, dtype, values)
        slopes = address(gL)
    options = n, rule.value, one, two
    if not plan.complete:
        Vt = V.mT
        X = readable(matmul(Vt, gV), dtype, values * n)
        status = plan.run((address(X), address(L_), slopes), options)
        return matmul(matmul(V, X), Vt), bool(status & REMOVED), bool(status & INCOMPLETE)
    by_rows = gV.is_contiguous()
    G = readable(gV if by_rows else gV.mT, dtype, values * n)
    W = readable_strided(V, dtype, shape, plan.columns)
    gA = empty_like(plan.result)
    status = plan.run((address(W), address(G), int(by_rows), address(L_), slopes, address(gA)), options)
    return gA, bool(status & REMOVED), bool(status & INCOMPLETE)


def function_pullback(function: Function, L: Tensor, V: Tensor, G: Tensor) -> Tensor | None:
    """V [F ∘ (Vᵀ G V)] Vᵀ of the symmetric part of G, with the function's divided differences F; ``None`` if too large.

    For tensors that are ``usable``.
    """
    shape, dtype = G.shape, G.dtype
    plan = _plan(shape, dtype, "function") if G.numel() > 0 else None
    if plan is None:
        return None
    values = plan.batch * plan.n
    L_, W = readable(L, dtype, values), readable_strided(V, dtype, shape, plan.columns)
    E, gA = readable(G, dtype, values * plan.n), empty_like(plan.result)
    plan.run((address(W), address(E), address(L_), address(gA)), (plan.n, function.value))
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


@functools.lru_cache(maxsize=1024)
def _plan(shape: torch.Size, dtype: torch.dtype, what: str) -> _Plan | None:
    """Which kernel pulls gradients through a "rule" or a "function", by measurement; None if a function has none."""
    n, batch = shape[-1], shape[:-2].numel()
    complete = n <= _ALONE or (n <= _LARGEST and batch > 1)
    rule, unit = what == "rule", 64 // dtype.itemsize
    if not complete and not rule:
        return None
    side_by_side = -(-batch // unit) * (0.5 + (1.15e-3 if rule else 1.4e-3) * n**3)  # microseconds, as is what follows
    alone = batch * (0.2 + 3e-3 * n**2 + 6e-5 * n**3) * (1.0 if dtype == torch.float32 else 1.5)
    if n <= _IN_LANES and side_by_side <= alone:
        module, name, microseconds = "pullbacks", f"pull_through_{what}", side_by_side
    elif complete:
        module, name, unit, microseconds = "pullbacks_alone", f"{what}_alone", 1, alone
    else:
        module, name, unit, microseconds = "pullbacks_alone", "fill_bracket", 1, batch * 2e-3 * n**2
    result, run = template(shape, dtype), load(module, name, dtype)
    columns = (*result.stride()[:-2], 1, n)
    return _Plan(n, batch, complete, result, columns, run, unit, microseconds)
