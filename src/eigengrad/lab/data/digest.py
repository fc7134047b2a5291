"""Which files a run was trained on, in a few letters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from .files import walk_folders

__all__ = ["digest"]


def digest(*roots: Path) -> str:
    """A hash of the names and sizes of all files in some folders, or of files that are given, wherever they lie.

    Links are followed, as they are when the data is read; those that lead nowhere, or back to a folder that they
    lie in, hold nothing.
    """
    content = hashlib.sha256()
    for root in roots:
        for name, size in sorted(_sizes(root)):
            content.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
        content.update(b"\n")
    return content.hexdigest()[:12]


def _sizes(root: Path) -> Iterator[tuple[str, int]]:
    """The name and the size of every file; of one that is given itself, the name is "."."""
    if root.is_file():
        yield ".", root.stat().st_size
    elif root.is_dir():
        for folder in walk_folders(root):
            for name in folder.files:
                path = Path(folder.name, name)
                yield str(path), (root / path).stat().st_size
