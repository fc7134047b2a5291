"""Writing files so that a kill, a full disk or a second reader never sees half of one, and reading those of others."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import struct
import zipfile
from pathlib import Path

__all__ = ["DamagedFileWarning", "make_folder", "read_regular_file", "require_checksums", "write_atomically"]

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
    # Names end at 255 bytes. Nobody can guess this one, and it must not exist: a link there would be written through.
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        with temporary.open("xb") as file:
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


def read_regular_file(path: Path, limit: int) -> bytes:
    """What a file holds. Pipes and devices, which may never end, are not opened for reading.

    Args:
        path: of the file, or of a link to it.
        limit: bytes that it may have at most.

    Raises:
        ValueError: says what is wrong, without the path: no regular file, or one that is too large.
        OSError: as ``open``.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("is not a regular file")
        if about.st_size > limit:
            raise ValueError(f"has {about.st_size:,} bytes; expected at most {limit:,}")
        return file.read(about.st_size)


def require_checksums(path: Path) -> None:
    """Refuse a file of ``torch.save`` of which a part has changed: torch itself looks at no checksum.

    Raises:
        ValueError: names the part that has changed, is compressed, or lies over another: ``torch.save`` writes its
            parts as they are, so a file cannot hold more than it has bytes. (Files of the format before torch 1.6 have
            no checksums, and pass.)
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            compressed = [part.filename for part in parts if part.compress_type != zipfile.ZIP_STORED]
            if compressed:
                raise ValueError(f"its part {compressed[0]} is compressed, which torch.save never does")
            if sum(part.file_size for part in parts) > path.stat().st_size:
                raise ValueError("its parts have more bytes than the file")
            damaged = archive.testzip()
    except (zipfile.BadZipFile, RuntimeError, EOFError, OverflowError, OSError, struct.error) as error:
        raise ValueError(f"it is a damaged zip ({error})") from error
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
