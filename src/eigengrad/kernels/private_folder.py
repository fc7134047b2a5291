"""The user's folder for what is kept between processes, and whether nobody else can write to a place.

What was compiled is executed, and what was measured decides which kernel is used. So such files must belong to this
user and be closed to others, and none of the folders above may let somebody else put another in its place.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

__all__ = ["cache_folder", "read_private", "require_private"]

_LARGEST = 1 << 20  # bytes of a file that is read


def cache_folder(*variables: str) -> Path | None:
    """The folder for caches that one of the environment variables names, or that of the system; None without a home."""
    for given in map(os.environ.get, (*variables, "XDG_CACHE_HOME")):
        if given:
            return Path(given)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else None
    return Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")


def require_private(path: Path) -> None:
    """Refuse a folder in which somebody else could put a file, or another folder in its place.

    Raises:
        OSError: others can write there, or it does not exist.
    """
    if not hasattr(os, "geteuid"):  # Windows, where a user's folders are closed to others
        return
    user = os.geteuid()
    for place in (path, *path.parents):
        found = place.lstat()
        shared_group = found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid, user)
        others = found.st_mode & stat.S_IWOTH or shared_group
        if place == path:
            refused = found.st_uid != user or bool(found.st_mode & 0o077) or not stat.S_ISDIR(found.st_mode)
        else:
            refused = found.st_uid not in (user, 0) or bool(others and not found.st_mode & stat.S_ISVTX)
        if refused:
            raise PermissionError(f"others can write to {place}")


def read_private(path: Path) -> str:
    """The text of a file of this user's in a private folder.

    Raises:
        OSError: it does not exist, is no ordinary file, belongs to or can be written by somebody else, or is too large.
        ValueError: it is no text.
    """
    require_private(path.parent)
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            raise OSError(f"{path} is no file of at most {_LARGEST} bytes")
        if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
            raise PermissionError(f"others can write to {path}")
        return file.read(_LARGEST).decode()


def _is_private_group(group: int, user: int) -> bool:
    """Whether a group is root's, or has the user for its only member, as where each user has a group of that name."""
    if group == 0:
        return True
    import grp
    import pwd

    try:
        name, found = pwd.getpwuid(user).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}
