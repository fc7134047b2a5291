"""The curves of a run for TensorBoard."""

from __future__ import annotations

import contextlib
from pathlib import Path

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from ..files import unwritable

__all__ = ["Scalars"]


class Scalars:
    """An event file in the folder of a run.

    Args:
        folder: of the event files.
        step: from which on earlier events, of a session that was killed, do not count.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder = folder
        try:
            self._writer = SummaryWriter(str(folder), purge_step=step, flush_secs=30)
        except OSError as error:
            raise unwritable(folder, error) from error

    def write(self, values: dict[str, float], step: int) -> None:
        """Write scalars by name."""
        try:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def images(self, images: dict[str, Tensor], step: int) -> None:
        """Write images by name."""
        try:
            for name, value in images.items():
                self._writer.add_images(name, value, step)
        except OSError as error:
            raise unwritable(self.folder, error) from error

    def close(self) -> None:
        """Write what is left. An error is ignored: the run has ended, and the curves are a convenience."""
        with contextlib.suppress(OSError):
            self._writer.close()
