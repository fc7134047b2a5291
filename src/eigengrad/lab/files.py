"""Writing files so that a kill, a full disk or a second reader never sees half of one, and reading those of others."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import struct
import time
import zipfile
from pathlib import Path

__all__ = ["DamagedFileWarning", "make_folder", "read_regular_file", "require_checksums", "write_atomically"]

TEMPORARY = ".partial"

#: Seconds after which a temporary file in a folder that no process holds is taken for one of a killed writer.
ABANDONED = 3600.0

#: What systems answer that cannot open or flush a folder.
_NO_FOLDER_FLUSH = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM})


class DamagedFileWarning(UserWarning):
    """A file could not be read, and the work continues without it."""


def write_atomically(path: Path, content: bytes | memoryview, *, flush: bool = True) -> None:
    """Write a file beside its place, flush it to the disk, and put it there in one move.

    Args:
        path: in a folder that exists.
        content: of the file.
        flush: wait for the disk, so that a power cut loses nothing either.

    Raises:
        OSError: names the file and the reason. What stood there before is untouched, unless the message says that the
            new file is in its place and only could not be flushed.
        MemoryError: names the file. What stood there before is untouched.
    """
    # Names end at 255 bytes. Nobody can guess this one, and it must not exist: a link there would be written through.
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        _write_new(temporary, content, flush=flush)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError | MemoryError):
            raise unwritable(path, error) from error
        raise
    if flush:
        _flush_folder(path)


def _write_new(path: Path, content: bytes | memoryview, *, flush: bool) -> None:
    """Write a file that must not exist. Only functions of ``os`` are called, so that a test can fail each of them."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags, 0o666)
    try:
        left = memoryview(content).cast("B")
        while len(left):
            left = left[os.write(handle, left) :]
        if flush:
            os.fsync(handle)
    finally:
        os.close(handle)


def unwritable(path: Path, error: OSError | MemoryError) -> OSError | MemoryError:
    """An error of the same kind, whose message says what was being written and what to do."""
    remedy = "" if isinstance(error, MemoryError) else "; make room, or choose another folder"
    return _explained(error, f"cannot write {path}", f"What was saved before is intact{remedy}")


def _explained(error: OSError | MemoryError, problem: str, consequence: str) -> OSError | MemoryError:
    """An error of the same kind, whose message is the problem, the system's reason, and the consequence."""
    if isinstance(error, MemoryError):
        return MemoryError(f"{problem}: {str(error) or 'out of memory'}. {consequence}")
    message = f"{problem}: {error.strerror or str(error)}. {consequence}"
    return type(error)(error.errno, message) if error.errno is not None else OSError(message)


def make_folder(path: Path) -> None:
    """Create a folder and those above it, or say why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, MemoryError) as error:
        raise _explained(error, f"cannot create the folder {path}", "Choose one that can be written") from error


def read_regular_file(path: Path, limit: int) -> bytes:
    """The content of a file. Pipes and devices, which may never end, are not opened for reading.

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
            with path.open("rb") as file:
                if file.read(4) == b"PK\x03\x04":  # what torch takes for a zip
                    raise ValueError("it is a damaged zip (its end is missing)")
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


def remove_partial(folder: Path, *, older_than: float = 0.0) -> None:
    """Remove what killed writers left in a folder.

    Args:
        folder: where to look.
        older_than: seconds since the last change. 0 is only for the one who holds the folder; elsewhere another process
            may be writing, which takes seconds.
    """
    latest = time.time() - older_than
    for leftover in folder.glob(f".*{TEMPORARY}"):
        with contextlib.suppress(OSError):  # removed by another process, or not ours to remove
            if not older_than or leftover.lstat().st_mtime < latest:
                leftover.unlink()


def _flush_folder(path: Path) -> None:
    """Make the move of a file to its place survive a power cut, where folders can be flushed (not on Windows)."""
    try:
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except (OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in _NO_FOLDER_FLUSH:
            return
        consequence = "The file is whole, but a power cut may lose it"
        raise _explained(error, f"cannot flush the folder of {path}", consequence) from error
