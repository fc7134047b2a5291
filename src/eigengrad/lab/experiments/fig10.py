"""Figure 10: pictures of all methods side by side."""

from __future__ import annotations

from .fig9 import Fig9
from .translated import METHODS

__all__ = ["Fig10"]


class Fig10(Fig9):
    """Photographs, paintings, and what every method makes of them."""

    name = "fig10"
    title = "Figure 10: translated pictures of all methods"
    compared = tuple(method.label for method in METHODS.values())
