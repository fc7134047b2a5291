"""Backward passes by kernels, on tensors: the choice between one call for all and products around a small kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._inputs import matmul
from . import Function, Rule, kernel, threads

__all__ = ["function_pullback", "rule_pullback"]

_IN_LANES = 32  # up to this n matrices are taken side by side,
_LARGEST = 512  # and up to this one by one,
_ALONE = 64  # unless it is a single one that is larger than this: its products are for the library's threads
_PARALLEL = 120.0  # microseconds of work from which a second thread pays


def rule_pullback(rule: Rule, one: float, two: float, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor) -> Tensor:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV and the rule's R, for tensors that are ``usable``."""
    n = V.shape[-1]
    L, gL, gV = L.contiguous(), None if gL is None else gL.contiguous().resolve_neg(), gV.resolve_neg()
    slopes = 0 if gL is None else gL.data_ptr()
    batch = L.numel() // n
    options = n, rule.value, one, two
    if n > _IN_LANES and not _fit(n, batch):
        Vt = V.mT
        X = matmul(Vt, gV).contiguous()
        matrices = X.data_ptr(), L.data_ptr(), slopes
        _run("pullbacks_alone", "fill_bracket", V.dtype, matrices, options, batch, 1, 2e-3 * n * n)
        return matmul(matmul(V, X), Vt)
    rows = V.mT.contiguous()
    by_rows = gV.is_contiguous()
    gV = gV if by_rows else gV.mT.contiguous()
    gA = torch.empty_like(rows)
    places = rows.data_ptr(), gV.data_ptr(), by_rows, L.data_ptr(), slopes, gA.data_ptr()
    if n > _IN_LANES:
        _run("pullbacks_alone", "rule_alone", V.dtype, places, options, batch, 1, 3 + 8e-5 * n**3)
    else:
        cost = 0.5 + 1e-3 * n**3
        _run("pullbacks", "pull_through_rule", V.dtype, places, options, batch, _side_by_side(V), cost)
    return gA


def _fit(n: int, batch: int) -> bool:
    """Whether the kernels for one matrix at a time are the way."""
    return n <= _ALONE or (n <= _LARGEST and batch > 1)


def function_pullback(function: Function, L: Tensor, V: Tensor, G: Tensor) -> Tensor | None:
    """V [F ∘ (Vᵀ G V)] Vᵀ with the function's divided differences F, for tensors that are ``usable``; or ``None``."""
    n = V.shape[-1]
    batch = L.numel() // n if n else 0
    if batch == 0 or not _fit(n, batch):
        return None
    L, rows, G = L.contiguous(), V.mT.contiguous(), G.contiguous().resolve_neg()
    gA = torch.empty_like(rows)
    places, options = (rows.data_ptr(), G.data_ptr(), L.data_ptr(), gA.data_ptr()), (n, function.value)
    if n > _IN_LANES:
        _run("pullbacks_alone", "function_alone", V.dtype, places, options, batch, 1, 3 + 1.1e-4 * n**3)
    else:
        cost = 0.5 + 1.3e-3 * n**3
        _run("pullbacks", "pull_through_function", V.dtype, places, options, batch, _side_by_side(V), cost)
    return gA


def _side_by_side(V: Tensor) -> int:
    """How many matrices are taken at a time."""
    return 64 // V.itemsize


def _run(
    module: str,
    name: str,
    dtype: torch.dtype,
    places: Sequence[Any],
    options: Sequence[Any],
    batch: int,
    unit: int,
    cost: float,
) -> None:
    """On one thread, or on several where ``cost`` microseconds a unit make it worth while."""
    run = kernel(module, name, dtype)
    if torch.get_num_threads() == 1 or -(-batch // unit) * cost < _PARALLEL:
        run(*places, 0, batch, *options, 0)
    else:
        threads.share(run, places, batch, unit, options)
