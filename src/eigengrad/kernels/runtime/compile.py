"""How kernels are compiled: on first use, kept on disk for later processes (:mod:`.cache`).

``error_model="numpy"`` drops the checks for division by zero; contraction lets the compiler fuse a product and a sum
into one rounding. Nothing here reorders sums, so that a kernel gives the same bits wherever it runs on the same CPU.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from numba import NumbaError, cfunc, njit, types, version_info

from . import cache
from .launch import Launcher
from .trampoline import trampoline

__all__ = ["Kernel", "device_function", "inline", "kernel"]

_log = logging.getLogger("eigengrad")

_OPTIONS: Any = {"error_model": "numpy", "boundscheck": False, "fastmath": {"contract", "nsz"}}

Function = TypeVar("Function", bound=Callable[..., Any])

# numba compiles in one thread at a time. A fork waits for it: in the child its own lock would stay locked for ever.
_compiling = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
    )


def device_function(function: Function) -> Function:
    """Compile a function that kernels call."""
    return njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)


#: numba 0.58 copies the whole function for each of its statements: minutes for a large one (numba issues 8989, 9204).
_INLINES_QUICKLY = version_info[:2] >= (0, 59)


def inline(function: Function) -> Function:
    """Compile a function as a part of its only caller: by itself first, a large one would take as long again."""
    if not _INLINES_QUICKLY:
        return device_function(function)
    return njit(nogil=True, inline="always", no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)


class Kernel:
    """A module-level function that Python calls with numbers and addresses, as a C function for each type of number.

    Its first argument, of no annotated type, is a number of the type; the others are int or float, as annotated. The
    last is the address of a work block (:mod:`.work`). It returns DONE.
    """

    def __init__(self, function: Callable[..., int]) -> None:
        self.function = function
        self._launchers: dict[str, Launcher] = {}

    def launcher(self, number: str) -> Launcher:
        """The kernel for numbers of type "float32" or "float64", loaded from the cache or compiled."""
        with _compiling:
            found = self._launchers.get(number)
            if found is None:
                found = self._launchers[number] = self._compile(number)
            return found

    def _compile(self, number: str) -> Launcher:
        kinds = {"Any": getattr(types, number), "int": types.int64, "float": types.float64}
        annotations = self.function.__annotations__
        arguments = [kinds[annotations[name]] for name in inspect.signature(self.function).parameters]
        code = _cached(types.int64(*arguments), self.function, number)
        return Launcher(trampoline(code.address, [str(kind) for kind in arguments]), code)


kernel = Kernel


def _cached(signature: Any, function: Callable[..., int], number: str) -> Any:
    """The C function, from the cache if it is there; whatever is wrong with the cache, it is compiled."""
    held = False
    try:
        with cache.folder(number):
            held = cache.holds(function, number)
            if not held:
                _announce()
            return cfunc(signature, cache=True, **_OPTIONS)(function)
    except Exception as error:  # a damaged file can raise anything
        if isinstance(error, NumbaError) and not held:
            raise  # the kernel does not compile: that has nothing to do with the cache
        code = cfunc(signature, **_OPTIONS)(function)
        _log.warning("the kernel cache cannot be used (%s: %s): compiled anew", type(error).__name__, error)
        return code


@functools.cache
def _announce() -> None:
    """Say, once in a process, why a call takes seconds."""
    _log.warning("compiling kernels for this CPU: a few seconds each, once (later processes reuse them)")
