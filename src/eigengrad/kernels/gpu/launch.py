"""Launches of the GPU kernels: tensors in, tensors out. The only module of the library that imports triton's kernels.

Importing it imports triton; with ``TRITON_INTERPRET=1`` set before, the kernels run in Python, on CPU tensors.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from . import feature_maps, vjp
from .jacobi_lanes import jacobi_lanes
from .jacobi_program import jacobi_program

__all__ = [
    "OPTIONS",
    "MapLaunch",
    "SolverLaunch",
    "VjpLaunch",
    "affine",
    "decompose",
    "eigh_vjp",
    "function_vjp",
    "moments",
]

#: Compiler options. Multiplications and additions are fused, whatever a version's default; loops are not pipelined,
#: which would take more registers than there are.
OPTIONS = {"enable_fp_fusion": True, "num_stages": 1}

_LIFT = {torch.float32: 75, torch.float64: 800}  # see gradients.lift


class SolverLaunch(NamedTuple):
    """How matrices of one size are decomposed."""

    lanes: bool  # a matrix a lane, or a matrix a program
    block: int  # matrices a program, or the padded n
    warps: int

    @classmethod
    def of(cls, n: int) -> SolverLaunch:
        """The launch for n × n matrices, 1 ≤ n ≤ 64."""
        if n <= 4:
            return cls(lanes=True, block=32, warps=1)
        N = max(8, triton.next_power_of_2(n))
        return cls(lanes=False, block=N, warps={8: 1, 16: 1, 32: 2, 64: 8}[N])


class VjpLaunch(NamedTuple):
    """How gradients at matrices of one size are computed."""

    block: int  # the padded n
    warps: int

    @classmethod
    def of(cls, n: int) -> VjpLaunch:
        """The launch for n × n matrices, 1 ≤ n ≤ 64."""
        N = max(4, triton.next_power_of_2(n))
        return cls(N, {4: 1, 8: 1, 16: 1, 32: 4, 64: 8}[N])


class MapLaunch(NamedTuple):
    """How a pass goes over a feature map."""

    width: int  # channels of a program
    block: int  # the same, padded
    points: int  # of a tile
    warps: int

    @classmethod
    def of(cls, channels: int, d: int, sums: bool) -> MapLaunch:
        """The launch for maps of ``channels`` in groups of d ≤ 32: for sums over points, or for a map of them.

        Of the tiles that compile without spills, those with the fewest instructions a point.
        """
        groups = channels // d
        together = max(k for k in range(1, groups + 1) if groups % k == 0 and (k == 1 or k * d <= 16))
        block = max(16, triton.next_power_of_2(together * d))
        return cls(together * d, block, *_TILES[block, sums])


_TILES = {(16, True): (128, 2), (32, True): (32, 4), (16, False): (128, 4), (32, False): (64, 4)}  # points, warps

#: Programs among which the points of a map are divided for sums: some for each multiprocessor of a large GPU. It does
#: not depend on the device, and nor do results.
_PROGRAMS = 512


def moments(x: Tensor, y: Tensor | None, centre: Tensor, d: int) -> tuple[Tensor, Tensor]:
    """Σ y (x − c)ᵀ (groups, d, d) and Σ y (C,) over the points of maps (N, C, *spatial), in groups of d ≤ 32 channels.

    Args:
        x, y: dense in the same layout; without y it is x − c.
        centre: c, (C,).
    """
    channels, (samples, positions, strides) = x.shape[1], _as_samples(x)
    how = MapLaunch.of(channels, d, sums=True)
    blocks, tiles = channels // how.width, samples * triton.cdiv(positions, how.points)
    parts = max(1, min(tiles, triton.cdiv(_PROGRAMS, blocks)))
    products, sums = x.new_empty(parts, channels, d), x.new_empty(parts, channels)
    with _current_device(x):
        feature_maps.moments[(blocks, parts)](
            x, x if y is None else y, centre, products, sums, samples, positions, channels, d, *strides, how.width,
            y is None, how.block, how.points, num_warps=how.warps, **OPTIONS,
        )  # fmt: skip
    wide = products.sum(0, dtype=torch.float64), sums.sum(0, dtype=torch.float64)
    return wide[0].to(x.dtype).view(channels // d, d, d), wide[1].to(x.dtype)


def affine(
    x: Tensor, centre: Tensor, B: Tensor, offset: Tensor, y: Tensor | None = None, A: Tensor | None = None
) -> Tensor:
    """B (x − c) + b, and A y if given, at each point: maps (N, C, *spatial) to one in the layout of x.

    Args:
        x, y: dense in the same layout.
        centre, offset: c and b, (C,).
        B, A: (groups, d, d), d ≤ 32.
    """
    d, channels, (samples, positions, strides) = B.shape[-1], x.shape[1], _as_samples(x)
    how, out, B = MapLaunch.of(channels, d, sums=False), torch.empty_like(x), B.contiguous()
    with _current_device(x):
        feature_maps.affine[(triton.cdiv(positions, how.points), channels // how.width, samples)](
            x, x if y is None else y, centre, B, B if A is None else A.contiguous(), offset, out, positions, channels,
            d, *strides, how.width, y is not None, how.block, how.points, num_warps=how.warps, **OPTIONS,
        )  # fmt: skip
    return out


def _as_samples(x: Tensor) -> tuple[int, int, tuple[int, int, int]]:
    """How many samples and positions a dense map has, and the strides (sample, channel, position).

    With its channels next to each other in memory it is one sample: points then follow each other at equal distances.
    """
    count = x.shape[0] * math.prod(x.shape[2:])
    if x.stride(1) == 1 or count == x.shape[0]:
        return 1, count, (0, x.stride(1), x.shape[1] if x.stride(1) == 1 else x.stride(0))
    return x.shape[0], count // x.shape[0], (x.stride(0), x.stride(1), 1)


def decompose(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues (..., n), ascending, eigenvectors (..., n, n) and status (...) of real A (..., n, n), n ≤ 64.

    Lower triangles are read. Status, int32: 0, decomposed; 1, not finite; 2, not converged. L and V are NaN where it is
    not 0, for that matrix alone. Nothing waits for the device.
    """
    n = A.shape[-1]
    L, V = A.new_empty(A.shape[:-1]), A.new_empty(A.shape)
    status = torch.zeros(A.shape[:-2], dtype=torch.int32, device=A.device)
    if A.numel() > 0:
        how, M = SolverLaunch.of(n), _flat(A)
        with _current_device(A):
            if how.lanes:
                jacobi_lanes[(triton.cdiv(len(M), how.block),)](
                    M, L, V, status, len(M), *M.stride(), n, how.block, num_warps=how.warps, **OPTIONS
                )
            else:
                jacobi_program[(len(M),)](M, L, V, status, n, *M.stride(), how.block, num_warps=how.warps, **OPTIONS)
    return L, V.mT, status


