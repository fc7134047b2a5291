"""``show_config``: what this installation computes with."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import torch

from . import kernels

__all__ = ["show_config"]


def show_config() -> str:
    """Describe what eigengrad computes with on this machine, as :func:`torch.__config__.show` does for torch.

    Returns:
        One line each for the versions, the CPU and the width of its vectors, torch's threads and the OpenMP runtime
        that they belong to, whether the CPU kernels are used and if not why, and the folder that compiled kernels are
        kept in with their number. A bug report should have it. ``eigengrad info`` prints it.

    >>> import eigengrad as eg
    >>> print(eg.show_config())                                                       # doctest: +ELLIPSIS
    eigengrad     ...
    Python        ...
    torch         ...
    numba         ...
    numpy         ...
    CPU           ...
    threads       ...
    CPU kernels   ...
    kernel cache  ...
    """
    from . import __version__

    width, reason = _vectors()  # first: it finds out whether kernels can be used
    lines = {
        "eigengrad": __version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()}, {platform.platform()})",
        "torch": torch.__version__,
        "numba": _version("numba"),
        "numpy": _version("numpy"),
        "CPU": f"{_cpu()}, {width}",
        "threads": _threads(),
        "CPU kernels": "on" if reason is None else f"off: {reason}",
        "kernel cache": _cache() if reason is None else "not used",
    }
    return "\n".join(f"{name:<13} {value}" for name, value in lines.items())


def _version(package: str) -> str:
    """The installed version of a package, which is not imported for it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _vectors() -> tuple[str, str | None]:
    """The width of vectors, and why kernels cannot be used or None."""
    if kernels.why_not() is None:
        try:
            return f"vectors of {8 * kernels.vector_bytes()} bits", None
        except kernels.KernelsUnavailableError:
            pass
    return f"torch uses {torch.backends.cpu.get_cpu_capability()}", kernels.why_not()


def _cpu() -> str:
    """The model of the CPU."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    except OSError:  # not Linux
        pass
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if found:
            return found
    return platform.processor() or platform.machine()


def _threads() -> str:
    """The number of torch's threads, and the runtime whose threads kernels share with torch."""
    runtime = kernels.openmp_runtime()
    shared = "no OpenMP runtime of torch found: kernels use one thread" if runtime is None else f"OpenMP {runtime.path}"
    return f"{torch.get_num_threads()}, {shared}"


def _cache() -> str:
    """The folder of compiled kernels, and how many it holds."""
    folder = kernels.cache_folder()
    count = sum(1 for _ in folder.rglob("*.nbi"))  # numba writes an index for every kernel and type
    return f"{folder} ({count} kernel{'' if count == 1 else 's'})"
