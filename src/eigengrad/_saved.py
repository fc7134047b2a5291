"""What autograd functions keep for the backward pass, as they kept it.

``torch.autograd.graph.saved_tensors_hooks`` may hand back something else: hooks that compress to half precision and
back return float32 for what was float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._compat import SAVED_TENSORS_NEED_ALIASES, forward_mode, saved_tensors_hooks_active

__all__ = ["save", "saved"]


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """Keep tensors for ``backward`` and ``jvp``, remembering types and shapes where hooks are at work."""
    ctx.save_for_backward(*tensors)
    if forward_mode():
        ctx.save_for_forward(*tensors)
    ctx.kinds = None
    if not torch.compiler.is_compiling() and saved_tensors_hooks_active():
        ctx.kinds = [None if x is None else (x.dtype, x.shape) for x in tensors]


def saved(ctx: Any) -> tuple[Any, ...]:
    """``ctx.saved_tensors`` in the types in which they were saved; RuntimeError where a shape is another."""
    if ctx.kinds is None:
        tensors: tuple[Any, ...] = ctx.saved_tensors
        if SAVED_TENSORS_NEED_ALIASES and torch.compiler.is_compiling():
            tensors = (*[None if x is None else x.view_as(x) for x in tensors],)
        return tensors
    return tuple(
        None if kind is None else _restored(x, *kind) for x, kind in zip(ctx.saved_tensors, ctx.kinds, strict=True)
    )


def _restored(x: Tensor, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    if x.shape != shape:
        raise RuntimeError(
            f"saved_tensors_hooks: unpacking must return a tensor of shape {tuple(shape)}, as it was packed; "
            f"got {tuple(x.shape)}"
        )
    return x if x.dtype is dtype else x.to(dtype)