def eigh_vjp(
    rule: str, parameters: tuple[float, float], lifted: bool, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor
) -> Tensor:
    """gA = V [½ (X − Xᵀ) ∘ R + diag(gλ)] Vᵀ with X = Vᵀ gV and the rule's R, (..., n, n), n ≤ 64.

    Args:
        rule, parameters: the name of a rule, one of :data:`.vjp.RULES`, and its ``kernel()`` parameters.
        lifted: whether tiny matrices are lifted into range: for rules that are scale-free.
        L, V: eigenvalues (..., n) and eigenvectors (..., n, n), real.
        gL, gV: their gradients.
    """
    n, gA = L.shape[-1], torch.empty_like(gV, memory_format=torch.contiguous_format)
    if gA.numel() > 0:
        how, L, W, G = VjpLaunch.of(n), L.contiguous(), _flat(V), _flat(gV)
        slopes = L if gL is None else gL.contiguous()
        with _current_device(V):
            vjp.rule_vjp[(len(W),)](
                L, W, slopes, G, gA, n, *W.stride(), *G.stride(), vjp.RULES[rule], *parameters,
                _LIFT[L.dtype] if lifted else 0, gL is not None, how.block, num_warps=how.warps, **OPTIONS,
            )  # fmt: skip
    return gA


def function_vjp(function: str, L: Tensor, V: Tensor, G: Tensor) -> Tensor:
    """V [F ∘ (Vᵀ G V)] Vᵀ of the symmetric part of G (..., n, n), with the divided differences of ``function``, n ≤ 64.

    ``function`` is one of :data:`.vjp.FUNCTIONS`.
    """
    n, gA = L.shape[-1], torch.empty_like(G, memory_format=torch.contiguous_format)
    if gA.numel() > 0:
        how, W, E = VjpLaunch.of(n), _flat(V), _flat(G)
        with _current_device(V):
            vjp.function_vjp[(len(W),)](
                L.contiguous(), W, E, gA, n, *W.stride(), *E.stride(), vjp.FUNCTIONS[function], how.block,
                num_warps=how.warps, **OPTIONS,
            )  # fmt: skip
    return gA


def _flat(A: Tensor) -> Tensor:
    """A (..., n, n) as (batch, n, n): without a copy if the strides allow."""
    return A.reshape(-1, *A.shape[-2:])


def _current_device(A: Tensor) -> AbstractContextManager[object]:
    """Context in which the device of ``A`` is the current one, on which Triton launches."""
    if A.is_cpu:  # the interpreter
        return nullcontext()
    context: AbstractContextManager[object] = torch.get_device_module(A.device).device(A.device)
    return context
