"""How everything here is timed and reported.

The contestants take turns within one run, in an order that rotates, so that a disturbance of the machine hits all of
them alike; what is reported is the ratio of medians, with minima and quartiles beside it.

They are timed in place: each call comes straight after a matrix product of torch, as in the middle of a network, where
torch's threads are awake and the caches hold something else. A second column may show calls by themselves.

On a GPU (:func:`use`) tensors are made there by default, times are those of the device's events, and results go to a
folder named after the device, with its limits.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

import eigengrad
from eigengrad import kernels

RESULTS = Path(__file__).parent / "results"
DEVICE = torch.device("cpu")  # what is measured; see use()
_TURN = 2e-3  # seconds of one contestant at a time: long against the clock, short against the machine


@dataclass(frozen=True)
class Timing:
    """Microseconds per call."""

    median: float
    minimum: float
    lower_quartile: float
    upper_quartile: float
    rounds: int


def use(name: str) -> None:
    """Measure on a device from now on: "cpu", "cuda", "xpu". Tensors and modules are made there by default."""
    global DEVICE
    DEVICE = torch.device(name)
    torch.set_default_device(DEVICE)


def on_gpu() -> bool:
    """Whether the device is not the CPU."""
    return DEVICE.type != "cpu"


def results_folder() -> Path:
    """Where results go: a folder of its own for each model of GPU."""
    return RESULTS / slug(device_name()) if on_gpu() else RESULTS


def device_name() -> str:
    """The model of the GPU, as its driver calls it."""
    return str(torch.get_device_module(DEVICE).get_device_name())


def slug(name: str) -> str:
    """A name for a folder: lower case, with everything but letters and digits as single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"


class HostClock:
    """Seconds on the host's clock, for work that is done when a call returns."""

    def __init__(self) -> None:
        self.spent = 0.0

    def time(self, function: Callable[[], object]) -> None:
        """Call a function, and add the time that it takes."""
        start = time.perf_counter()
        function()
        self.spent += time.perf_counter() - start

    def total(self) -> float:
        """Seconds of all calls."""
        return self.spent


class EventClock:
    """Seconds between events of the device, which are read once the calls of a turn are done.

    What the host does while the device waits for it counts, as it does in training.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Any, Any]] = []

    def time(self, function: Callable[[], object]) -> None:
        """Call a function between two events."""
        module = torch.get_device_module(DEVICE)
        start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        self.events.append((start, end))

    def total(self) -> float:
        """Seconds of all calls, for which this waits."""
        self.events[-1][1].synchronize()
        return sum(start.elapsed_time(end) for start, end in self.events) / 1e3


def new_clock() -> HostClock | EventClock:
    """A clock for the device."""
    return EventClock() if on_gpu() else HostClock()


def interleave(
    contestants: dict[str, Callable[[], object]],
    seconds: float = 1.5,
    prepare: Callable[[str], object] = lambda name: None,
    in_place: bool = True,
) -> dict[str, Timing]:
    """Time the contestants in turn for about ``seconds`` each.

    Before a turn, outside the clock, come ``prepare`` and one call, so that caches and clocks are in the state of its
    own work and not in that of the contestant before. All turns are about as long, however many calls that is, so that
    what is left of the state before weighs alike on the quick and the slow.

    Args:
        contestants: functions of no argument, by name.
        seconds: of work, for each of them.
        prepare: called with the name before each turn, for example to set the number of threads.
        in_place: a matrix product of torch, outside the clock, comes straight before each call.
    """
    names = list(contestants)
    between = _product() if in_place else _nothing
    for name in names:  # compile, allocate, load
        prepare(name)
        contestants[name]()
        contestants[name]()
    calls, turns = {}, 0.0
    for name in names:
        prepare(name)
        contestants[name]()
        clock = new_clock()
        clock.time(between)
        clock.time(contestants[name])
        once = clock.total()
        calls[name] = max(1, round(_TURN / once))
        turns += calls[name] * once
    rounds = min(400, max(7, round(seconds * len(names) / turns)))
    samples: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                function = contestants[name]
                prepare(name)
                function()
                clock = new_clock()
                for _ in range(calls[name]):
                    between()
                    clock.time(function)
                samples[name].append(clock.total() / calls[name] * 1e6)
    finally:
        gc.enable()
    return {name: _summary(times) for name, times in samples.items()}


def _product() -> Callable[[], object]:
    """A matrix product of torch, of some 0.2 ms on two cores of an AMD EPYC: all threads take part."""
    size = 2048 if on_gpu() else 256
    A = torch.randn(size, size)
    result = torch.empty(size, size)
    return lambda: torch.mm(A, A, out=result)


def _nothing() -> None: ...


def _summary(times: list[float]) -> Timing:
    lower, median, upper = statistics.quantiles(times, n=4)
    return Timing(median, min(times), lower, upper, len(times))


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    cpu = platform.processor() or platform.machine()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "")
    widest = next((name for name in ("avx512f", "avx2", "avx") if name in flags.split()), "unknown")
    numba = "absent"
    if kernels.available():
        import numba as module

        numba = module.__version__
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "vector instructions": widest,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba,
        "eigengrad": eigengrad.__version__,
        "date": date.today().isoformat(),
        **(gpu() if on_gpu() else {}),
    }


@functools.cache
def gpu() -> dict[str, str]:
    """The GPU and its limits, measured: bytes a second of a large copy, flops a second of large products."""
    a, b = torch.randn(64, 1 << 20), torch.empty(64, 1 << 20)
    products = {kind: torch.randn(4096, 4096, dtype=kind) for kind in (torch.float32, torch.float64)}
    contestants: dict[str, Callable[[], object]] = {"copy": lambda: b.copy_(a)}
    contestants |= {str(kind)[6:]: lambda m=m: m @ m for kind, m in products.items()}
    times = interleave(contestants, seconds=0.5, in_place=False)
    limits = {"bandwidth": f"{2 * a.numel() * 4 / times['copy'].minimum / 1e3:.0f} GB/s"}
    limits |= {
        f"products in {kind}": f"{2 * 4096**3 / times[kind].minimum / 1e6:.1f} Tflop/s"
        for kind in ("float32", "float64")
    }
    properties = torch.get_device_module(DEVICE).get_device_properties(DEVICE)
    memory = f"{properties.total_memory / 2**30:.0f} GiB"
    version = torch.version.cuda or torch.version.hip or "unknown"
    found = importlib.util.find_spec("triton")
    triton = importlib.metadata.version("triton") if found else "absent"
    return {"gpu": device_name(), "memory": memory, "cuda or rocm": version, "triton": triton, **limits}


def _lines(path: str) -> Iterable[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def write(subject: str, text: str, columns: list[str], rows: list[dict[str, Any]]) -> Path:
    """Write ``subject.json`` and ``.md`` to :func:`results_folder`: machine, what was measured, and one row a case."""
    folder = results_folder()
    folder.mkdir(parents=True, exist_ok=True)
    about = machine()
    plain = [{key: asdict(value) if isinstance(value, Timing) else value for key, value in row.items()} for row in rows]
    (folder / f"{subject}.json").write_text(json.dumps({"machine": about, "rows": plain}, indent=1) + "\n")
    lines = [f"# {subject}", "", text, "", ", ".join(f"{key}: {value}" for key, value in about.items()), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows]
    path = folder / f"{subject}.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _cell(value: Any) -> str:
    if isinstance(value, Timing):
        return f"{value.median:,.0f} µs"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
