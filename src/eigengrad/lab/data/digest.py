"""Which files a run was trained on, in a few letters."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ["digest"]


def digest(*roots: Path) -> str:
    """A hash of the names and sizes of all files in some folders, or of files that are given, wherever they lie."""
    content = hashlib.sha256()
    for root in roots:
        files = [root] if root.is_file() else [Path(top, name) for top, _, names in os.walk(root) for name in names]
        for name, size in sorted((str(file.relative_to(root)), file.stat().st_size) for file in files):
            content.update(f"{name}\0{size}\0".encode())
        content.update(b"\n")
    return content.hexdigest()[:12]
