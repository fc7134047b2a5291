"""Checks of scalar arguments: each names the owner, the argument, what came and what was expected."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


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


def require_share(owner: str, argument: str, value: Any) -> None:
    """Refuse what is not a number from 0 to 1."""
    require_number(owner, argument, value)
    if not 0 <= value <= 1:
        raise ValueError(f"{owner}: {argument} must be from 0 to 1; got {value!r}")


def require_count(owner: str, k: Any, n: int) -> None:
    """Refuse a number of eigenvalues or singular values, of the smallest if negative, that there are not."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise TypeError(f"{owner}: k must be an integer; got {k!r}")
    if not 1 <= abs(k) <= n:
        raise ValueError(f"{owner}: k must be from 1 to {n}, or from -{n} to -1 for the smallest; got {k}")
