"""The result of :func:`eigengrad.diagnose`: numbers to work with, and the text that a terminal of 80 columns shows."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Advice", "Diagnosis", "Effect", "Loss"]

_WIDTH = 80
#: Values that are listed one by one; more are drawn.
_LISTED = 8
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Effect:
    """What becomes of the gradient of a loss.

    Attributes:
        kept: its norm over that of the exact gradient. NaN where it is not finite.
        error: the norm of its difference to the exact gradient, over the norm of that.
    """

    kept: float
    error: float


@dataclass(frozen=True)
class Loss:
    """A loss of a matrix, differentiated through each rule.

    Attributes:
        name: what it depends on, such as "single vectors".
        effects: by the name of the rule. None where there is no exact gradient to compare with.
        function: the function of eigengrad that has its exact gradient, as a call; empty if there is none.
        exact: what becomes of the gradient through that function.
    """

    name: str
    effects: Mapping[str, Effect] | None
    function: str = ""
    exact: Effect | None = None


@dataclass(frozen=True)
class Advice:
    """A line to write.

    Attributes:
        when: what the loss depends on.
        line: of Python.
        why: what its gradient is.
    """

    when: str
    line: str
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`eigengrad.diagnose` found.

    Attributes:
        shape: of all matrices together, (..., m, n).
        dtype: their type, such as "float32".
        kind: "Hermitian, positive definite", "Hermitian, positive semi-definite", "Hermitian, indefinite" or "general".
        matrices: how many there are.
        examined: how many of them were decomposed.
        verdict: "healthy", "close", "tied" or "not finite".
        summary: the verdict in a sentence or two.
        worst: index of the matrix whose gap is the smallest; everything below is about it.
        values: its eigenvalues, or singular values if it is "general", ascending.
        relative_gap: the smallest gap between two of them, over their spread (infinite for a single value).
        largest_relative_gap: that of the matrix of the batch in which it is the largest.
        ties: for each of them, whether it equals a neighbour to round-off.
        rank: how many are not zero to round-off.
        condition: the largest absolute value over the smallest.
        amplification: for each rule, the largest |R|, which takes the place of 1/gap, times the spread.
        losses: what each rule makes of the gradients of a few losses.
        advice: lines to write; the first is the one to begin with.
        notes: what else a reader must know.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str
    matrices: int
    examined: int
    verdict: str
    summary: str
    worst: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    relative_gap: float = math.inf
    largest_relative_gap: float = math.inf
    ties: tuple[bool, ...] = ()
    rank: int = 0
    condition: float = math.nan
    amplification: Mapping[str, float] | None = None
    losses: tuple[Loss, ...] = ()
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tied(self) -> int:
        """How many of the values equal a neighbour to round-off."""
        return sum(self.ties)

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain values for JSON; numbers that are not finite are the strings "nan" and "inf"."""
        return {name: _plain(value) for name, value in {**asdict(self), "tied": self.tied}.items()}

    def __str__(self) -> str:
        """The diagnosis as text of at most 80 columns."""
        lines = [self.title, *_wrapped(f"{self.verdict.upper()}: {self.summary}", "")]
        if self.values:
            lines += ["", f"The spectrum{self._which()}", *self._spectrum()]
        if self.losses:
            lines += ["", f"What each rule makes of a gradient{self._which()}", *self._table()]
        for advice in self.advice:
            lines += ["", *_wrapped(f"{advice.when}:", ""), f"    {advice.line}", *_wrapped(advice.why, "    ")]
        for note in self.notes:
            lines += ["", *_wrapped(note, "")]
        return "\n".join(lines)

    @property
    def title(self) -> str:
        """How many matrices of which size, type and kind, in a line."""
        count = "1 matrix" if self.matrices == 1 else f"{self.matrices:,} matrices"
        return f"{count} of {'×'.join(map(str, self.shape[-2:]))}, {self.dtype}, {self.kind}"

    def _which(self) -> str:
        return f" of matrix {list(self.worst)}, whose gap is the smallest" if self.worst else ""

    def _spectrum(self) -> list[str]:
        what = "singular values" if self.kind == "general" else "eigenvalues"
        gap, largest = share_text(self.relative_gap), share_text(self.largest_relative_gap)
        others = f" (up to {largest} in the others)" if self.examined > 1 and gap != largest else ""
        if len(self.values) <= _LISTED:
            shown = ", ".join(f"{value:.4g}" for value in self.values)
        else:
            shown = f"{self.values[0]:.4g} … {self.values[-1]:.4g}  {_sketch(self.values)}"
        lines = [f"{what:<16}{shown}"]
        if len(self.values) > 1:
            lines.append(f"{'smallest gap':<16}{gap} of the spread{others}")
        lines += [
            f"{'tied':<16}{self.tied} of {len(self.values)}",
            f"{'rank, condition':<16}{self.rank}, {self.condition:.3g}",
        ]
        return [f"  {line}" for line in lines]

    def _table(self) -> list[str]:
        """A row a rule: its largest |R|, then kept and error of the first loss, and the errors of the others."""
        amplification = self.amplification or {}
        heads = ["rule", "|R|·spread"]
        names = dict.fromkeys([*amplification, *(name for loss in self.losses for name in loss.effects or ())])
        rows = {name: [name, f"{amplification[name]:.2g}" if name in amplification else "–"] for name in names}
        exact = ["(the function)", ""]
        for number, loss in enumerate(self.losses):
            columns = ["kept", "error"] if number == 0 else ["error"]
            heads += [loss.name if column == columns[-1] else column for column in columns]
            for name, row in rows.items():
                effect = None if loss.effects is None else loss.effects.get(name)
                row += [share_text(None if effect is None else getattr(effect, column)) for column in columns]
            exact += [share_text(None if loss.exact is None else getattr(loss.exact, column)) for column in columns]
        body = [heads, *rows.values(), *([exact] if any(loss.exact for loss in self.losses) else [])]
        widths = [max(len(row[i]) for row in body) for i in range(len(heads))]
        lines = [
            f"  {row[0]:<{widths[0]}}  "
            + "  ".join(f"{cell:>{w}}" for cell, w in zip(row[1:], widths[1:], strict=True))
            for row in body
        ]
        lines.insert(1, "  " + "  ".join("-" * width for width in widths))
        legend = (
            "|R| stands for 1/gap. kept: norm of the gradient of single vectors over that of the exact one. Then the "
            "errors against exact gradients: of single vectors (ties left out)"
        )
        functions = [(loss.name, loss.function) for loss in self.losses if loss.exact is not None]
        legend += "".join(f"; of {name}, by hand through the rule and by eg.{call}" for name, call in functions) + "."
        return [*lines, *_wrapped(legend, "  ")]


def share_text(share: float | None) -> str:
    """A share in per cent, as short as it can be read; a dash for what does not exist.

    >>> [share_text(x) for x in (None, 0.0, 1e-9, 0.00123, 0.5, 12.0, float("nan"))]
    ['–', '0 %', '<0.001 %', '0.123 %', '50 %', '1200 %', 'nan']
    """
    if share is None:
        return "–"
    if not math.isfinite(share):
        return str(share)
    percent = 100 * share
    if 0 < percent < 1e-3:
        return "<0.001 %"
    return f"{percent:.3g} %" if percent < 1000 or percent >= 1e6 else f"{percent:.0f} %"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent)


def _sketch(values: tuple[float, ...], width: int = 32) -> str:
    """The absolute values as bars on a logarithmic scale, the smallest of them 16 orders below the largest."""
    largest = max(abs(value) for value in values)
    if largest == 0:
        return ""
    last = len(values) - 1
    chosen = values if last < width else [values[round(i * last / (width - 1))] for i in range(width)]
    logs = [math.log10(max(abs(value) / largest, 1e-16)) for value in chosen]
    lowest = min(logs)
    return "".join(_BARS[round((log - lowest) / (-lowest or 1) * 7)] for log in logs)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
