"""A folder of files and a zip of files, seen alike."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..files import read_regular_file
from .errors import CorruptDataError, MissingDataError

__all__ = ["Files", "Folder", "FolderFiles", "ZipFiles", "open_files", "walk_folders"]

#: Bytes of one file: an image or a table. The largest image of ImageNet has 20 MB.
_LARGEST_FILE = 256 << 20
#: Folders in folders. Every one of them is a name in memory, of which a zip can declare thousands in one line.
_DEEPEST = 32
#: Folders altogether; with links in a few of them, a tree can have any number.
_MOST_FOLDERS = 200_000
#: Characters of a name in a zip: each of its folders is a name as well, so that a name can take 32 times its length.
_LONGEST_NAME = 1_000


class Files(Protocol):
    """Files by their names, which are relative to a root and have "/" between their parts.

    ``files`` is sorted; ``folders`` has the name of every folder with a "/" at its end. What operating systems leave
    behind (names that begin with a dot, __MACOSX) is in neither.
    """

    files: list[str]
    folders: set[str]

    def read(self, name: str) -> bytes:
        """The content of a file."""
        ...

    def where(self, name: str) -> str:
        """How a message names a file or a folder."""
        ...


@dataclass
class Folder:
    """A folder below a root.

    Args:
        name: relative to the root, with "/" between its parts and at its end; that of the root is empty.
        files: the names in it that are no folders.
        dead_links: those that lead nowhere.
        cycles: those that lead back to a folder that they lie in.
    """

    name: str
    files: list[str] = field(default_factory=list)
    dead_links: list[str] = field(default_factory=list)
    cycles: list[str] = field(default_factory=list)


def walk_folders(root: Path, skip: Callable[[str], bool] = lambda name: False) -> Iterator[Folder]:
    """Every folder below a root, which comes first. Links are followed, except for those that lead back up.

    Args:
        root: a folder.
        skip: which names to leave out, with all that is in them.

    Raises:
        CorruptDataError: names a folder that is too deep, or the root if there are too many.
    """
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset([_identity(root)]))]
    count = 0
    while waiting:
        name, above = waiting.pop()
        count += 1
        if count > _MOST_FOLDERS:
            raise CorruptDataError(root, f"has more than {_MOST_FOLDERS:,} folders in it; do links multiply them?")
        if name.count("/") > _DEEPEST:
            raise CorruptDataError(root / name, f"lies more than {_DEEPEST} folders deep")
        folder = Folder(name)
        with os.scandir(root / name) as entries:
            for entry in entries:
                if skip(entry.name):
                    continue
                if entry.is_symlink() and not os.path.exists(entry.path):
                    folder.dead_links.append(entry.name)
                elif not entry.is_dir():  # a link to a folder is one: data sets are often put together from links
                    folder.files.append(entry.name)
                elif (identity := _identity(entry.path)) in above:
                    folder.cycles.append(entry.name)
                else:
                    waiting.append((f"{name}{entry.name}/", above | {identity}))
        yield folder


def _identity(folder: Path | str) -> tuple[int, int]:
    """What identifies a folder, whatever path leads to it."""
    about = os.stat(folder)
    return about.st_dev, about.st_ino


class FolderFiles:
    """The files of a folder, and of the folders in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: list[str] = []
        self.folders: set[str] = set()
        for folder in walk_folders(root, skip=_left_behind):
            for link in folder.dead_links:
                path = root / folder.name / link
                raise MissingDataError(path, f"is a link to {os.readlink(path)}, which does not exist")
            for link in folder.cycles:
                raise CorruptDataError(root / folder.name / link, "is a link to a folder that it lies in")
            if folder.name:
                self.folders.add(folder.name)
            self.files += [folder.name + name for name in folder.files]
        self.files.sort()

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return read_regular_file(self.root / name, _LARGEST_FILE)
        except ValueError as error:
            raise CorruptDataError(self.where(name), str(error)) from error

    def where(self, name: str) -> str:
        """The path of a file or a folder."""
        return str(self.root / name)


class ZipFiles:
    """The files of a zip, read from where they are in it."""

    def __init__(self, path: Path, remedy: str = "") -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, OSError) as error:
            problem = f"is not a zip, or a truncated one ({path.stat().st_size:,} bytes: {error})"
            raise CorruptDataError(path, problem, remedy) from error
        names = [name for name in self._zip.namelist() if not any(map(_left_behind, name.split("/")))]
        self.files = sorted(name for name in names if not name.endswith("/"))
        self.folders: set[str] = set()
        for name in names:
            if name.count("/") > _DEEPEST:
                raise CorruptDataError(self.where(name[:200]), f"lies more than {_DEEPEST} folders deep", remedy)
            if len(name) > _LONGEST_NAME:
                raise CorruptDataError(self.where(name[:200]), f"has a name of {len(name):,} characters", remedy)
            # A zip need not list its folders, so they are taken from the names of the files as well.
            self.folders.update(name[: i + 1] for i, letter in enumerate(name) if letter == "/")
            if len(self.folders) > _MOST_FOLDERS:
                raise CorruptDataError(path, f"has more than {_MOST_FOLDERS:,} folders in it", remedy)

    def read(self, name: str) -> bytes:
        """The content of a file; its checksum is compared with the zip's."""
        try:
            about = self._zip.getinfo(name)
            # Of these two it is known how much comes out of a block; the others can unpack to any size at once.
            if about.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile("it is neither stored nor deflated")
            if about.file_size > _LARGEST_FILE:
                raise zipfile.BadZipFile(f"it has {about.file_size:,} bytes; expected at most {_LARGEST_FILE:,}")
            with self._zip.open(about) as file:
                # As many as it declares, not all there are: what is declared may be less than what is packed.
                content = file.read(about.file_size)
                file.read(1)  # the checksum is compared at the end
        except (
            *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
            *(ValueError, OverflowError, struct.error, OSError),
        ) as error:
            raise CorruptDataError(self.where(name), f"cannot be read from the zip ({error})") from error
        if len(content) != about.file_size:
            problem = f"has {len(content):,} bytes in the zip, which declares {about.file_size:,}"
            raise CorruptDataError(self.where(name), problem)
        return content

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
