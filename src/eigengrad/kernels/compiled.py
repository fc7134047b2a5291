"""How kernels are compiled: once, kept on disk for later processes, without the interpreter's lock.

``error_model="numpy"`` drops the checks for division by zero; contraction lets the compiler fuse a product and a sum
into one rounding. Nothing here reorders sums, so that a kernel gives the same bits wherever it runs on the same CPU.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

__all__ = ["compiled", "note_compilation"]

_OPTIONS: Any = {"nogil": True, "error_model": "numpy", "boundscheck": False, "fastmath": {"contract", "nsz"}}

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(kernel: Kernel) -> Kernel:
    """Compile a module-level function on first use; its machine code is kept beside the source or in a user's cache."""
    try:
        dispatcher = njit(cache=True, **_OPTIONS)(kernel)
    except RuntimeError:  # neither place can be written to: compile in every process
        return njit(**_OPTIONS)(kernel)
    # numba looks for changes in the kernel's own file only, but what it calls is compiled into it.
    dispatcher._cache._cache_file._source_stamp = _sources()
    return dispatcher


@functools.cache
def _sources() -> tuple[float, int]:
    """When the newest of the kernels' files was written, and the size of all."""
    files = [path.stat() for path in Path(__file__).parent.glob("*.py")]
    return max(file.st_mtime for file in files), sum(file.st_size for file in files)


@functools.cache
def note_compilation(what: str) -> None:
    """Say once, on a terminal, why the first call takes seconds."""
    if sys.stderr.isatty():
        print(f"eigengrad: compiling {what} for this CPU (once; later processes reuse it)", file=sys.stderr)
