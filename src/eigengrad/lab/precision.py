"""Computation in full precision inside mixed-precision training."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["full_precision", "widen"]


def full_precision(x: Tensor) -> torch.autocast:
    """Context in which autocast is off for the device of ``x``."""
    return torch.autocast(x.device.type, enabled=False)


def widen(x: Tensor) -> Tensor:
    """``x`` in float32 if it is of half precision, otherwise as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
