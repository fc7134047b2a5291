"""Templates for ``torch.empty_like``: of all ways to a new tensor the quickest, by half a microsecond.

Whoever plans work for a shape makes the templates of its results once, and keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._compat import without_dispatch_modes

__all__ = ["template"]


def template(shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
    """A tensor in main memory that has none of it: a shape and strides (contiguous ones, if not given), and a type."""
    with without_dispatch_modes(), torch.inference_mode(False):  # it is kept beyond whatever is at work now
        if strides is None:
            empty = torch.empty(shape, dtype=dtype, device="cpu")
        else:
            empty = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
        empty.untyped_storage().resize_(0)
    return empty
