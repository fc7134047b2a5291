"""Every function and layer on a device that is not the CPU: same numbers, no mixing of devices, and no waiting for it.

The device is that of :mod:`second_device`, in a process of its own for these tests: torch has room for one such device,
and its autograd threads are switched off for it. With ``EIGENGRAD_TEST_DEVICE=cuda`` it is a GPU (``make test-gpu``).
"""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

import eigengrad as eg

HERE = Path(__file__).parent
#: Public names that compute nothing with tensors of a device, or only hand on what others compute.
WITHOUT_CASE = {
    "show_config": "describes the installation",
    "register_rule": "gives a rule a name",
    "SpectrumReport": "is what spectrum_report returns",
    "Diagnosis": "is what diagnose returns",
    "GradientRule": "is abstract; each rule has its cases",
    "linalg.pinv": "is torch's own",
    "linalg.matrix_rank": "is torch's own",
}


pytestmark = pytest.mark.skipif(
    "EIGENGRAD_TEST_DEVICE" not in os.environ
    and not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices that are written in Python",
)


def run(*arguments):
    command = [sys.executable, str(HERE / "helpers" / "device_cases.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


GROUPS = {
    "functions": ["decompositions", "matrix functions", "rules", "transforms"],
    "modules": ["layers", "pooling", "colouring", "state"],
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_device(groups):
    """What :mod:`device_cases` checks, in two processes: each takes seconds to get its device."""
    done = run(*groups)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "cases" in done.stdout


def public_names():
    """All that is public, by its name below ``eigengrad``, without errors, warnings and modules."""
    modules = {"": eg, "linalg.": eg.linalg, "nn.": eg.nn, "nn.functional.": eg.nn.functional}
    for prefix, module in modules.items():
        for name in module.__all__:
            value = getattr(module, name)
            is_error = inspect.isclass(value) and issubclass(value, BaseException)
            if not is_error and not inspect.ismodule(value):
                yield prefix + name


def test_every_public_name_has_a_device_case():
    """A new function or layer is not done until it has run on a device that is not the CPU."""
    covered = set(run("--covered").stdout.split())
    names = set(public_names())
    assert names - covered == set(WITHOUT_CASE), "without a case, or with one that WITHOUT_CASE denies"
