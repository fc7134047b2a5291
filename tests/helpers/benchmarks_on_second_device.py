"""The benchmarks of a GPU on the second device, with small shapes: run as a script by ``test_benchmarks.py``.

The device has events that a clock of the host stands behind. Results go to the folder that is given.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import torch

import second_device

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


class Event:
    """An event of a device that computes at once."""

    def __init__(self, enable_timing: bool) -> None:
        self.seconds = 0.0

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return (end.seconds - self.seconds) * 1e3


class Properties:
    total_memory = 8 << 30


def main(results: Path) -> None:
    device = second_device.DEVICE
    module = torch.get_device_module(device)
    module.Event, module.get_device_name = Event, staticmethod(lambda: "Acme 9000 (PCIe)")
    module.get_device_properties = staticmethod(lambda device: Properties)
    module.reset_peak_memory_stats = staticmethod(lambda: None)
    module.memory_allocated = module.max_memory_allocated = staticmethod(lambda: 0)

    import derivatives
    import eigh
    import harness
    import pooling
    import training
    import whitening

    harness.RESULTS = results
    harness.use("second")
    harness.gpu = lambda: {"gpu": harness.device_name(), "bandwidth": "1 GB/s"}  # the true one takes large products
    eigh.GPU_SIZES = [(4, 3)]
    derivatives.CASES = {name: dataclasses.replace(case, sizes=[(4, 3)]) for name, case in derivatives.CASES.items()}
    whitening.SHAPES, whitening.GROUP_SIZES = [(2, 8, 3, 3)], [4]
    whitening.limits = lambda: (1e9, 1e9)
    pooling.SHAPES, pooling.MOST_STEPS = [(2, 4, 3, 3)], 6
    training.LAYER, training.GROUP_SIZES, training.STEP = (2, 64, 4, 4), [16], (2, 3, 32, 32)

    def once(contestants, *rest, **options):
        """Each contestant a single time, by the device's clock."""
        times = {}
        for name, function in contestants.items():
            clock = harness.new_clock()
            clock.time(function)
            times[name] = harness.Timing(*[clock.total() * 1e6] * 4, rounds=1)
        return times

    for subject in (eigh, derivatives, whitening, pooling, training):
        subject.interleave = once
        print(subject.run([1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
