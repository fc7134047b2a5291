"""Backward passes by kernels, on tensors: the choice between one call for all and products around a small kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._inputs import matmul
from . import Function, Rule, kernel, threads

__all__ = ["function_pullback", "rule_pullback"]

_LARGEST = 32  # up to this n the products are done in lanes too
_PARALLEL = 200.0  # microseconds of work from which a second thread pays


def rule_pullback(rule: Rule, one: float, two: float, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor) -> Tensor:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV and the rule's R, for tensors that are ``usable``."""
    n = V.shape[-1]
    L, gL, gV = L.contiguous(), None if gL is None else gL.contiguous().resolve_neg(), gV.resolve_neg()
    slopes = 0 if gL is None else gL.data_ptr()
    batch = L.numel() // n
    if n > _LARGEST:
        Vt = V.mT
        X = matmul(Vt, gV).contiguous()
        matrices = X.data_ptr(), L.data_ptr(), slopes
        _run("fill_bracket", V.dtype, matrices, (n, rule.value, one, two), batch, 1, 2e-3 * n * n)
        return matmul(matmul(V, X), Vt)
    rows = V.mT.contiguous()
    by_rows = gV.is_contiguous()
    gV = gV if by_rows else gV.mT.contiguous()
    gA = L.new_empty(V.shape)
    places = rows.data_ptr(), gV.data_ptr(), by_rows, L.data_ptr(), slopes, gA.data_ptr()
    _run("pull_through_rule", V.dtype, places, (n, rule.value, one, two), batch, _side_by_side(V), 0.5 + 1e-3 * n**3)
    return gA


def function_pullback(function: Function, L: Tensor, V: Tensor, G: Tensor) -> Tensor | None:
    """V [F ∘ (Vᵀ G V)] Vᵀ with the function's divided differences F, for tensors that are ``usable``; or ``None``."""
    n = V.shape[-1]
    if n > _LARGEST or L.numel() == 0:
        return None
    L, rows, G = L.contiguous(), V.mT.contiguous(), G.contiguous().resolve_neg()
    gA = L.new_empty(V.shape)
    places = rows.data_ptr(), G.data_ptr(), L.data_ptr(), gA.data_ptr()
    options, batch = (n, function.value), L.numel() // n
    _run("pull_through_function", V.dtype, places, options, batch, _side_by_side(V), 0.5 + 1.3e-3 * n**3)
    return gA


def _side_by_side(V: Tensor) -> int:
    """How many matrices are taken at a time."""
    return 64 // V.itemsize


def _run(
    name: str, dtype: torch.dtype, places: Sequence[Any], options: Sequence[Any], batch: int, unit: int, cost: float
) -> None:
    """On one thread, or on several where ``cost`` microseconds a unit make it worth while."""
    run = kernel("pullbacks", name, dtype)
    if torch.get_num_threads() == 1 or -(-batch // unit) * cost < _PARALLEL:
        run(*places, 0, batch, *options, 0)
    else:
        threads.share(run, places, batch, unit, options)
