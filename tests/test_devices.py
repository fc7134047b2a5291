"""Every function and layer on a device that is not the CPU: same numbers, no mixing of devices, and no waiting for it.

The device is that of :mod:`second_device`, in a process of its own for these tests: torch has room for one such device,
and its autograd threads are switched off for it.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

HERE = Path(__file__).parent


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices that are written in Python",
)
@pytest.mark.parametrize("group", ["functions", "rules", "modes", "layers", "state"])
def test_second_device(group):
    """What :mod:`second_device_cases` checks, a group of cases a process."""
    command = [sys.executable, str(HERE / "helpers" / "second_device_cases.py"), group]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "cases" in done.stdout
