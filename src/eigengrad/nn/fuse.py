"""Inference for nothing: a whitening layer folded into the layer before it."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from ..precision import full_precision
from .whitening_norm import WhiteningNorm

__all__ = ["fuse_conv_dbn"]

Linear = TypeVar("Linear", nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def fuse_conv_dbn(conv: Linear, dbn: WhiteningNorm) -> Linear:
    """A convolution or linear layer that does what ``conv`` followed by ``dbn`` does in evaluation mode, exactly.

    With y = A (W x + b) + c: weight A W, bias A b + c.

    Args:
        conv: ``nn.Linear`` or ``nn.Conv1d/2d/3d`` with ``groups=1``, or groups that whole groups of the whitening
            layer fit into.
        dbn: the whitening layer behind it, in evaluation mode.

    Returns:
        A new layer; the arguments are not changed.

    >>> import torch
    >>> from eigengrad.nn import DecorrelatedBatchNorm2d, fuse_conv_dbn
    >>> conv, dbn = torch.nn.Conv2d(3, 8, 3), DecorrelatedBatchNorm2d(8).eval()
    >>> x = torch.randn(2, 3, 9, 9)
    >>> torch.allclose(fuse_conv_dbn(conv, dbn)(x), dbn(conv(x)), atol=1e-5)
    True
    """
    if not isinstance(conv, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        raise TypeError(f"fuse_conv_dbn: conv must be nn.Linear or nn.Conv1d/2d/3d; got {type(conv).__name__}")
    if not isinstance(dbn, WhiteningNorm):
        raise TypeError(f"fuse_conv_dbn: dbn must be a whitening layer of eigengrad.nn; got {type(dbn).__name__}")
    if dbn.training:
        raise ValueError("fuse_conv_dbn: dbn is in training mode, where it depends on the batch; call .eval() first")
    for name in ("weight", "bias"):
        if not isinstance(conv.__dict__["_parameters"].get(name, ""), nn.Parameter | None):
            raise ValueError(
                f"fuse_conv_dbn: the {name} of conv is computed, by a parametrization or a hook (weight_norm, "
                "spectral_norm, …); remove that first, as with torch.nn.utils.parametrize.remove_parametrizations"
            )
    channels = conv.weight.shape[0]
    if channels != dbn.num_features:
        raise ValueError(f"fuse_conv_dbn: conv has {channels} outputs, but dbn expects {dbn.num_features} channels")
    conv_groups = getattr(conv, "groups", 1)
    if conv_groups > 1 and (channels // conv_groups) % dbn.group_size:
        raise ValueError(
            f"fuse_conv_dbn: conv has groups of {channels // conv_groups} outputs, dbn mixes groups of "
            f"{dbn.group_size}; expected whole groups of dbn in each group of conv"
        )
    with full_precision(conv.weight):
        A, c = dbn.evaluation_map()
        groups, d, _ = A.shape
        weight = torch.empty_like(conv.weight)
        weight.copy_((A @ conv.weight.to(A.dtype).reshape(groups, d, -1)).reshape(weight.shape))
        if conv.bias is not None:
            c = (A @ conv.bias.to(A.dtype).reshape(groups, d, 1)).flatten() + c
    learned = any(p.requires_grad for p in (*conv.parameters(), *dbn.parameters()))
    fused = copy.deepcopy(conv)
    fused.weight = nn.Parameter(weight, learned)
    fused.bias = nn.Parameter(c.to(weight.dtype), learned)
    return fused
