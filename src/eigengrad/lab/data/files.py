"""A folder of files and a zip of files, seen alike."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Protocol

from .errors import CorruptDataError, MissingDataError

__all__ = ["Files", "FolderFiles", "ZipFiles", "open_files"]


class Files(Protocol):
    """Files by their names, which are relative to a root and have "/" between their parts.

    ``files`` is sorted; ``folders`` has the name of every folder with a "/" at its end. What operating systems leave
    behind (names that begin with a dot, __MACOSX) is in neither.
    """

    files: list[str]
    folders: set[str]

    def read(self, name: str) -> bytes:
        """What a file holds."""
        ...

    def where(self, name: str) -> str:
        """How a message names a file or a folder."""
        ...


class FolderFiles:
    """The files of a folder, and of the folders in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[str] = []
        self.folders: set[str] = set()
        self._walk(str(root), "")
        self.files.sort()

    def _walk(self, folder: str, prefix: str) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _left_behind(entry.name):
                    continue
                if entry.is_symlink() and not os.path.exists(entry.path):
                    raise MissingDataError(entry.path, f"is a link to {os.readlink(entry.path)}, which does not exist")
                if entry.is_dir():  # also a link to one: data sets are often put together from links
                    self.folders.add(f"{prefix}{entry.name}/")
                    self._walk(entry.path, f"{prefix}{entry.name}/")
                else:
                    self.files.append(prefix + entry.name)

    def read(self, name: str) -> bytes:
        """What a file holds."""
        return (self.root / name).read_bytes()

    def where(self, name: str) -> str:
        """The path."""
        return str(self.root / name)


class ZipFiles:
    """The files of a zip, read from where they are in it."""

    def __init__(self, path: Path, remedy: str = "") -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            problem = f"is not a zip, or a truncated one ({path.stat().st_size:,} bytes: {error})"
            raise CorruptDataError(path, problem, remedy) from error
        names = [name for name in self._zip.namelist() if not any(map(_left_behind, name.split("/")))]
        self.files = sorted(name for name in names if not name.endswith("/"))
        # A zip need not list its folders, so they are taken from the names of the files as well.
        self.folders = {name[: i + 1] for name in names for i, letter in enumerate(name) if letter == "/"}

    def read(self, name: str) -> bytes:
        """What a file holds; its checksum is compared with the zip's."""
        try:
            return self._zip.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise CorruptDataError(self.where(name), f"cannot be read from the zip ({error})") from error

    def where(self, name: str) -> str:
        """The zip's path, and the name in it."""
        return str(self.path / name)


def open_files(path: Path, remedy: str) -> Files:
    """The files of a folder, or of a zip."""
    if path.is_dir():
        return FolderFiles(path)
    if path.is_file():
        return ZipFiles(path, remedy)
    raise MissingDataError(path, "does not exist; expected a folder or a zip", remedy)


def _left_behind(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"
