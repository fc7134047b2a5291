"""The benchmarks' clocks and folders, the run on other versions, and that what a GPU gets runs on a second device."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

ROOT = Path(__file__).parents[1]


def load(name, monkeypatch):
    """A file of ``benchmarks/``, as the module that its neighbours import."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def harness(monkeypatch):
    """The harness, measuring on the CPU."""
    return load("harness", monkeypatch)


@pytest.fixture
def versions(monkeypatch):
    """The run of the tests on the oldest and the newest torch."""
    return load("versions", monkeypatch)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-sxm4-40gb"),
        ("AMD Instinct MI300X", "amd-instinct-mi300x"),
        ("../../etc: (TM)", "etc-tm"),
        ("", "gpu"),
    ],
)
def test_results_of_a_gpu_are_in_a_folder_of_its_name(harness, name, folder):
    assert harness.slug(name) == folder
    assert harness.results_folder() == harness.RESULTS


def test_contestants_are_timed_on_the_cpu(harness):
    A = torch.randn(8, 8)
    times = harness.interleave({"a": lambda: A @ A, "b": lambda: A + A}, 0.01)
    assert set(times) == {"a", "b"}
    assert all(0 < t.minimum <= t.lower_quartile <= t.median <= t.upper_quartile for t in times.values())


def test_contestants_on_a_gpu_are_timed_by_its_events(harness, monkeypatch):
    """A device whose calls take 3 and 5 ms, whatever the host does."""
    now = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now[0]

        def synchronize(self):
            self.done = True

        def elapsed_time(self, end):
            return end.at - self.at

    def takes(milliseconds):
        def call():
            now[0] += milliseconds

        return call

    monkeypatch.setattr(torch, "get_device_module", lambda device: type("Module", (), {"Event": Event}))
    monkeypatch.setattr(harness, "on_gpu", lambda: True)
    monkeypatch.setattr(harness, "_product", lambda: takes(100.0))  # between the calls, and not counted
    times = harness.interleave({"a": takes(3.0), "b": takes(5.0)}, 0.05)
    assert times["a"].median == pytest.approx(3000)
    assert times["b"].median == pytest.approx(5000)


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices that are written in Python",
)
def test_subjects_of_a_gpu_run_on_a_second_device(tmp_path):
    """Nothing in them is of the CPU; their tables are in the folder of the device, with its limits."""
    script = ROOT / "tests" / "helpers" / "benchmarks_on_second_device.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for subject in ("eigh", "derivatives", "whitening", "pooling", "training"):
        written = json.loads((tmp_path / "acme-9000-pcie" / f"{subject}.json").read_text())
        assert written["machine"]["gpu"] == "Acme 9000 (PCIe)"
        assert written["machine"]["bandwidth"] == "1 GB/s"
        assert written["rows"]
        assert "bandwidth: 1 GB/s" in (tmp_path / "acme-9000-pcie" / f"{subject}.md").read_text()


def executable(file, script):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.mark.skipif(os.name != "posix", reason="writes scripts of a shell")
def test_an_interpreter_behind_a_shim_that_does_not_run_is_found_among_those_of_pyenv(versions, tmp_path, monkeypatch):
    shim = executable(tmp_path / "shims" / "python3.77", "echo 'pyenv: python3.77: command not found' >&2; exit 127")
    real = executable(tmp_path / "root" / "versions" / "3.77.1" / "bin" / "python3.77", "exit 0")
    executable(tmp_path / "shims" / "pyenv", f"echo {tmp_path / 'root'}")
    monkeypatch.setenv("PATH", str(shim.parent), prepend=os.pathsep)
    assert versions.interpreter("python3.77") == real
    executable(shim, "exit 0")
    assert versions.interpreter("python3.77") == shim
    with pytest.raises(SystemExit, match=r"no python3\.78 runs here: found nothing"):
        versions.interpreter("python3.78")


def test_counts_of_a_run_are_those_of_its_last_line(versions):
    output = (
        "3 failed before\n= 2 failed, 14,000 odd =\n1 failed, 16210 passed, 72 skipped, 5 xfailed, 2 errors in 61.20s"
    )
    assert versions.counts(output) == {"failed": 1, "passed": 16210, "skipped": 72, "xfailed": 5, "error": 2}
    assert versions.counts("") == {}
