"""The training runs in a results folder, read for the page: what has ended, what is at work, and their curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..files import read_regular_file
from ..training.curves import CURVES_FILE
from ..training.lock import is_held
from ..training.result import RESULT_FILE

__all__ = ["list_runs", "run_folders"]

#: Bytes of a file of a run; one of 350 epochs has 100 kB.
_LARGEST = 16 << 20
MOST_RUNS = 500


def run_folders(results: Path) -> Iterator[Path]:
    """The folders of runs, newest first. Links are left out: they could lead out of the results."""
    place = results / "runs"
    if place.is_symlink() or not place.is_dir():
        return
    found = [path for path in place.iterdir() if path.is_dir() and not path.is_symlink()]
    yield from sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_RUNS]


def list_runs(results: Path) -> list[dict[str, Any]]:
    """Every run with its state, its epochs and its curves (test errors and losses), as plain values for JSON."""
    return [run for folder in run_folders(results) if (run := _run(folder)) is not None]


def _run(folder: Path) -> dict[str, Any] | None:
    """A run; None for a folder that holds none, or a damaged one."""
    about: dict[str, Any] = {"name": folder.name, "state": "", "text": "", "epoch": 0, "epochs": 0, "curves": {}}
    result = _read(folder / RESULT_FILE)
    if result is not None:
        failure = result.get("failure")
        about["state"] = "failed" if failure else "done"
        about["text"] = str(failure.get("message", ""))[:500] if isinstance(failure, dict) else ""
        about["curves"] = _curves(result.get("curves"))
        about["epoch"] = about["epochs"] = max(map(len, about["curves"].values()), default=0)
        return about
    unfinished = _read(folder / CURVES_FILE)
    held = is_held(folder)
    if unfinished is None:
        return about | {"state": "running"} if held else None
    epoch, epochs = (unfinished.get(name) for name in ("epoch", "epochs"))
    about["epoch"], about["epochs"] = (value if isinstance(value, int) else 0 for value in (epoch, epochs))
    return about | {"state": "running" if held else "interrupted", "curves": _curves(unfinished.get("curves"))}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.is_symlink():
            return None
        content = json.loads(read_regular_file(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _curves(curves: Any) -> dict[str, list[float | None]]:
    """Curves whose entries are numbers or nothing; errors, which are shares, in per cent."""
    if not isinstance(curves, dict):
        return {}
    found: dict[str, list[float | None]] = {}
    for name, values in list(curves.items())[:40]:
        if isinstance(values, list):
            unit = 100.0 if name.endswith("error") else 1.0
            found[str(name)[:80]] = [unit * v if _is_number(v) else None for v in values[:10_000]]
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
