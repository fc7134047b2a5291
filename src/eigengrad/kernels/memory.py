"""Addresses of tensors: the only place that asks for one.

A kernel reads and writes at bare addresses, so whatever it is given must be what its plan says: numbers of one type, as
many as it will touch, in main memory, one after the other. :func:`readable` makes a tensor so, :func:`writable` insists
on it, and the type :data:`InMemory` lets the type checker refuse the address of any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NewType

import torch
from torch import Tensor

from .._compat import is_functional_tensor, is_zero_tensor

#: A tensor that owns the numbers it shows: on the CPU, dense, neither negated nor a zero without memory.
InMemory = NewType("InMemory", Tensor)

# Functions of torch under narrower types: a wrapper would cost as much as the call.
#: The address of the first number; 0 for a tensor without elements.
address: Callable[[InMemory], int] = Tensor.data_ptr
#: ``torch.empty_like`` of a tensor in main memory.
empty_like: Callable[[Tensor], InMemory] = torch.empty_like  # type: ignore[assignment]

_CPU = torch.device("cpu")


def maker(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Callable[[], InMemory]:
    """A function that makes uninitialised tensors of one shape, in main memory; contiguous, if not told otherwise."""
    if strides is None:
        strides = [math.prod(shape[k + 1 :]) for k in range(len(shape))]
    return functools.partial(torch.empty_strided, tuple(shape), tuple(strides), dtype=dtype, device=_CPU)  # type: ignore[return-value]


def column_major(shape: torch.Size) -> tuple[int, ...]:
    """The strides of batches of matrices whose columns are contiguous."""
    n = shape[-1]
    strides = [1, n]
    for size in (n * n, *reversed(shape[1:-2])):
        strides.insert(0, size * (strides[0] if len(strides) > 2 else 1))
    return tuple(strides[-len(shape) :])


def address_or_null(x: InMemory | None) -> int:
    """The address of the first number, or 0 for an argument that is left out."""
    return 0 if x is None else x.data_ptr()


def readable(
    x: Tensor, dtype: torch.dtype, count: int, layout: torch.memory_format = torch.contiguous_format
) -> InMemory:
    """``x`` itself if it is contiguous, with ``count`` elements of the type; a copy that is so, if it can be made."""
    try:
        if (
            x.dtype is dtype
            and x.numel() == count
            and x.is_cpu
            and x.is_contiguous(memory_format=layout)
            and not x.is_neg()
            and x.untyped_storage().data_ptr()  # that of x itself may be an offset from 0
        ):
            return x  # type: ignore[return-value]
    except RuntimeError:  # x has no storage, or none in memory
        pass
    _require(x, x.numel() == count, f"{count} elements")
    return _owning(x, dtype).contiguous(memory_format=layout)  # type: ignore[return-value]


def readable_strided(x: Tensor, dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...]) -> InMemory:
    """``x`` itself if it has the type, the shape and the strides; a copy that has them, if it can be made."""
    try:
        if (
            x.dtype is dtype
            and x.stride() == strides
            and x.shape == shape
            and x.is_cpu
            and not x.is_neg()
            and x.untyped_storage().data_ptr()
        ):
            return x  # type: ignore[return-value]
    except RuntimeError:
        pass
    _require(x, x.shape == shape, f"shape {tuple(shape)}")
    owning = _owning(x, dtype)
    if owning.stride() != strides:
        owning = owning.new_empty_strided(shape, strides).copy_(owning)
    return owning  # type: ignore[return-value]


def writable(x: Tensor, dtype: torch.dtype, count: int) -> InMemory:
    """``x``, which must be contiguous, with ``count`` elements of the type: a result is not written to a copy."""
    if readable(x, dtype, count) is not x:
        raise RuntimeError(f"a kernel cannot write to a tensor of {x.dtype} with strides {x.stride()}")
    return x  # type: ignore[return-value]


def _require(x: Tensor, fits: bool, expected: str) -> None:
    """Refuse what has the wrong size, or no numbers at all."""
    if not fits:
        raise RuntimeError(f"a kernel expected a tensor with {expected}; got one of shape {tuple(x.shape)}")
    if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
        raise RuntimeError(f"a kernel cannot read a {type(x).__name__}, whose numbers are elsewhere")
    if not x.is_cpu or x.layout is not torch.strided:
        raise RuntimeError(f"a kernel needs a dense tensor in main memory; got {x.layout} on {x.device}")
    if is_functional_tensor(x):
        raise RuntimeError("a kernel cannot read a functional tensor, whose numbers are elsewhere")
    if x.numel() > 0 and not is_zero_tensor(x) and not x.untyped_storage().data_ptr():
        raise RuntimeError(f"a kernel cannot read a tensor of shape {tuple(x.shape)} whose storage was freed")


def _owning(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` in a type, with numbers of its own: views that negate and zeros without memory are written out."""
    x = x.detach()
    if is_zero_tensor(x):
        return torch.zeros_like(x, dtype=dtype)
    return x.resolve_conj().resolve_neg().to(dtype)
