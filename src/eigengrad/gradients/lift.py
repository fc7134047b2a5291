"""Matrices at the bottom of a number type's range, lifted by a power of two before reciprocals are taken.

The reciprocal of a gap leaves the range of float32 below 3e-39, and what rules compare gaps with (round-off, or a
fraction of a small spread) turns denormal long before, from a size of 1e-25 on. Eigenvectors do not change when A is
multiplied by c, and the gradient of a function of them is divided by c. So the derivative is computed at c λ, of
ordinary size, and multiplied by c at the end: it is right wherever the type can hold it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._execution import can_read
from .._inputs import detached
from .removed import is_attributed, warn_out_of_range

__all__ = ["EXPONENTS", "lift", "lower"]

# Matrices whose values are all below 2^−k are multiplied by 2^k. What is larger has a round-off, and widths of rules
# well below that, which are not denormal: 1e-6 · finfo.eps · 2^−k is an ordinary number. And so is what the smallest
# denormal number becomes, times finfo.eps, and its reciprocal.
EXPONENTS = {torch.float32: 75, torch.float64: 800}


def lift(values: Tensor) -> Tensor | None:
    """The power of two that each matrix is to be multiplied by, (..., 1); ``None`` if it is 1 for all of them.

    It is 1 for ordinary matrices and for zero, which has no size.

    Args:
        values: eigenvalues or singular values in ascending or descending order, (..., n), n > 0.
    """
    factor = 2.0 ** EXPONENTS[values.dtype]
    concrete = values.device.type == "cpu" and can_read(values)
    if concrete and (values.numel() == 0 or values.detach().abs().amin().item() >= 1 / factor):
        return None
    constant = detached(values)
    size = torch.maximum(constant[..., :1].abs(), constant[..., -1:].abs())
    small = (size > 0) & (size < 1 / factor)
    if concrete and not small.any():
        return None
    return torch.where(small, torch.full_like(size, factor), 1.0)


def lower(gA: Tensor, factor: Tensor) -> Tensor:
    """``gA`` (..., m, n), the gradient at lifted matrices, times their ``factor`` (..., 1).

    What is larger than the type can hold becomes the largest number of its sign, with a warning: an infinity would turn
    into NaN when gradients are clipped.
    """
    product = gA * factor.unsqueeze(-1)
    limited = torch.complex(_limit(product.real), _limit(product.imag)) if gA.dtype.is_complex else _limit(product)
    known = torch.isfinite(gA)  # what was infinite before remains so
    if (
        is_attributed()
        and product.device.type == "cpu"
        and can_read(product)
        and (known & ~torch.isfinite(product)).any()
    ):
        warn_out_of_range(product.dtype)
    return torch.where(known, limited, product)


def _limit(x: Tensor) -> Tensor:
    limits = torch.finfo(x.dtype)
    return x.clamp(limits.min, limits.max)
