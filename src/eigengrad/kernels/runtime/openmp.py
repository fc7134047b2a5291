"""torch's own OpenMP threads.

torch's threads keep looking for work for some milliseconds after each of its operations. Threads of our own would have
to share the cores with them; torch's are awake, and in the middle of a network nothing is faster.

``GOMP_parallel(function, data, threads, flags)`` is how compiled code enters a parallel region. GNU's libgomp has it,
and so have libomp and libiomp5, under the same name. Which of the runtimes in the process is torch's is decided as the
dynamic linker decides it for torch: the global scope first, then the dependencies of torch's own library.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

__all__ = ["Runtime", "available_threads", "runtime"]


class Runtime(NamedTuple):
    """The OpenMP runtime that torch uses."""

    parallel: Callable[[int, int, int, int], None]  #: GOMP_parallel: (function, data, threads, 0)
    max_threads: Callable[[], int]  #: omp_get_max_threads, which follows torch.set_num_threads
    path: str


@functools.cache
def runtime() -> Runtime | None:
    """The runtime of torch; None where torch is built without one, or it cannot be told which it is."""
    names = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}
    if sys.platform not in names:
        return None
    for library in (None, Path(torch.__file__).parent / "lib" / names[sys.platform]):
        try:
            scope = ctypes.CDLL(None if library is None else str(library))
            parallel, max_threads = scope.GOMP_parallel, scope.omp_get_max_threads
        except (OSError, AttributeError):
            continue
        if max_threads() == torch.get_num_threads():
            parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            parallel.restype = None
            return Runtime(parallel, max_threads, _path_of(parallel))
    return None


def _path_of(function: object) -> str:
    """The file that a function was loaded from."""

    class Info(ctypes.Structure):
        _fields_ = [("path", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p),
                    ("address", ctypes.c_void_p)]  # fmt: skip

    info = Info()
    try:
        ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info))  # type: ignore[arg-type]
    except (OSError, AttributeError):
        return ""
    return (info.path or b"").decode(errors="replace")


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def available_threads() -> int:
    """How many threads a parallel region may have: as many as torch uses.

    One in a forked child, where OpenMP would wait for threads that only the parent has.
    """
    return 1 if _forked or runtime() is None else torch.get_num_threads()
