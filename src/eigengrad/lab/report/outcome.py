"""The outcome of an experiment: what was asked, under which conditions, and what came out."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from ..files import ABANDONED, make_folder, read_regular_file, remove_partial, write_atomically
from ..json_fields import require_kind, require_number, require_strings
from .tables import Table, conditions_text, require_file_name

__all__ = ["VERDICTS", "Figure", "Finding", "Outcome", "machine"]

#: What can be said of a claim. "equivalent" is a difference that has been shown to be too small to matter, "undecided"
#: what these runs cannot decide.
CONFIRMED, REFUTED, EQUIVALENT, UNDECIDED = "confirmed", "refuted", "equivalent", "undecided"
#: The detail of what rests on one run a setting: it shows that the protocol works.
PROTOCOL_CHECK = "protocol check"
VERDICTS = (CONFIRMED, REFUTED, EQUIVALENT, UNDECIDED)

#: Bytes of an outcome.json; the largest of ours has 11 kB.
_LARGEST = 16 << 20


@dataclass(frozen=True)
class Finding:
    """One claim of the paper, and what our numbers say about it.

    Args:
        claim: in words.
        verdict: one of :data:`VERDICTS`.
        evidence: the numbers behind it, as sentences.
        detail: of the verdict, such as "needs 12 more pairs" or "within 0.2 points".
        effect: the size of what was found, with its interval.
        runs: how many runs, pairs or matrices it rests on.
    """

    claim: str
    verdict: str
    evidence: str
    detail: str = ""
    effect: str = ""
    runs: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: got {self.verdict!r}; expected one of {', '.join(VERDICTS)}")

    @property
    def size(self) -> str:
        """The effect; where there is none, as of arithmetic, the first sentence of the evidence."""
        return self.effect or self.evidence.split(". ")[0].rstrip(".")

    @property
    def label(self) -> str:
        """The verdict with its detail, as ``undecided: needs 12 more pairs``."""
        if not self.detail:
            return self.verdict
        return f"{self.verdict} {self.detail}" if self.verdict == EQUIVALENT else f"{self.verdict}: {self.detail}"


@dataclass(frozen=True)
class Figure:
    """A figure that has been written as ``name.png`` and ``name.svg``.

    Args:
        name: of the files, without ending.
        caption: what is seen, with the conditions that matter.
    """

    name: str
    caption: str

    def __post_init__(self) -> None:
        require_file_name("Figure", self.name)


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    Args:
        experiment: its name, such as "table4".
        title: as in the paper's list of tables and figures.
        scale: "smoke", "small" or "paper".
        conditions: what our numbers hold for: data, network, epochs, trials.
        paper: the same for the paper's numbers, in one line.
        tables, figures, findings: what came out.
        notes: what a reader must know to judge it: deviations, choices the paper leaves open.
        seconds: of work; runs that were finished before are not counted.
        about: the machine and the versions.
        day: when.
        command: that repeats it.
    """

    experiment: str
    title: str
    scale: str
    conditions: dict[str, str]
    paper: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    about: dict[str, str] = field(default_factory=lambda: machine())
    day: str = field(default_factory=lambda: date.today().isoformat())
    command: str = ""

    def write(self, directory: Path) -> Path:
        """Write ``outcome.json``, ``README.md`` and a CSV a table into ``directory``; return the README."""
        make_folder(directory)
        remove_partial(directory, older_than=ABANDONED)
        for table in self.tables:
            write_atomically(directory / f"{table.name}.csv", table.csv().encode())
        readme = directory / "README.md"
        write_atomically(readme, self.markdown().encode())
        # Last, because the page takes a folder with this file for complete.
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        write_atomically(directory / "outcome.json", text.encode())
        return readme

    def markdown(self) -> str:
        """The whole outcome as Markdown."""
        parts = [f"# {self.title}\n"]
        parts.append(f"Scale `{self.scale}`. Ours: {conditions_text(self.conditions)}.\n\nThe paper: {self.paper}\n")
        parts += [table.markdown() for table in self.tables]
        parts += [f"![{self.title}]({figure.name}.png)\n\n{figure.caption}\n" for figure in self.figures]
        if self.findings:
            lines = [f"- **{f.label}**. {f.claim}. {f.evidence}" for f in self.findings]
            parts.append("\n".join(["### What it confirms", "", *lines]) + "\n")
        if self.notes:
            parts.append("\n".join(["### To know", "", *(f"- {note}" for note in self.notes)]) + "\n")
        if self.command:
            parts.append(f"Again: `{self.command}`\n")
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        parts.append(f"{self.day}; {self.seconds:.0f} s of work; {about}.\n")
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The outcome as a dictionary for JSON."""
        return {
            "experiment": self.experiment,
            "title": self.title,
            "scale": self.scale,
            "conditions": self.conditions,
            "paper": self.paper,
            "tables": [table.to_dict() for table in self.tables],
            "figures": [vars(figure) for figure in self.figures],
            "findings": [vars(finding) for finding in self.findings],
            "notes": list(self.notes),
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "about": self.about,
            "day": self.day,
        }

    @classmethod
    def load(cls, directory: Path) -> Outcome:
        """Read a folder that :meth:`write` wrote.

        Raises:
            ValueError: naming the file, if it is damaged.
        """
        path = directory / "outcome.json"
        try:
            data = json.loads(read_regular_file(path, _LARGEST).decode("utf-8"))
            _require_types(data)
            data["tables"] = tuple(Table.from_dict(table) for table in data["tables"])
            data["figures"] = tuple(Figure(**figure) for figure in data["figures"])
            data["findings"] = tuple(Finding(**finding) for finding in data["findings"])
            data["notes"] = tuple(data["notes"])
            data.setdefault("command", "")  # which outcomes of earlier versions do not have
            return cls(**data)
        except FileNotFoundError:
            raise
        # An OSError, because a folder, or a file that must not be read, may have this name.
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
            raise ValueError(
                f"{path} is damaged ({str(error)[:300]}); expected what `eigengrad reproduce` writes. "
                "Delete it and run the experiment again: finished runs are kept."
            ) from error


def _require_types(data: Any) -> None:
    """Refuse what is not of the types that :meth:`Outcome.to_dict` gives.

    Raises:
        ValueError: names the field.
        KeyError: names one that is missing.
    """
    require_kind("the whole", data, dict)
    for name in ("experiment", "title", "scale", "paper", "day"):
        require_kind(name, data[name], str)
    require_kind("command", data.get("command", ""), str)
    require_number("seconds", data["seconds"])
    for name in ("conditions", "about"):
        require_strings(name, data[name])
    for name in ("tables", "figures", "findings", "notes"):
        require_kind(name, data[name], list)
    for note in data["notes"]:
        require_kind("notes", note, str)
    for name in ("figures", "findings"):
        for entry in data[name]:
            require_strings(name, entry)
    for table in data["tables"]:
        require_kind("tables", table, dict)
        for name in ("name", "title", "note"):
            require_kind(f"tables: {name}", table[name], str)
        require_strings("tables: conditions", table["conditions"])
        require_kind("tables: columns", table["columns"], list)
        for column in table["columns"]:
            require_kind("tables: columns", column, str)
        require_kind("tables: rows", table["rows"], list)
        for row in table["rows"]:
            require_kind("tables: rows", row, list)
            for cell in row:
                require_kind("tables: rows", cell, str, int, float, type(None))


def machine() -> dict[str, str]:
    """What numbers depend on besides the experiment."""
    import torch

    import eigengrad

    return {
        "eigengrad": eigengrad.__version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
    }
