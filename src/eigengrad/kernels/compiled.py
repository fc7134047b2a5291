"""How kernels are compiled: once, kept on disk for later processes, without the interpreter's lock.

``error_model="numpy"`` drops the checks for division by zero; contraction lets the compiler fuse a product and a sum
into one rounding. Nothing here reorders sums, so that a kernel gives the same bits wherever it runs on the same CPU.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import inspect
import pickle
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numba
from numba import njit, types
from numba.core import event
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

from .linking import LinkedCompiler

if TYPE_CHECKING:
    from .adapters import Adapter

__all__ = ["Entry", "compiled", "entry", "inlined", "inner"]

_OPTIONS: Any = {
    "nogil": True,
    "error_model": "numpy",
    "boundscheck": False,
    "fastmath": {"contract", "nsz"},
    "no_cfunc_wrapper": True,
}

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(kernel: Kernel) -> Kernel:
    """Compile a module-level function that Python calls, on first use.

    Its machine code is kept beside the source or in a user's cache.
    """
    dispatcher = njit(**_OPTIONS)(kernel)
    with contextlib.suppress(RuntimeError):  # neither place can be written to: compile in every process
        dispatcher._cache = _Cache(kernel)
    return dispatcher


def inner(kernel: Kernel) -> Kernel:
    """Compile a function that only kernels call: they contain it, so that it is not kept, and Python has no way in."""
    return njit(no_cpython_wrapper=True, pipeline_class=LinkedCompiler, **_OPTIONS)(kernel)


def inlined(kernel: Kernel) -> Kernel:
    """Compile a function as a part of its only caller: by itself first, a large one would take as long again."""
    return njit(inline="always", no_cpython_wrapper=True, **_OPTIONS)(kernel)


class Entry(functools.partial[Any]):
    """A kernel for numbers of one type, as Python calls it."""

    signature: tuple[Any, ...]  #: the numba types of its arguments; the first is that of the number
    code: Any

    @functools.cached_property
    def adapter(self) -> Adapter:
        """The same as threads call it."""
        from .adapters import adapter

        return adapter(self.code.library.get_pointer_to_function(self.code.fndesc.llvm_func_name), self.signature)


@functools.cache
def entry(kernel: Any, number: str) -> Entry:
    """A compiled kernel for numbers of one type: what Python calls, but for the half microsecond of finding out which.

    Args:
        kernel: its first argument, of no annotated type, is a number of the type; the others are as annotated.
        number: "float32" or "float64".
    """
    kinds = {"Any": getattr(types, number), "int": types.int64, "float": types.float64, "bool": types.boolean}
    annotations = kernel.py_func.__annotations__
    signature = tuple(kinds[annotations[name]] for name in inspect.signature(kernel.py_func).parameters)
    kernel.compile(signature)
    call = Entry(kernel.overloads[signature].entry_point, 0.0)
    call.signature, call.code = signature, kernel.overloads[signature]
    return call


class _Cache(FunctionCache):
    """The machine code of one kernel on disk. Whatever is wrong there, the kernel is compiled and works."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        super().__init__(kernel)
        self._cache_file = _Files(Path(self.cache_path), f"{kernel.__module__}.{kernel.__qualname__}")

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk, a folder that is gone
            super().save_overload(sig, data)


class _Files:
    """One file for each signature and CPU, named after all that it was made from.

    Not numba's index of numbered files: processes that compile at the same time can take one number for different code,
    a file that was cut short stays an error, and changes are looked for in the kernel's own file only, although what
    it calls is compiled into it.
    """

    def __init__(self, folder: Path, kernel: str) -> None:
        self._folder = folder
        self._kernel = f"{kernel}.{sys.implementation.cache_tag}-numba-{numba.__version__}"

    def _path(self, key: object) -> Path:
        return self._folder / f"{self._kernel}.{_sources()}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"

    def load(self, key: object) -> Any:
        """What was saved under ``key``; None if there is nothing, or it is damaged."""
        try:
            content = self._path(key).read_bytes()
        except OSError:
            return None
        code = content[32:]
        return pickle.loads(code) if hashlib.sha256(code).digest() == content[:32] else None

    def save(self, key: object, data: object) -> None:
        """Keep ``data`` for processes to come, in place of what was made from other sources."""
        path, code = self._path(key), dumps(data)
        new = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            new.write_bytes(hashlib.sha256(code).digest() + code)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        for old in self._folder.glob(f"{self._kernel}.*.nbc"):
            if f".{_sources()}." not in old.name:
                old.unlink(missing_ok=True)


@functools.cache
def _sources() -> str:
    """What stands in all of the kernels' files, as a short digest."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class _Compilation(event.Listener):
    """Around each compilation of a kernel: says, the first time in a process, why the call takes seconds.

    Keeps Python's search for unreachable objects out of it as well, which would take a fifth of the time: the compiler
    makes millions of objects, and all those of torch are looked at each time.
    """

    def __init__(self) -> None:
        self._said = False
        self._depth = 0  # kernels call kernels
        self._collecting = False

    def on_start(self, event: Any) -> None:
        if not _ours(event):
            return
        if not self._said:
            self._said = True
            print("eigengrad: compiling kernels for this CPU (each once: later processes reuse them)", file=sys.stderr)
        if self._depth == 0:
            self._collecting = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        if not _ours(event):
            return
        self._depth -= 1
        if self._depth == 0 and self._collecting:
            gc.enable()


def _ours(event: Any) -> bool:
    module: str = event.data["dispatcher"].py_func.__module__
    return module.startswith(__package__)


event.register("numba:compile", _Compilation())
