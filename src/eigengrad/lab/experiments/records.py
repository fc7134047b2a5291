"""The runs behind a table, as they are kept beside it: small enough to be committed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import make_folder, read_regular_file, write_atomically
from ..training import Failure, Result

__all__ = ["from_record", "read_records", "record", "write_records"]

#: Bytes of a runs.json; the largest of ours has 300 kB.
_LARGEST = 64 << 20


def write_records(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write ``runs.json``, one run a line."""
    make_folder(folder)
    lines = ",\n".join(json.dumps(record, allow_nan=False) for record in records)
    write_atomically(folder / "runs.json", f"[\n{lines}\n]\n".encode())


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The runs that :func:`write_records` wrote.

    Raises:
        FileNotFoundError: there are none.
        ValueError: the file is damaged; the message names it.
    """
    path = folder / "runs.json"
    try:
        found = json.loads(read_regular_file(path, _LARGEST))
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise ValueError("expected a list of runs")
        return found
    except FileNotFoundError:
        raise FileNotFoundError(f"no runs are recorded at {path}; expected what `eigengrad reproduce` writes") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({str(error)[:200]})") from error


def from_record(row: Mapping[str, Any]) -> Result:
    """A result from its record, without the configuration, which the record only names.

    Raises:
        ValueError: the record lacks a field, or has one of the wrong kind.
    """
    fields = {name: row.get(name) for name in ("outcome", "best_error", "best_epoch", "steps", "seconds", "seed")}
    try:
        return Result(
            config=None,
            **fields,  # type: ignore[arg-type]
            failure=Failure(**row["failure"]) if row["failure"] else None,
            seconds_per_step=row["seconds_per_step"],
            gradient={name: value for name, value in row["gradient"].items() if value is not None},
            curves={name: [math.nan if v is None else v for v in curve] for name, curve in row["curves"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a recorded run is damaged: {error!r}") from error


def record(result: Result) -> dict[str, Any]:
    """How a run went: enough to draw every figure again without its folder."""
    return {
        "key": result.config.key(),
        "seed": result.seed,
        "outcome": result.outcome,
        "failure": None if result.failure is None else asdict(result.failure),
        "best_error": _short(result.best_error),
        "best_epoch": result.best_epoch,
        "steps": result.steps,
        "seconds": _short(result.seconds),
        "seconds_per_step": _short(result.seconds_per_step),
        "gradient": {name: _short(value) for name, value in result.gradient.items()},
        "curves": {name: [_short(value) for value in curve] for name, curve in result.curves.items()},
    }


def _short(value: float | None) -> float | None:
    """A number rounded to five digits, or None for NaN, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
