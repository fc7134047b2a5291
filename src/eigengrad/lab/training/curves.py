"""The curves of a run that has not ended, in a small file beside its checkpoints, for those who watch."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

from ..files import write_atomically

__all__ = ["CURVES_FILE", "remove_curves", "write_curves"]

CURVES_FILE = "curves.json"


def write_curves(directory: Path, epoch: int, epochs: int, curves: dict[str, list[float]]) -> None:
    """Write the curves after an epoch. A full disk does not stop the run: its checkpoint has them as well.

    Args:
        directory: of the run.
        epoch: how many are done.
        epochs: how many there will be.
        curves: name → one number for each epoch; those that are not finite become null.
    """
    finite = {name: [v if math.isfinite(v) else None for v in values] for name, values in curves.items()}
    text = json.dumps({"epoch": epoch, "epochs": epochs, "curves": finite}, allow_nan=False)
    with contextlib.suppress(OSError, MemoryError):
        write_atomically(directory / CURVES_FILE, text.encode(), flush=False)


def remove_curves(directory: Path) -> None:
    """Remove the file: the result of a run that has ended has the curves."""
    with contextlib.suppress(OSError):
        (directory / CURVES_FILE).unlink(missing_ok=True)
