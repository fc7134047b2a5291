"""The runs behind a table, as they are kept beside it: small enough to be committed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..files import make_folder, write_atomically

__all__ = ["short", "write_records"]


def write_records(folder: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """``runs.json``, one run a line."""
    make_folder(folder)
    lines = ",\n".join(json.dumps(record, allow_nan=False) for record in records)
    write_atomically(folder / "runs.json", f"[\n{lines}\n]\n".encode())


def short(value: float | None) -> float | None:
    """Five digits; JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
