"""What a tool of the studio takes: files in slots, and options that the page builds its controls from."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Option", "Slot"]


@dataclass(frozen=True)
class Slot:
    """A place for files.

    Args:
        name: in requests.
        label: on the page.
        most: files that it takes.
        least: files that it needs.
        kind: "picture"; "mask", which the page draws; or "matrix".
    """

    name: str
    label: str
    most: int = 1
    least: int = 1
    kind: Literal["picture", "mask", "matrix"] = "picture"

    def to_dict(self) -> dict[str, Any]:
        """For the page."""
        return asdict(self)


@dataclass(frozen=True)
class Option:
    """A setting.

    Args:
        name: of the argument that it becomes.
        label: on the page.
        default: a number, a truth value or a string; says which kind of control it is.
        help: under the control.
        low, high, step: of a number.
        choices: of a string: (value, label). None of them means any text.
        flag: of the command line.
    """

    name: str
    label: str
    default: float | bool | str
    help: str = ""
    low: float = 0.0
    high: float = 1.0
    step: float = 0.05
    choices: tuple[tuple[str, str], ...] = ()
    flag: str = ""

    @property
    def kind(self) -> Literal["switch", "range", "choice", "text"]:
        """Which control the page shows for the option."""
        if isinstance(self.default, bool):
            return "switch"
        if isinstance(self.default, str):
            return "choice" if self.choices else "text"
        return "range"

    def checked(self, value: Any) -> float | bool | str:
        """The value, if it is one that the control can give.

        Raises:
            ValueError: names the option, what came and what was expected.
        """
        if self.kind == "switch":
            if not isinstance(value, bool):
                raise ValueError(f"{self.label}: got {value!r}; expected true or false")
            return value
        if self.kind == "range":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not self.low <= value <= self.high:
                raise ValueError(f"{self.label}: got {value!r}; expected a number from {self.low:g} to {self.high:g}")
            return float(value)
        allowed = [choice for choice, _ in self.choices]
        if not isinstance(value, str) or len(value) > 200 or (allowed and value not in allowed):
            raise ValueError(
                f"{self.label}: got {str(value)[:80]!r}; expected {' or '.join(allowed) or 'a short text'}"
            )
        return value

    def to_dict(self) -> dict[str, Any]:
        """For the page."""
        return {**asdict(self), "kind": self.kind}
