"""The benchmarks' clocks and folders, and that what is measured on a GPU runs on a device that is not the CPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

ROOT = Path(__file__).parents[1]


@pytest.fixture
def harness(monkeypatch):
    """The harness, measuring on the CPU."""
    spec = importlib.util.spec_from_file_location("harness", ROOT / "benchmarks" / "harness.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "harness", module)
    spec.loader.exec_module(module)
    return module


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
