"""Warnings where a gradient is not the whole one: once for each line of code that called a decomposition."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from ..errors import GradientWarning

__all__ = [
    "CallSite",
    "attributed",
    "call_site",
    "is_attributed",
    "warn_at",
    "warn_incomplete",
    "warn_out_of_range",
    "warn_removed",
]

_PACKAGE = "eigengrad."
_INSTEAD = {
    "eigh": "matrix_sqrt, matrix_log, matrix_function, … for V f(λ) Vᴴ and spectral_projector for V Vᴴ",
    "svd": "polar or procrustes for U Vᴴ, low_rank for a truncation, pinv, nuclear_norm",
}


#: The line of the user's code that called a decomposition: its file, its number, and the module.
CallSite = tuple[str, int, str]


class _Current(threading.local):
    """What the backward pass that runs in this thread belongs to."""

    function = ""
    site: CallSite | None = None


_current = _Current()
_registries: dict[str, dict[Any, Any]] = {}


def call_site() -> CallSite | None:
    """The nearest line on the stack that is not of this package; none while ``torch.compile`` traces."""
    if torch.compiler.is_compiling():
        return None
    frame: FrameType = sys._getframe(2)  # the caller of a function of this package
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", "")


def attributed(function: str, site: CallSite | None, pullback: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """``pullback(*arguments)``, as the backward pass of a ``function`` that was called at ``site``."""
    if site is None:
        return pullback(*arguments)
    _current.function, _current.site = function, site
    try:
        return pullback(*arguments)
    finally:
        _current.site = None


def is_attributed() -> bool:
    """Whether it is known whom to warn."""
    return not torch.compiler.is_compiling() and _current.site is not None


def warn_removed(rule: object) -> None:
    """Say that the backward pass at work lost more than half of its norm to the rule."""
    _warn(
        f"{rule!r} removed more than half of a gradient, because the loss depends on the vectors of values that are "
        "(almost) equal, which the decomposition does not determine. If the loss itself does not depend on their "
        "choice, a function with an exact gradient has it",
        " eigengrad.GradientMonitor counts how much is removed.",
    )


def warn_incomplete() -> None:
    """Say that the backward pass at work cannot have all of the gradient, whatever the rule."""
    _warn(
        "the loss uses equal values and their vectors together, as V f(λ) Vᴴ does. What the gradient has between these "
        "vectors cannot be told from the gradients of values and vectors, and is left out. A function with an exact "
        "gradient has it",
        "",
    )


def warn_out_of_range(dtype: torch.dtype) -> None:
    """Say that the gradient of the backward pass at work is larger than its type can hold."""
    if _current.site is None:
        return
    message = (
        f"{_current.function}: a matrix is so small that its gradient is larger than {dtype} can hold; the largest "
        "number takes its place. Multiply the matrix by a constant, or convert it with .double(). "
        "warnings.simplefilter('ignore', eigengrad.GradientWarning) silences this."
    )
    warn_at(_current.site, message)


def _warn(reason: str, more: str) -> None:
    """Warn about the backward pass at work, once for each call site and reason."""
    function, site = _current.function, _current.site
    if site is None:
        return
    message = (
        f"{function}: {reason}: {_INSTEAD[function]}.{more} "
        "warnings.simplefilter('ignore', eigengrad.GradientWarning) silences this."
    )
    warn_at(site, message)


def warn_at(site: CallSite, message: str) -> None:
    """Warn about a line of the user's code, once for each message."""
    filename, line, module = site
    warnings.warn_explicit(message, GradientWarning, filename, line, module, _registries.setdefault(filename, {}))
