"""The runs behind a table, as they are kept beside it: small enough to be committed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import make_folder, write_atomically
from ..training import Result

__all__ = ["record", "write_records"]


def write_records(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write ``runs.json``, one run a line."""
    make_folder(folder)
    lines = ",\n".join(json.dumps(record, allow_nan=False) for record in records)
    write_atomically(folder / "runs.json", f"[\n{lines}\n]\n".encode())


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
