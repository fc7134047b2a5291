"""What a run was made with: versions of the software, and the machine."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import eigengrad

__all__ = ["available_cores", "machine", "versions"]


def versions() -> dict[str, str]:
    """Versions of what computes."""
    found = {"eigengrad": eigengrad.__version__, "python": platform.python_version(), "torch": torch.__version__}
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
