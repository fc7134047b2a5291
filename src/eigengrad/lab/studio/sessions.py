"""Who uses the studio, and their files: each browser sees its own, under names that the server makes."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = ["LimitError", "Session", "Sessions", "StoredFile"]

#: Bytes of an uploaded file, and of all files of a session.
LARGEST_UPLOAD = 256 << 20
LARGEST_SESSION = 2 << 30
MOST_FILES = 200
MOST_SESSIONS = 32
_BLOCK = 1 << 20


class Readable(Protocol):
    """Something that bytes can be read from."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""


class LimitError(Exception):
    """More than the studio takes; the message says what, and how much it takes."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a session.

    Args:
        key: by which requests name it; it cannot be guessed.
        name: as its owner calls it. It is shown, and never used as a path.
        path: where it is, in a folder of its own.
        media_type: by which browsers are told what it is.
    """

    key: str
    name: str
    path: Path
    media_type: str


@dataclass
class Session:
    """A browser, with its folder and its files by their keys."""

    key: str
    folder: Path
    used: float = field(default_factory=time.monotonic)
    _files: dict[str, StoredFile] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def new_folder(self) -> Path:
        """A new folder for one file, or for what one task makes."""
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        return folder

    def add(self, path: Path, name: str, media_type: str = "application/octet-stream") -> StoredFile:
        """Make a file in the session's folder known under a key."""
        stored = StoredFile(secrets.token_urlsafe(12), plain_name(name), path, media_type)
        with self._lock:
            self._files[stored.key] = stored
        return stored

    def receive(self, stream: Readable, length: int, name: str) -> StoredFile:
        """Store an upload of so many bytes.

        Raises:
            LimitError: if it is too large, or there is too much already.
            ConnectionError: if fewer bytes came.
        """
        if length > LARGEST_UPLOAD:
            raise LimitError(f"The file has {length / 1e6:,.0f} MB; the studio takes up to {LARGEST_UPLOAD / 1e6:,.0f}")
        with self._lock:
            held = sum(stored.path.stat().st_size for stored in self._files.values() if stored.path.exists())
            count = len(self._files)
        if held + length > LARGEST_SESSION or count >= MOST_FILES:
            raise LimitError("There are too many files of yours here already; close the page and open it anew")
        path = self.new_folder() / "upload"
        with path.open("wb") as file:
            while length:
                block = stream.read(min(_BLOCK, length))
                if not block:
                    file.close()
                    shutil.rmtree(path.parent, ignore_errors=True)
                    raise ConnectionError("the upload ended early")
                file.write(block)
                length -= len(block)
        return self.add(path, name)

    def find(self, key: str) -> StoredFile | None:
        """The file with a key, if it is one of this session."""
        with self._lock:
            return self._files.get(key)

    def remove(self, key: str) -> bool:
        """Delete a file; whether there was one."""
        with self._lock:
            stored = self._files.pop(key, None)
            last = stored is not None and not any(f.path.parent == stored.path.parent for f in self._files.values())
        if stored is None:
            return False
        if last:
            shutil.rmtree(stored.path.parent, ignore_errors=True)
        else:
            stored.path.unlink(missing_ok=True)
        return True


class Sessions:
    """The browsers that have come with the studio's token, in a folder that only this user can read.

    Args:
        folder: for their files. It is removed in the end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def new(self) -> Session:
        """A session for another browser; the one that was not used for the longest time ends, if there are many."""
        key = secrets.token_urlsafe(24)
        session = Session(key, self._folder / secrets.token_hex(8))
        session.folder.mkdir(mode=0o700)
        with self._lock:
            self._sessions[key] = session
            oldest = min(self._sessions.values(), key=lambda s: s.used) if len(self._sessions) > MOST_SESSIONS else None
            if oldest is not None:
                del self._sessions[oldest.key]
        if oldest is not None:
            shutil.rmtree(oldest.folder, ignore_errors=True)
        return session

    def find(self, key: str) -> Session | None:
        """The session with a key."""
        with self._lock:
            session = self._sessions.get(key)
            if session is not None:
                session.used = time.monotonic()
            return session


def plain_name(name: str) -> str:
    r"""A name to show, without folders and control characters, of at most 80 characters.

    >>> plain_name("../../etc/pass\nwd.png")
    'passwd.png'
    """
    last = re.split(r"[/\\]", name)[-1]
    return re.sub(r"[\x00-\x1f\x7f\"]", "", last)[-80:] or "file"
