"""How long pictures take, one at a time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

import torch

__all__ = ["time_in_turns"]


def time_in_turns(contestants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every call, ``rounds`` of each, in turns: what disturbs the machine disturbs all of them.

    Each round has an order of its own, drawn the same way in every run, so that none always follows the same one.
    A first call of each, which compiles and allocates, does not count. On one thread of a CPU it is the time of the
    processor that is measured: the same as that of the clock where nothing else runs, and no other programs in it.
    """
    names = list(contestants)
    times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for turn in range(-1, rounds):
        for name in order.sample(names, len(names)):
            before = _now()
            contestants[name]()
            seconds = _now() - before
            if turn >= 0:
                times[name].append(1e3 * seconds)
    return times


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()
