"""Where compiled kernels are kept for later processes: in numba's own cache, in a folder that nobody else can write to.

What is in a cache is executed. So the folder must belong to this user and be closed to others, and none of the folders
above it may let somebody else put another in its place; otherwise a temporary one is used, for this process only. That
is looked at again before each kernel, since a temporary folder may be cleaned away and made anew by somebody else.

numba looks for changes in a kernel's own file, and lets processes that compile at the same time overwrite each other's
numbered files. The folder is therefore named after all that kernels are made from, and holds one signature of each.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import llvmlite
import numba
from llvmlite import binding

__all__ = ["folder", "holds", "location"]

_log = logging.getLogger("eigengrad")

_UNUSED = 30 * 24 * 3600  # seconds after which the kernels of other versions are removed


@functools.cache
def location() -> Path:
    """The folder of the kernels of these sources on this CPU."""
    base = _user_folder()
    try:
        if base is None:
            raise OSError("there is no home folder")
        path = base.expanduser().absolute() / "eigengrad"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve(strict=True) / f"kernels-{_digest()}"
        path.mkdir(mode=0o700, exist_ok=True)
        _require_private(path)
        os.utime(path)
        _remove_unused(path)
        return path
    except (OSError, RuntimeError) as error:
        _log.warning(
            "compiled kernels are kept for this process only: %s. Set NUMBA_CACHE_DIR to a folder of your own.", error
        )
        path = Path(tempfile.mkdtemp(prefix="eigengrad-")).resolve()
        atexit.register(_remove_temporary, path, os.getpid())
        return path


@contextlib.contextmanager
def folder(number: str) -> Iterator[None]:
    """Let numba keep what it compiles meanwhile, for one type of number, in :func:`location`.

    Raises:
        OSError: the folder is gone, or no longer closed to others.
    """
    _require_private(location())
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(location() / number)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def holds(function: Callable[..., object], number: str) -> bool:
    """Whether there is something for a kernel and a type of number."""
    stem = Path(function.__code__.co_filename).stem
    return any((location() / number).rglob(f"{stem}.{function.__qualname__}-*.nbi"))


def _user_folder() -> Path | None:
    """The folder for caches that the user has set, or that of the system."""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else None
    return Path("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")


@functools.cache
def _digest() -> str:
    """A digest of the kernels' sources, of what compiles them, and of the CPU."""
    digest = hashlib.sha256()
    package = Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    config = numba.config
    host = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    target = config.CPU_NAME, config.CPU_FEATURES, *host
    versions = numba.__version__, llvmlite.__version__, sys.implementation.cache_tag
    digest.update(repr((versions, target, config.OPT)).encode())
    return digest.hexdigest()[:16]


def _remove_temporary(path: Path, process: int) -> None:
    """Remove the folder of a process when that process ends, not when a forked child does."""
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)


def _require_private(path: Path) -> None:
    """Refuse a folder in which somebody else could put a file, or another folder in its place."""
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


def _remove_unused(path: Path) -> None:
    """Remove the kernels of other versions that no process has used for a month."""
    for other in path.parent.glob("kernels-*"):
        with contextlib.suppress(OSError):
            if other != path and time.time() - other.lstat().st_mtime > _UNUSED:
                shutil.rmtree(other, ignore_errors=True)
