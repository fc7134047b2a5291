"""How everything here is timed and reported.

The contestants take turns within one run, in an order that rotates, so that a disturbance of the machine hits all of
them alike; what is reported is the ratio of medians, with minima and quartiles beside it.

They are timed in place: each call comes straight after a matrix product of torch, as in the middle of a network, where
torch's threads are awake and the caches hold something else. A second column may show calls by themselves.
"""

from __future__ import annotations

import gc
import json
import os
import platform
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
_TURN = 2e-3  # seconds of one contestant at a time: long against the clock, short against the machine


@dataclass(frozen=True)
class Timing:
    """Microseconds per call."""

    median: float
    minimum: float
    lower_quartile: float
    upper_quartile: float
    rounds: int


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
        start = time.perf_counter()
        between()
        contestants[name]()
        once = time.perf_counter() - start
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
                spent = 0.0
                for _ in range(calls[name]):
                    between()
                    start = time.perf_counter()
                    function()
                    spent += time.perf_counter() - start
                samples[name].append(spent / calls[name] * 1e6)
    finally:
        gc.enable()
    return {name: _summary(times) for name, times in samples.items()}


def _product() -> Callable[[], object]:
    """A matrix product of torch, of some 0.2 ms on two cores of an AMD EPYC: all threads take part."""
    A = torch.randn(256, 256)
    result = torch.empty(256, 256)
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
    }


def _lines(path: str) -> Iterable[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def write(subject: str, text: str, columns: list[str], rows: list[dict[str, Any]]) -> Path:
    """Write ``results/subject.json`` and ``.md``: the machine, what was measured, and one row a case."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    about = machine()
    plain = [{key: asdict(value) if isinstance(value, Timing) else value for key, value in row.items()} for row in rows]
    (RESULTS / f"{subject}.json").write_text(json.dumps({"machine": about, "rows": plain}, indent=1) + "\n")
    lines = [f"# {subject}", "", text, "", ", ".join(f"{key}: {value}" for key, value in about.items()), ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows]
    path = RESULTS / f"{subject}.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _cell(value: Any) -> str:
    if isinstance(value, Timing):
        return f"{value.median:,.0f} µs"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
