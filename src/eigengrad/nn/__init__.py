"""Layers on differentiable eigendecomposition, as pleasant to use as ``torch.nn``."""

from . import functional
from .decorrelated_batch_norm import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from .fuse import fuse_conv_dbn
from .iterative_norm import IterativeNorm
from .second_order_pool import SecondOrderPool2d
from .whiten_color import WhitenColor2d

__all__ = [
    "DecorrelatedBatchNorm1d",
    "DecorrelatedBatchNorm2d",
    "DecorrelatedBatchNorm3d",
    "IterativeNorm",
    "SecondOrderPool2d",
    "WhitenColor2d",
    "functional",
    "fuse_conv_dbn",
]
