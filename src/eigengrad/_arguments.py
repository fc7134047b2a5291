"""Checks of scalar arguments: each names the owner, the argument, what came and what was expected."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


def require_integer(owner: str, argument: str, value: Any, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {argument} must be an integer; got {value!r}")
    if value < minimum:
        raise ValueError(f"{owner}: {argument} must be at least {minimum}; got {value}")


def require_number(owner: str, argument: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{owner}: {argument} must be a number; got {value!r}")
    if not -math.inf < float(value) < math.inf:
        raise ValueError(f"{owner}: {argument} must be finite; got {value!r}")


def require_positive(owner: str, argument: str, value: Any) -> None:
    require_number(owner, argument, value)
    if value <= 0:
        raise ValueError(f"{owner}: {argument} must be positive; got {value!r}")


def require_non_negative(owner: str, argument: str, value: Any) -> None:
    require_number(owner, argument, value)
    if value < 0:
        raise ValueError(f"{owner}: {argument} must not be negative; got {value!r}")
