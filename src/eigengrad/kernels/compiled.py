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
from numba.core import event

__all__ = ["compiled"]

_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "fastmath": {"contract", "nsz"},
    "no_cfunc_wrapper": True,
}

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


class _Note(event.Listener):
    """Says, the first time that a kernel of ours is compiled in this process, why the call takes seconds."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        ours = event.data["dispatcher"].py_func.__module__.startswith(__package__)
        if ours and not self.said:
            self.said = True
            print("eigengrad: compiling kernels for this CPU (once: later processes reuse them)", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        """There is nothing to say."""


event.register("numba:compile", _Note())
