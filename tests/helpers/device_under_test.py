"""The device that ``device_cases.py`` runs on: ``EIGENGRAD_TEST_DEVICE``, or the second device in Python.

On a GPU ("cuda", which is ROCm's name too) torch itself reports for what the host waits.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["DEVICE", "IS_GPU", "no_waiting"]

_NAME = os.environ.get("EIGENGRAD_TEST_DEVICE", "second")
IS_GPU = _NAME != "second"

if not IS_GPU:
    from second_device import DEVICE, no_waiting
else:
    DEVICE = torch.device(_NAME, 0)
    torch.get_device_module(DEVICE).current_device()  # an error here if there is none

    @contextlib.contextmanager
    def no_waiting() -> Iterator[None]:
        """Fail if the host has waited for the device meanwhile, other than in torch's own decompositions."""
        module: Any = torch.get_device_module(DEVICE)
        module.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                yield
        finally:
            module.set_sync_debug_mode("default")
        waits = [w for w in caught if "synchroniz" in str(w.message) and not w.filename.endswith("solvers/lapack.py")]
        assert not waits, "the host waits for the device: " + "; ".join(f"{w.filename}:{w.lineno}" for w in waits)
