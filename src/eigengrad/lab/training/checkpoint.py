"""The checkpoints of a run: the two newest whole states, from which it can go on."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..files import DamagedFileWarning
from ..json_fields import require_kind, require_number
from ..tensors import load_tensors, save_tensors
from .settings import Settings

__all__ = ["CheckpointError", "Checkpoints", "require_same"]

_FORMAT = 1

#: What every state has; see ``state_dict`` of a run.
_FIELDS = (
    *("settings", "epoch", "batch", "step", "epoch_seconds", "seconds", "curves", "best", "health"),
    *("modules", "optimizers", "schedulers", "scaler", "processes"),
)


class CheckpointError(ValueError):
    """No checkpoint of a run can be used."""


class Checkpoints:
    """The states in a folder, one file a step; the two newest are kept, so that a damaged one costs little.

    Args:
        folder: where they are.
    """

    kept = 2

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """The files, newest first."""
        return sorted(self.folder.glob("step-*.pt"), reverse=True)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the state after a step, then drop those that are no longer needed, as far as they can be removed."""
        save_tensors(self.folder / f"step-{step:010d}.pt", {"format": _FORMAT, **state})
        with contextlib.suppress(OSError):  # the state is saved; what is left over is tried again the next time
            self._remove(self.paths()[self.kept :])

    def newest(self) -> dict[str, Any] | None:
        """The newest state that is whole, or ``None`` if there are no files.

        A damaged file is named in a :class:`DamagedFileWarning`; :class:`CheckpointError` if all of them are.
        """
        paths = self.paths()
        damage: list[str] = []
        for path in paths:
            try:
                state = _read(path)
            except Exception as error:  # torch.load raises many kinds
                damage.append(f"{path} is damaged ({error})")
                continue
            if damage:
                text = f"{'; '.join(damage)}; going on from {path}"
                warnings.warn(text, DamagedFileWarning, stacklevel=2)
            return state
        if damage:
            raise CheckpointError(f"{'; '.join(damage)}. Delete the folder to start over")
        return None

    def clear(self) -> None:
        """Remove all of them."""
        self._remove(self.paths())

    @staticmethod
    def _remove(paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any]:
    state = load_tensors(path)
    if not isinstance(state, dict):
        raise ValueError(f"it holds a {type(state).__name__}; expected a dictionary")
    if state.get("format") != _FORMAT:
        raise ValueError(f"its format is {str(state.get('format'))[:80]!r}; expected {_FORMAT}")
    missing = [name for name in _FIELDS if name not in state]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    for name in ("epoch", "batch", "step", "epoch_seconds", "seconds"):
        require_number(name, state[name], whole=not name.endswith("seconds"))
    for name in ("settings", "curves", "health", "modules", "optimizers", "schedulers"):
        require_kind(name, state[name], dict)
    require_kind("processes", state["processes"], list)
    return state


def require_same(path: Path, settings: Settings, other: Mapping[str, Any]) -> None:
    """Refuse a file that belongs to a run with other settings, naming the fields."""
    differences = settings.differences(other)
    if differences:
        named = ", ".join(f"{name} is {there!r} there and {here!r} here" for name, (here, there) in differences.items())
        raise ValueError(f"{path} holds another run: {named}. Choose another folder, or delete this one to start over")
