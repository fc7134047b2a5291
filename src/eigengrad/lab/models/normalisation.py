"""The normalisation under test, by name: what a model puts behind its first convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ...arguments import require_integer
from ...errors import unknown_choice
from ...gradients import RULES, GradientRule, PowerIteration, Taylor, parse_rule, resolve
from ...nn import DecorrelatedBatchNorm2d, IterativeNorm
from .released import ReleasedTaylor

__all__ = [
    "GRADIENTS",
    "NORMALISATIONS",
    "Normalisation",
    "algorithm_1",
    "normalisation",
    "normalise_more",
    "whitening_rule",
]

#: From a number of channels to a layer.
Normalisation = Callable[[int], nn.Module]

#: Approximate whitenings by name, as the ``method`` of an :class:`eigengrad.nn.IterativeNorm`.
_ITERATIVE = {"iternorm": "newton_schulz", "mpa": "pade", "mtp": "taylor"}

NORMALISATIONS = ("dbn", "batchnorm", *_ITERATIVE, "none")

#: The gradients of decorrelated batch norm by name: ours, the paper's five, what its authors released, and every rule.
GRADIENTS = tuple(dict.fromkeys(("exact", "taylor", "clip", "power_iteration", "svd", "pi", "released", *RULES)))


def normalisation(
    name: str,
    *,
    group_size: int = 16,
    gradient: str = "taylor",
    degree: int = 9,
    eps: float = 0.01,
    momentum: float = 0.1,
    whitening: str = "zca",
    average: str = "covariance",
    divide: bool = False,
) -> Normalisation:
    """A function that makes the named layer for a number of channels.

    Args:
        name: "dbn" (decorrelated batch norm), "batchnorm", "iternorm" (Newton–Schulz iterations), "mpa", "mtp" (matrix
            Padé approximant, matrix Taylor polynomial), or "none".
        group_size: d, the channels that are whitened together; it must divide the channels of the stem.
        gradient: of "dbn", see :func:`whitening_rule`.
        degree: K of "taylor"; "power_iteration" takes K + 1 iterations, which for one eigenvector is the same gradient.
        eps: ε of "dbn", added to the covariance, and the floor of the eigenvalues in "taylor". "batchnorm" and the
            iterative ones keep their own 1e-5.
        momentum: share of a new batch in the running statistics.
        whitening: of "dbn": "zca", "pca" or "cholesky" (which has its own gradient).
        average: what evaluation uses: "covariance" or "whitening", see
            :class:`eigengrad.nn.DecorrelatedBatchNorm2d`. The gradient "released" always averages the whitening matrix.
        divide: where ``group_size`` does not divide the channels, take their greatest common divisor.

    >>> normalisation("dbn", group_size=4, gradient="exact")(64).num_groups
    16
    """
    if name not in NORMALISATIONS:
        raise unknown_choice("norm", name, NORMALISATIONS)
    rule = whitening_rule(gradient, degree, eps, whitening)
    require_integer("normalisation", "group_size", group_size, minimum=1)
    if name == "none":
        return lambda channels: nn.Identity()
    if name == "batchnorm":
        return lambda channels: nn.BatchNorm2d(channels, momentum=momentum)
    options: dict[str, Any] = {"momentum": momentum, "average": average}

    def size(channels: int) -> int:
        return math.gcd(group_size, channels) if divide else group_size

    if name in _ITERATIVE:
        method = _ITERATIVE[name]
        return lambda channels: IterativeNorm(channels, group_size=size(channels), method=method, **options)
    if isinstance(rule, ReleasedTaylor):
        options["average"] = "whitening"
    options |= {"whitening": whitening, "gradient": rule}
    return lambda channels: DecorrelatedBatchNorm2d(channels, eps, group_size=size(channels), **options)


def whitening_rule(
    gradient: str, degree: int = 9, eps: float = 0.01, whitening: str = "zca"
) -> str | GradientRule | None:
    """The ``gradient`` of a whitening layer from the name that an experiment has for it.

    Args:
        gradient: "exact" (divided differences); "svd" (plain ``eigh``); "pi" or "pi(steps=19)" (power iteration in both
            passes); "released" (the authors' code, see :class:`ReleasedTaylor`); or a rule by name, with parameters or
            without: "clip(threshold=50)", "power_iteration(stop=False)", "mask", your own. What is not given of
            "taylor" is K and ε of the experiment, and of "power_iteration" its Algorithm 1.
        degree, eps: K and ε of the experiment.
        whitening: "cholesky" has a gradient of its own, whatever is named.
    """
    name, parameters = parse_rule(gradient)
    if name == "released":
        try:
            rule: GradientRule = ReleasedTaylor(**{"degree": degree, **parameters})  # type: ignore[arg-type]
        except TypeError:
            raise ValueError(f"gradient: got {gradient!r}; the parameters of released are: degree") from None
        return None if whitening == "cholesky" else rule
    if name in ("exact", "svd", "pi"):
        if parameters and name != "pi":
            raise ValueError(f"gradient: got {gradient!r}; {name} has no parameters")
        DecorrelatedBatchNorm2d(1, whitening="zca", gradient=gradient)  # refuses what "pi" does not take
        return None if whitening == "cholesky" else gradient
    try:
        rule = resolve(gradient)
    except ValueError as error:
        if "expected one of" in str(error):
            raise unknown_choice("gradient", name, GRADIENTS) from None
        raise
    if name == "taylor":
        rule = Taylor(**{"degree": degree, "eps": eps, **parameters})  # type: ignore[arg-type]
    elif name == "power_iteration":
        given = {"steps": degree + 1, "eps": eps, "inclusive": True, **parameters}
        rule = PowerIteration(**given)  # type: ignore[arg-type]
    return None if whitening == "cholesky" else (rule if parameters or name in ("taylor", "power_iteration") else name)


def algorithm_1(degree: int, eps: float) -> PowerIteration:
    """The paper's SVD-PI: K + 1 iterations, as the sum of its Eq. (pi_pytorch) has terms, stopped at ε.

    One number of iterations for every experiment. The work that proposed SVD-PI takes 19; this paper compares it with
    Taylor at "the same value 9", and so does the code that was released with it.
    """
    return PowerIteration(steps=degree + 1, eps=eps, inclusive=True)


def normalise_more(model: nn.Module, names: Sequence[str] | None, norm: Normalisation) -> None:
    """Put the normalisation under test in place of batch norms of a model, besides the one behind its stem.

    Args:
        model: changed in place.
        names: of batch norms, as in ``model.named_modules()``; ``None`` is all of them.
        norm: the normalisation; of other channels than the stem's, so that its group size may have to be divided.
    """
    found = {name: module for name, module in model.named_modules() if type(module) is nn.BatchNorm2d}
    unknown = sorted(set(names or ()) - set(found))
    if unknown:
        raise ValueError(f"whitened: no batch norm is called {', '.join(unknown)}; there are: {', '.join(found)}")
    for name in found if names is None else names:
        parent, _, child = name.rpartition(".")
        model.get_submodule(parent).register_module(child, norm(found[name].num_features))
