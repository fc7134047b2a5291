"""Writing files so that a kill, a full disk or a second reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
import zipfile
from pathlib import Path

__all__ = ["DamagedFileWarning", "make_folder", "require_checksums", "write_atomically"]

TEMPORARY = ".partial"


class DamagedFileWarning(UserWarning):
    """A file could not be read, and things go on without it."""


def write_atomically(path: Path, content: bytes | memoryview, *, flush: bool = True) -> None:
    """Write a file beside its place, flush it to the disk, and put it there in one move.

    Args:
        path: in a folder that exists.
        content: of the file.
        flush: wait for the disk, so that a power cut loses nothing either.

    Raises:
        OSError: names the file and the reason. What stood there before is untouched.
    """
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}{TEMPORARY}")  # names end at 255 bytes
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise unwritable(path, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if flush:
        _flush_folder(path.parent)


def unwritable(path: Path, error: OSError) -> OSError:
    """The same kind of error, with a message that says what was being written and what to do."""
    reason = error.strerror or str(error)
    message = f"cannot write {path}: {reason}. What was saved before is intact; make room, or choose another folder"
    return type(error)(error.errno, message) if error.errno is not None else OSError(message)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, or say why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"cannot create the folder {path}: {reason}. Choose one that can be written"
        raise type(error)(error.errno, message) from error


def require_checksums(path: Path) -> None:
    """Refuse a file of ``torch.save`` of which a part has changed: torch itself looks at no checksum.

    Raises:
        ValueError: names the part. (Files of the format before torch 1.6 have no checksums, and pass.)
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged:
        raise ValueError(f"the checksum of its part {damaged} is wrong")


def remove_partial(folder: Path) -> None:
    """Remove what killed writers left; only for the one who holds the folder."""
    for leftover in folder.glob(f".*{TEMPORARY}"):
        leftover.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make the move itself survive a power cut, where folders can be flushed (not on Windows)."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
