"""Feature maps as the matrices that BLAS likes, without copying them.

A map (N, C, *spatial) has C channels in groups of d. In NCHW layout every sample and group is a d × M matrix, by rows.
In channels_last layout (and for plain (N, C) features) all samples together are one matrix, with channels as the fast
dimension; narrow groups are merged there into blocks of up to 64 channels, because products of a few columns at a time
run at a tenth of the speed, and the superfluous part of a block costs less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._execution import functorch_active

__all__ = [
    "Layout",
    "channels_fast",
    "dense",
    "in_layout_of",
    "memory_format",
    "no_view",
    "with_dense_gradient",
    "with_strides",
]

_MERGED_WIDTH = 64


@dataclass(frozen=True)
class Layout:
    """How one feature map is seen as ``repeat × blocks`` matrices of ``width`` rows, a column per point."""

    groups: int
    group_size: int
    repeat: int
    merged: int
    channels_fast: bool

    @classmethod
    def of(cls, x: Tensor, groups: int) -> Layout:
        """The natural layout of ``x``, which must be dense: see :func:`dense`."""
        size = x.shape[1] // groups
        if not channels_fast(x):
            return cls(groups, size, x.shape[0], 1, False)
        merged = max(k for k in range(1, groups + 1) if groups % k == 0 and (k == 1 or k * size <= _MERGED_WIDTH))
        return cls(groups, size, 1, merged, True)

    def matrices(self, x: Tensor) -> Tensor:
        """A view (repeat · blocks, width, points) of a map with this layout."""
        width = self.merged * self.group_size
        positions = math.prod(x.shape[2:])
        if self.channels_fast:
            rows = x.movedim(1, -1).reshape(x.shape[0] * positions, self.groups // self.merged, width)
            return rows.permute(1, 2, 0)
        return x.reshape(self.repeat * self.groups, width, positions)

    def sum_products(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ over points of left · rightᵀ within each group: two maps to (groups, d, d)."""
        product = torch.bmm(self.matrices(left), self.matrices(right).mT)
        if self.merged == 1:
            return product.view(self.repeat, self.groups, self.group_size, self.group_size).sum(0)
        k, d = self.merged, self.group_size
        blocks = torch.diagonal(product.view(-1, k, d, k, d), dim1=1, dim2=3)  # (groups/k, d, d, k)
        return blocks.permute(0, 3, 1, 2).reshape(self.groups, d, d)

    def affine(self, A: Tensor, c: Tensor, x: Tensor, *, out: Tensor) -> None:
        """A x + c in each group, into ``out``: (groups, d, d), (C,), and two maps."""
        blocks, width = self.groups // self.merged, self.merged * self.group_size
        offsets = c.view(blocks, width, 1).repeat(self.repeat, 1, 1)
        torch.baddbmm(offsets, self.operator(A), self.matrices(x), out=self.matrices(out))

    def operator(self, A: Tensor) -> Tensor:
        """(groups, d, d) matrices, one for each of :meth:`matrices`."""
        if self.merged == 1:
            d = self.group_size
            return A.expand(self.repeat, self.groups, d, d).reshape(-1, d, d)
        k, d = self.merged, self.group_size
        blocks = A.new_zeros(self.groups // k, k, d, k, d)
        torch.diagonal(blocks, dim1=1, dim2=3).copy_(A.view(-1, k, d, d).permute(0, 2, 3, 1))
        return blocks.view(-1, k * d, k * d)


def channels_fast(x: Tensor) -> bool:
    """Whether a dense map has its channels next to each other in memory."""
    if x.ndim == 2:
        return x.is_contiguous()
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    return last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last)


def dense(x: Tensor) -> Tensor:
    """``x`` itself if it is contiguous in either layout, a contiguous copy otherwise. It holds its own signs."""
    return x.resolve_neg() if x.is_contiguous() or channels_fast(x) else x.contiguous().resolve_neg()


def in_layout_of(y: Tensor, x: Tensor) -> Tensor:
    """``y``, a map of the shape of ``x``, contiguous as ``x`` is: its channels next to each other, or not."""
    if functorch_active():  # where only one layout can be asked for
        return y.contiguous()
    return y.contiguous(memory_format=memory_format(x) if channels_fast(x) else torch.contiguous_format)


def no_view(y: Tensor) -> Tensor:
    """``y`` (..., C, H, W) itself; where ``torch.compile`` looks on, computed into memory of its own.

    With symbolic sizes, Inductor of torch 2.13 cannot tell the order of the strides of a map that is a view and that a
    convolution comes after. It takes a copy to the same layout away, but not one there and back, which cost nothing.
    """
    if not torch.compiler.is_compiling() or functorch_active():
        return y
    return y.movedim(-3, -1).contiguous().movedim(-1, -3).contiguous()


def with_dense_gradient(x: Tensor) -> Tensor:
    """``x`` itself, to which its gradient comes dense in the layout of ``x`` where ``torch.compile`` looks on.

    Elsewhere it may come as it likes. With symbolic sizes, torch 2.13 cannot tell the order of the strides of a
    gradient (N, C, *spatial) that lies as (C, N, *spatial), and the backward pass of a convolution asks for it.
    """
    if not torch.compiler.is_compiling() or functorch_active():
        return x
    same: Tensor = _DenseGradient.apply(x, channels_fast(x))  # type: ignore[no-untyped-call]
    return same


class _DenseGradient(Function):
    @staticmethod
    def forward(x: Tensor, channels_fast: bool) -> Any:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        ctx.channels_fast = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return (g.movedim(1, -1).contiguous().movedim(-1, 1) if ctx.channels_fast else g.contiguous()), None


def memory_format(x: Tensor) -> torch.memory_format:
    """The memory format of a dense map."""
    if x.is_contiguous():
        return torch.contiguous_format
    return torch.channels_last if x.ndim == 4 else torch.channels_last_3d


def with_strides(x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """``x`` as it lay in memory: hooks on what autograd saves may give it back in another layout."""
    return x if x.stride() == strides else x.new_empty_strided(x.shape, strides).copy_(x)
