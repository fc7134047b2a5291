"""The normalisation under test, by name: what a model puts behind its first convolution."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ...arguments import require_integer
from ...errors import unknown_choice
from ...gradients import GradientRule, PowerIteration, Taylor
from ...nn import DecorrelatedBatchNorm2d, IterativeNorm

__all__ = ["GRADIENTS", "NORMALISATIONS", "Normalisation", "algorithm_1", "normalisation"]

#: From a number of channels to a layer.
Normalisation = Callable[[int], nn.Module]

NORMALISATIONS = ("dbn", "batchnorm", "iternorm", "none")

#: The gradients of decorrelated batch norm: ours, and the paper's five.
GRADIENTS = ("exact", "taylor", "clip", "power_iteration", "svd", "pi")


def normalisation(
    name: str, *, group_size: int = 16, gradient: str = "taylor", degree: int = 9, eps: float = 0.01
) -> Normalisation:
    """A function that makes the named layer for a number of channels.

    Args:
        name: "dbn" (decorrelated batch norm), "batchnorm", "iternorm" (Newton–Schulz iterations), or "none".
        group_size: d, the channels that are whitened together; it must divide the channels of the stem.
        gradient: of "dbn": "exact", or the paper's "taylor", "clip" (at 100), "power_iteration" (SVD-PI: Algorithm 1 as
            it is printed, truncated at ``eps``), "svd" (plain) and "pi".
        degree: K of "taylor"; "power_iteration" takes K + 1 iterations, which for one eigenvector is the same gradient.
        eps: ε of "dbn", added to the covariance, and the floor of the eigenvalues in "taylor". "batchnorm" and
            "iternorm" keep their own 1e-5.

    >>> normalisation("dbn", group_size=4, gradient="exact")(64).num_groups
    16
    """
    if name not in NORMALISATIONS:
        raise unknown_choice("norm", name, NORMALISATIONS)
    if gradient not in GRADIENTS:
        raise unknown_choice("gradient", gradient, GRADIENTS)
    require_integer("normalisation", "group_size", group_size, minimum=1)
    if name == "none":
        return lambda channels: nn.Identity()
    if name == "batchnorm":
        return nn.BatchNorm2d
    if name == "iternorm":
        return lambda channels: IterativeNorm(channels, group_size=group_size)
    rule = _rule(gradient, degree, eps)
    return lambda channels: DecorrelatedBatchNorm2d(channels, eps, group_size=group_size, gradient=rule)


def algorithm_1(degree: int, eps: float) -> PowerIteration:
    """The paper's SVD-PI: K + 1 iterations, as the sum of its Eq. (pi_pytorch) has terms, stopped at ε.

    One number of iterations for every experiment. The work that proposed SVD-PI takes 19; this paper compares it with
    Taylor at "the same value 9", and so does the code that was released with it.
    """
    return PowerIteration(steps=degree + 1, eps=eps, inclusive=True)


def _rule(gradient: str, degree: int, eps: float) -> str | GradientRule:
    if gradient == "taylor":
        return Taylor(degree=degree, eps=eps)
    if gradient == "power_iteration":
        return algorithm_1(degree, eps)
    return gradient
