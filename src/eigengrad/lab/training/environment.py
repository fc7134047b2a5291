"""What a run was made with: versions of the software, and the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import eigengrad

__all__ = ["available_cores", "conditions", "machine", "versions"]

#: Entries of :func:`machine` that do not change what is computed.
_WITHOUT_INFLUENCE = ("system", "cores")


def versions() -> dict[str, str]:
    """Versions of what computes."""
    found = {"eigengrad": eigengrad.__version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("accelerate", "numba"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def machine() -> dict[str, Any]:
    """The processor, and how much of it torch uses."""
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _processor(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def conditions() -> dict[str, Any]:
    """What the last bits of a training depend on, besides its settings: versions, processor and threads."""
    return versions() | {name: value for name, value in machine().items() if name not in _WITHOUT_INFLUENCE}


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
