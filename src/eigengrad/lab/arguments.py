"""Checks of scalar arguments: each names the owner, the argument, what came and what was expected."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

__all__ = ["require_integer", "require_non_negative", "require_number", "require_positive"]


def require_integer(owner: str, argument: str, value: Any, *, minimum: int) -> None:
    """Refuse what is not an integer of at least ``minimum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {argument} must be an integer; got {value!r}")
    if value < minimum:
        raise ValueError(f"{owner}: {argument} must be at least {minimum}; got {value}")


def require_number(owner: str, argument: str, value: Any) -> None:
    """Refuse what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{owner}: {argument} must be a number; got {value!r}")
    if not -math.inf < float(value) < math.inf:
        raise ValueError(f"{owner}: {argument} must be finite; got {value!r}")


def require_positive(owner: str, argument: str, value: Any) -> None:
    """Refuse what is not a finite number above zero."""
    require_number(owner, argument, value)
    if value <= 0:
        raise ValueError(f"{owner}: {argument} must be positive; got {value!r}")


def require_non_negative(owner: str, argument: str, value: Any) -> None:
    """Refuse what is not a finite number of at least zero."""
    require_number(owner, argument, value)
    if value < 0:
        raise ValueError(f"{owner}: {argument} must not be negative; got {value!r}")
