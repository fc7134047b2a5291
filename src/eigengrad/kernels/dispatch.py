"""Whether kernels may be used (the switch), and the machine code of a kernel by its name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._execution import can_read, forward_mode, have_values, is_fast_path

if TYPE_CHECKING:
    from .runtime.launch import Launcher

_log = logging.getLogger("eigengrad")

REAL = frozenset({torch.float32, torch.float64})


def _switched_off() -> str | None:
    """The user's choice to do without kernels, as the environment states it."""
    off = os.environ.get("EIGENGRAD_KERNELS", "1").lower() in ("0", "false", "off", "no")
    return "EIGENGRAD_KERNELS=0" if off else None


def _obstacle() -> str | None:
    """Why kernels cannot be compiled, as far as it can be seen without importing numba."""
    try:
        found = importlib.util.find_spec("numba")
    except ValueError:  # something without a specification stands in its place
        found = None
    if found is None:
        return "numba is not installed (pip install numba)"
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):  # people debug their own kernels so
        return "NUMBA_DISABLE_JIT is set"
    return None


_reason = _switched_off() or _obstacle()
_untold = None if _switched_off() else _reason  # an obstacle that no warning has named yet


def available() -> bool:
    """Whether kernels are used. If something other than the user's choice prevents it, one warning says what.

    >>> import eigengrad as eg
    >>> eg.kernels.available() == (eg.kernels.why_not() is None)
    True
    """
    global _untold
    if _reason is None:
        return True
    if _untold is _reason and not torch.compiler.is_compiling():
        _untold = None
        _log.warning("eigengrad computes in torch operations, without its CPU kernels: %s", _reason)
    return False


def why_not() -> str | None:
    """Why kernels are not used; None if they are.

    >>> import eigengrad as eg
    >>> with eg.kernels.disable():
    ...     eg.kernels.why_not()
    'disabled by eigengrad.kernels.disable()'
    """
    return _reason


class disable:  # noqa: N801 - used as a function, or as a context manager
    """Compute everything in torch operations: functions and layers, in all threads.

    To find out whether a result comes from a kernel. Called, it holds from there on; as a context manager for a few
    lines. The environment variable ``EIGENGRAD_KERNELS=0`` does it for a whole process;
    :func:`eigengrad.kernels.enable` undoes it.

    >>> import torch, eigengrad as eg
    >>> with eg.kernels.disable():
    ...     eg.eigh(torch.eye(2)).eigenvalues
    tensor([1., 1.])
    """

    def __init__(self) -> None:
        global _reason
        self._before, _reason = _reason, "disabled by eigengrad.kernels.disable()"

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        global _reason
        _reason = self._before


def enable() -> None:
    """Use kernels again, after :func:`eigengrad.kernels.disable`, ``EIGENGRAD_KERNELS=0`` or a failed compilation.

    Raises:
        RuntimeError: kernels cannot be compiled, because numba is not installed or its compiler is switched off.

    >>> import eigengrad as eg
    >>> eg.kernels.enable()                                                         # doctest: +SKIP
    """
    global _reason
    obstacle = _obstacle()
    if obstacle is not None:
        raise RuntimeError(f"eigengrad.kernels.enable: {obstacle}")
    _reason = None


def usable(X: Tensor, *others: Tensor | None) -> bool:
    """Whether a kernel can work on ``X``, and on others like it: real, in main memory, with no derivative to record."""
    if _reason is not None or torch.is_grad_enabled() or X.dtype not in REAL:
        return False
    if is_fast_path(X):
        return have_values(*others)
    return X.device.type == "cpu" and not forward_mode() and can_read(X, *others)


class KernelsUnavailableError(RuntimeError):
    """A kernel cannot be loaded or compiled: compute in torch operations."""


@functools.cache
def load(module: str, name: str, dtype: torch.dtype) -> Launcher:
    """A kernel for numbers of a type, loaded or compiled when it is first needed.

    Args:
        module: where it is, in this package: "eigensolvers.jacobi".
        name: its name there.
        dtype: float32 or float64.

    Raises:
        KernelsUnavailableError: numba does not import or does not compile it. One warning says why, and kernels are off
            from then on.
    """
    try:
        kernel = getattr(importlib.import_module(f".{module}", __package__), name)
        launcher: Launcher = kernel.launcher(str(dtype).removeprefix("torch."))
    except Exception as error:
        raise give_up(f"kernel {module}.{name}", error) from error
    return launcher


def give_up(what: str, error: Exception) -> KernelsUnavailableError:
    """Turn kernels off for the rest of the process, with a warning that names what failed and why."""
    global _reason, _untold
    if _reason is None:
        _reason = _untold = f"{what} cannot be used ({type(error).__name__}: {str(error).strip()[:300]})"
        available()
    return KernelsUnavailableError(_reason)


@functools.cache
def vector_bytes() -> int:
    """The width of this CPU's vectors, in bytes: 64 with AVX-512, 32 with AVX2, otherwise 16.

    Raises:
        KernelsUnavailableError: numba, which knows the CPU, does not import. One warning says why, and kernels are off
            from then on.
    """
    try:
        from .simd import vectors
    except Exception as error:
        raise give_up("numba", error) from error
    return vectors.BYTES


def cache_folder() -> Path:
    """Where compiled kernels are kept for later processes."""
    from .runtime import cache

    return cache.location()
