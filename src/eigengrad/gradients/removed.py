"""The warning where a rule removes much of a gradient: once for each line of code that called a decomposition."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import GradientWarning

__all__ = ["CallSite", "attributed", "call_site", "is_attributed", "warn_removed"]

_PACKAGE = __name__.partition(".")[0]
_INSTEAD = {
    "eigh": "matrix_sqrt, matrix_log, matrix_function, … for V f(λ) Vᴴ and spectral_projector for V Vᴴ",
    "svd": "polar or procrustes for U Vᴴ, low_rank for a truncation, pinv, nuclear_norm",
}


class CallSite(NamedTuple):
    """The line of the user's code that called a decomposition."""

    filename: str
    line: int
    module: str


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
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    return CallSite(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""))


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
    """Say that the backward pass at work lost more than half of its norm to the rule, once for each call site."""
    function, site = _current.function, _current.site
    if site is None:
        return
    message = (
        f"{function}: the gradient rule {rule!r} removed more than half of a gradient, because the loss depends on the "
        "vectors of values that are (almost) equal, which the decomposition does not determine. If the loss itself "
        f"does not depend on their choice, a function with an exact gradient has it: {_INSTEAD[function]}. "
        "eigengrad.GradientMonitor counts how often this happens; "
        "warnings.simplefilter('ignore', eigengrad.GradientWarning) silences this warning."
    )
    registry = _registries.setdefault(site.filename, {})
    warnings.warn_explicit(message, GradientWarning, site.filename, site.line, site.module, registry)
