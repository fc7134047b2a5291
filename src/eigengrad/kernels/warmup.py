"""Compile kernels ahead of their first use: in the image of a container, or before a measurement."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import torch

from ..errors import unknown_choice
from . import dispatch

__all__ = ["warmup"]

_log = logging.getLogger("eigengrad")

_SUBJECTS = ("eigensolvers", "vjp", "feature_maps")


def warmup(
    *dtypes: torch.dtype,
    subjects: Sequence[str] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> float:
    """Compile all kernels now, and keep them for this process and later ones.

    Without it, each kernel is compiled by the first call that needs it. What the cache holds is only loaded.

    Args:
        dtypes: of the numbers, ``torch.float32`` or ``torch.float64``; float32 if none is given.
        subjects: which kernels: "eigensolvers" (the solvers of ``eigh``), "vjp" (backward passes through ``eigh`` and
            matrix functions), "feature_maps" (the whitening layers); all by default.
        progress: called with the number of kernels that are done, the number of all, and the name of the next one; once
            more at the end, with an empty name. By default the log, at the level INFO, says the same.

    Returns:
        The seconds that it took.

    Raises:
        KernelsUnavailableError: kernels are turned off or cannot be compiled; the message says why.

    >>> import torch, eigengrad as eg
    >>> seconds = eg.kernels.warmup(torch.float32, subjects=["eigensolvers"])       # doctest: +SKIP
    """
    begun = perf_counter()
    for dtype in dtypes:
        if dtype not in dispatch.REAL:
            raise ValueError(f"warmup: dtypes must be torch.float32 or torch.float64; got {dtype}")
    subjects = _SUBJECTS if subjects is None else subjects
    for subject in subjects:
        if subject not in _SUBJECTS:
            raise unknown_choice("warmup: subjects", subject, _SUBJECTS)
    if not dispatch.available():
        raise dispatch.KernelsUnavailableError(f"warmup: {dispatch.why_not()}")
    dispatch.vector_bytes()  # raises if numba does not import
    found = [(*names, dtype) for dtype in dtypes or [torch.float32] for names in _kernels(subjects)]
    report = _logged if progress is None else progress
    for done, (module, name, dtype) in enumerate(found):
        report(done, len(found), f"{name} ({module}, {str(dtype).removeprefix('torch.')})")
        dispatch.load(module, name, dtype)
    report(len(found), len(found), "")
    return perf_counter() - begun


def _logged(done: int, total: int, name: str) -> None:
    """The progress of :func:`warmup` in the log."""
    if name:
        _log.info("compiling or loading kernel %d of %d: %s", done + 1, total, name)


def _kernels(subjects: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The modules and names of all kernels on some subjects, as :func:`.dispatch.load` takes them."""
    from .runtime.compile import Kernel

    for subject in subjects:
        package = importlib.import_module(f".{subject}", __package__)
        for found in pkgutil.iter_modules(package.__path__):
            try:
                module = importlib.import_module(f".{found.name}", package.__name__)
            except Exception as error:
                raise dispatch.give_up(f"{subject}.{found.name}", error) from error
            for name, value in vars(module).items():
                if isinstance(value, Kernel) and value.function.__module__ == module.__name__:
                    yield f"{subject}.{found.name}", name
