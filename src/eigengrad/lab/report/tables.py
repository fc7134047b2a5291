"""A table that knows under which conditions its numbers hold, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cell", "Table", "cell_text", "require_file_name"]

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows under column names.

    Args:
        name: of the files, without ending.
        title: above the table.
        columns: their names.
        rows: one cell a column. ``None`` is a number that does not exist, shown as a dash.
        conditions: what holds for every number of ours: scale, data, epochs, trials. It stands under the title, and in
            the CSV as further columns, so that no number travels without it.
        note: under the table.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    conditions: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        require_file_name("Table", self.name)
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"Table {self.name!r}: row {number} has {len(row)} cells; expected {len(self.columns)}, "
                    f"one for each of {', '.join(self.columns)}"
                )

    def markdown(self) -> str:
        """The table with its title, conditions and note."""
        lines = [f"### {self.title}", ""]
        if self.conditions:
            lines += [conditions_text(self.conditions), ""]
        lines += [_line(self.columns), "|" + "---|" * len(self.columns)]
        lines += [_line(cell_text(cell) for cell in row) for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The plain values, with the conditions as columns of every row."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.columns, *self.conditions])
        writer.writerows(
            [*("" if cell is None else cell for cell in row), *self.conditions.values()] for row in self.rows
        )
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """The table as a dictionary for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "conditions": self.conditions,
            "note": self.note,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Table:
        """The inverse of :meth:`to_dict`."""
        return cls(
            data["name"],
            data["title"],
            tuple(data["columns"]),
            tuple(tuple(row) for row in data["rows"]),
            dict(data["conditions"]),
            data["note"],
        )


def require_file_name(kind: str, name: str) -> None:
    """Refuse a name that, with an ending, is not a file in the folder it is looked for or written in.

    Raises:
        ValueError: names it.
    """
    if not isinstance(name, str):
        raise ValueError(f"{kind}: the name is a {type(name).__name__}; expected a string")
    if not name or len(name) > 200 or re.search(r"[/\\:\x00-\x1f]", name):
        raise ValueError(f"{kind}: the name {name[:80]!r} leaves its folder; expected a plain name without / or :")


def conditions_text(conditions: dict[str, str]) -> str:
    """The conditions in one line, as ``scale: small; data: …``."""
    return "; ".join(f"{name}: {value}" for name, value in conditions.items())


def cell_text(cell: Cell) -> str:
    """A cell for readers: four significant digits, a dash for what does not exist."""
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return str(cell)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
