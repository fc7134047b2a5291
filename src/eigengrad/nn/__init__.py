"""Layers on differentiable eigendecomposition, as pleasant to use as ``torch.nn``."""

from .decorrelated_batch_norm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from .fuse import fuse_conv_dbn
from .iterative_norm import IterativeNorm

__all__ = [
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "IterativeNorm",
    "fuse_conv_dbn",
]
