"""One process at a time in the folder of a run."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from io import FileIO
from pathlib import Path

from ..files import unwritable

__all__ = ["BusyError", "is_held", "locked"]

#: How often to try, and seconds between: :func:`is_held` holds the lock of others for a moment.
_ATTEMPTS, _PAUSE = 3, 0.05

#: What file systems answer that have no locks. There, two runs in one folder are not noticed.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})

#: Where Windows locks a byte: behind the content, which others could not read otherwise.
_LOCKED_BYTE = 1 << 20


class BusyError(OSError):
    """Another process executes the same run.

    Attributes:
        owner: which one, in words.
    """

    def __init__(self, folder: Path | str, owner: str) -> None:
        super().__init__(f"{folder} is in use by {owner}; wait for it, stop it, or choose another folder")
        self.folder, self.owner = str(folder), owner

    def __reduce__(self) -> tuple[type[BusyError], tuple[str, str]]:
        # As an error of another process it is made anew from these.
        return type(self), (self.folder, self.owner)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context that holds the lock of a folder. The system releases it when the process ends, however it ends.

    A folder in which nothing was written, because the run could not begin, is removed.

    Raises:
        BusyError: another process holds it, which the message names.
        OSError: the lock cannot be written.
    """
    path = folder / "lock"
    with _hold(path) as file:
        try:
            file.seek(0)
            file.truncate(0)
            file.write(f"{os.getpid()} {platform.node() or '?'} {datetime.now():%Y-%m-%d %H:%M:%S}".encode())
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if os.listdir(folder) == [path.name]:
                    path.unlink()
                    folder.rmdir()


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder now."""
    try:
        file = _open(folder / "lock", create=False)
    except OSError:  # it was never held, or is gone
        return False
    with file:
        return not _try_to_lock(file)


def _open(path: Path, *, create: bool) -> FileIO:
    # A link would let another user choose the file that is emptied.
    flags = os.O_RDWR | create * os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    return FileIO(os.open(path, flags, 0o666), "r+")


def _hold(path: Path) -> FileIO:
    """Open the file of a lock, and lock it."""
    attempts = 0
    while True:
        attempts += 1
        try:
            file = _open(path, create=True)
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            if _try_to_lock(file):
                # The process that held it may have removed it with its folder after it was opened here.
                if _is_at(file, path):
                    return file
            elif attempts >= _ATTEMPTS:
                file.seek(0)
                raise BusyError(path.parent, _owner(file.read(200)))
            else:
                time.sleep(_PAUSE)
        except BaseException:
            file.close()
            raise
        file.close()


def _try_to_lock(file: FileIO) -> bool:
    """Lock a file until it is closed or the process ends; False if another process has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_LOCKED_BYTE)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_at(file: FileIO, path: Path) -> bool:
    """Whether the path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _owner(content: bytes) -> str:
    """Who holds a lock, by what is written in it."""
    process, _, rest = content.decode("utf-8", "replace").strip().partition(" ")
    host, _, since = rest.partition(" ")
    if not process:
        return "another process"
    return f"process {process}" + (f" on {host}" if host else "") + (f" since {since}" if since else "")
