"""One process at a time in the folder of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..files import unwritable

try:
    import fcntl
except ImportError:  # Windows: two runs in one folder are not noticed there
    fcntl = None  # type: ignore[assignment]

__all__ = ["BusyError", "locked"]


class BusyError(OSError):
    """Another process is at work on the same run."""

    def __init__(self, folder: Path, owner: str) -> None:
        who = f"process {owner}" if owner else "another process"
        super().__init__(f"{folder} is in use by {who}; wait for it, stop it, or choose another folder")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder. The system releases it when the process ends, however it ends.

    A folder in which nothing was written, because the run could not begin, is removed.
    """
    path = folder / "lock"
    try:
        file = path.open("a+b", buffering=0)  # so that what a full disk refuses is not tried again in closing
    except OSError as error:
        raise unwritable(path, error) from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise BusyError(folder, file.read().decode().strip()) from None
        try:
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if os.listdir(folder) == [path.name]:
                    path.unlink()
                    folder.rmdir()
