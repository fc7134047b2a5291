"""Backward passes by kernels, on tensors: the choice between one call for all and products around a small kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._inputs import matmul
from . import Function, Rule, threads

__all__ = ["function_pullback", "rule_pullback"]

_LARGEST = 32  # up to this n the products are done in lanes too
_PARALLEL = 200.0  # microseconds of work from which a second thread pays


class _Kernels(NamedTuple):
    """What :mod:`.pullbacks` offers, a number of the type in question, and how many matrices are taken at a time."""

    number: Any
    unit: int
    rule: Callable[..., int]
    function: Callable[..., int]
    bracket: Callable[..., int]


@functools.cache
def _kernels(dtype: torch.dtype) -> _Kernels:
    import numpy as np

    from .pullbacks import fill_bracket, pull_through_function, pull_through_rule

    number, unit = (np.float32(0), 16) if dtype == torch.float32 else (np.float64(0), 8)
    return _Kernels(number, unit, pull_through_rule, pull_through_function, fill_bracket)


def rule_pullback(rule: Rule, one: float, two: float, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor) -> Tensor:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV and the rule's R, for tensors that are ``usable``."""
    n, kernels = V.shape[-1], _kernels(V.dtype)
    L, gL, gV = L.contiguous(), None if gL is None else gL.contiguous().resolve_neg(), gV.resolve_neg()
    slopes = 0 if gL is None else gL.data_ptr()
    batch = L.numel() // n
    if n > _LARGEST:
        Vt = V.mT
        X = matmul(Vt, gV).contiguous()
        matrices = kernels.number, X.data_ptr(), L.data_ptr(), slopes
        _run(kernels.bracket, matrices, (n, rule.value, one, two), batch, 1, 2e-3 * n * n)
        return matmul(matmul(V, X), Vt)
    rows = V.mT.contiguous()
    by_rows = gV.is_contiguous()
    gV = gV if by_rows else gV.mT.contiguous()
    gA = torch.empty(V.shape, dtype=V.dtype, device="cpu")
    places = kernels.number, rows.data_ptr(), gV.data_ptr(), by_rows, L.data_ptr(), slopes, gA.data_ptr()
    _run(kernels.rule, places, (n, rule.value, one, two), batch, kernels.unit, 0.5 + 1e-3 * n**3)
    return gA


def function_pullback(function: Function, L: Tensor, V: Tensor, G: Tensor) -> Tensor | None:
    """V [F ∘ (Vᵀ G V)] Vᵀ with the function's divided differences F, for tensors that are ``usable``; or ``None``."""
    n, kernels = V.shape[-1], _kernels(V.dtype)
    if n > _LARGEST or L.numel() == 0:
        return None
    L, rows, G = L.contiguous(), V.mT.contiguous(), G.contiguous().resolve_neg()
    gA = torch.empty(V.shape, dtype=V.dtype, device="cpu")
    places = kernels.number, rows.data_ptr(), G.data_ptr(), L.data_ptr(), gA.data_ptr()
    _run(kernels.function, places, (n, function.value), L.numel() // n, kernels.unit, 0.5 + 1.3e-3 * n**3)
    return gA


def _run(
    kernel: Callable[..., int], places: Sequence[Any], options: Sequence[Any], batch: int, unit: int, cost: float
) -> None:
    """On one thread, or on several where ``cost`` microseconds a unit make it worth while."""
    if torch.get_num_threads() == 1 or -(-batch // unit) * cost < _PARALLEL:
        kernel(*places, 0, batch, *options, 0)
    else:
        threads.share(kernel, places, batch, unit, options)
