"""Which files a run was trained on, in a few letters."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["digest"]


def digest(*roots: Path) -> str:
    """A hash of the names and sizes of all files in some folders, or of files that are given, wherever they lie.

    Links are followed, as they are when the data is read; those that lead nowhere hold nothing.
    """
    content = hashlib.sha256()
    for root in roots:
        walk = os.walk(root, followlinks=True)
        files = [root] if root.is_file() else [Path(top, name) for top, _, names in walk for name in names]
        existing = (file for file in files if file.exists())
        for name, size in sorted((str(file.relative_to(root)), file.stat().st_size) for file in existing):
            content.update(f"{name}\0{size}\0".encode())
        content.update(b"\n")
    return content.hexdigest()[:12]
