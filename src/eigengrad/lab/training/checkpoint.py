"""The checkpoints of a run: the two newest whole states, from which it can go on."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..files import DamagedFileWarning, require_checksums, write_atomically
from .settings import Settings

__all__ = ["CheckpointError", "Checkpoints", "require_same", "save_tensors"]

_FORMAT = 1


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
        """Write the state after a step, then drop those that are no longer needed."""
        save_tensors(self.folder / f"step-{step:010d}.pt", {"format": _FORMAT, **state})
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


def save_tensors(path: Path, content: Mapping[str, Any]) -> None:
    """``torch.save``, atomically; through memory, because torch names neither file nor reason when a disk is full."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(path, buffer.getvalue())


def _read(path: Path) -> dict[str, Any]:
    require_checksums(path)
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state.get("format") != _FORMAT:
        raise ValueError(f"its format is {state.get('format')!r}; expected {_FORMAT}")
    return state


def require_same(path: Path, settings: Settings, other: Mapping[str, Any]) -> None:
    """Refuse a file that belongs to a run with other settings, naming the fields."""
    differences = settings.differences(other)
    if differences:
        named = ", ".join(f"{name} is {there!r} there and {here!r} here" for name, (here, there) in differences.items())
        raise ValueError(f"{path} holds another run: {named}. Choose another folder, or delete this one to start over")
