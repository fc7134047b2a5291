"""Whitening and colouring under one interface: learned, or by decomposition with one of several gradients.

To add one, write a :class:`~eigengrad.lab.style.translation.wct.transfer.Transfer` and name it in :data:`VARIANTS`.
"""

from __future__ import annotations

from collections.abc import Callable

from .....errors import unknown_choice
from .....gradients import Clip, Taylor
from ....models.normalisation import algorithm_1
from .learned import LearnedTransfer
from .spectral import SpectralTransfer
from .transfer import Transfer

__all__ = ["VARIANTS", "LearnedTransfer", "SpectralTransfer", "Transfer", "transfer"]

#: Name → a step for (channels, channels a group, ε, degree K, whether covariances are of each sample).
VARIANTS: dict[str, Callable[[int, int, float, int, bool], Transfer]] = {
    "gd": lambda channels, size, eps, degree, alone: LearnedTransfer(channels, size),
    "clip": lambda channels, size, eps, degree, alone: SpectralTransfer(
        channels, size, eps=eps, gradient=Clip(), per_sample=alone
    ),
    "pi": lambda channels, size, eps, degree, alone: SpectralTransfer(
        channels, size, eps=eps, gradient=algorithm_1(degree, eps), per_sample=alone
    ),
    "svd": lambda channels, size, eps, degree, alone: SpectralTransfer(
        channels, size, eps=eps, gradient=Taylor(degree=degree, eps=eps), per_sample=alone
    ),
    "exact": lambda channels, size, eps, degree, alone: SpectralTransfer(
        channels, size, eps=eps, gradient="exact", per_sample=alone
    ),
}


def transfer(
    name: str, channels: int, *, group_size: int = 32, eps: float = 0.01, degree: int = 9, per_sample: bool = True
) -> Transfer:
    """One step of whitening and colouring.

    Args:
        name: "gd" (learned, GD-WCT), "clip" (Clip-WCT), "pi" (PI-WCT), "svd" (SVD-WCT: Taylor),
            "exact" (ours: the exact derivative of the matrix functions).
        channels: of content and style.
        group_size: channels that are whitened and coloured together; divides ``channels``.
        eps: added to the covariances.
        degree: K of "svd"; "pi" takes K + 1 power iterations, which for one eigenvector is the same gradient.

        per_sample: covariances of each sample, or of the batch; "gd" has none to take.

    >>> transfer("svd", 256).groups
    8
    """
    if name not in VARIANTS:
        raise unknown_choice("wct", name, VARIANTS)
    return VARIANTS[name](channels, group_size, eps, degree, per_sample)
