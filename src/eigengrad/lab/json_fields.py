"""Checks of JSON of unknown origin."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["require_kind", "require_number", "require_strings"]

#: Whole numbers above this are no counts, and overflow where they become floats.
_LARGEST = 2**63


def require_kind(name: str, value: object, *kinds: type) -> None:
    """Refuse a value that is of none of the kinds.

    Raises:
        ValueError: names the field.
    """
    if not isinstance(value, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{name}: got a {type(value).__name__}; expected {expected}")


def require_number(name: str, value: Any, *, whole: bool = False) -> None:
    """Refuse what is not a finite number, or not a whole one.

    Raises:
        ValueError: names the field.
    """
    kinds = (int,) if whole else (int, float)
    require_kind(name, value, *kinds)
    if isinstance(value, bool) or not (abs(value) < _LARGEST if isinstance(value, int) else math.isfinite(value)):
        raise ValueError(f"{name}: got {str(value)[:40]}; expected a finite number")


def require_strings(name: str, value: object) -> None:
    """Refuse what is not a dictionary of strings.

    Raises:
        ValueError: names the field.
    """
    require_kind(name, value, dict)
    assert isinstance(value, dict)
    for entry in value.values():
        require_kind(name, entry, str)
