"""Forward and backward passes timed in turns, so that a disturbance of the machine hits all contestants alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Timing", "median_interval", "time_passes"]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of a pass: the median of the rounds, and for the backward pass a 95 % interval of that median.

    Args:
        forward, backward: medians.
        interval: of the median of the backward pass.
    """

    forward: float
    backward: float
    interval: tuple[float, float]


def time_passes(layers: Mapping[str, nn.Module], x: Tensor, rounds: int) -> dict[str, Timing]:
    """Time ``layer(x)`` and its backward pass for every layer, one after the other, in each of ``rounds`` rounds."""
    x = x.detach().requires_grad_()
    incoming: dict[str, Tensor] = {}
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    names = list(layers)
    for turn in range(-1, rounds):  # the first round compiles and allocates, and does not count
        start = max(turn, 0) % len(names)
        for name in names[start:] + names[:start]:
            before = _now(x.device)
            y = layers[name](x)
            between = _now(x.device)
            if name not in incoming:
                incoming[name] = torch.randn_like(y)
            begin = _now(x.device)
            y.backward(incoming[name])
            end = _now(x.device)
            x.grad = None
            if turn >= 0:
                samples[name].append((1e3 * (between - before), 1e3 * (end - begin)))
    found = {}
    for name, pairs in samples.items():
        forward, backward = zip(*pairs, strict=True)
        found[name] = Timing(statistics.median(forward), statistics.median(backward), median_interval(backward))
    return found


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """A distribution-free interval of the median: the order statistics between which it lies with this confidence.

    With fewer than six values no two have 95 %; then it is their range.

    >>> median_interval(range(1, 51))
    (18, 33)
    """
    ordered, n = sorted(values), len(values)
    rank, outside = 0, 0.0  # values below the interval, and the probability that the median is among them
    while rank < n // 2:
        chance = math.comb(n, rank) / 2**n
        if outside + chance > (1 - confidence) / 2:
            break
        outside += chance
        rank += 1
    rank = max(rank - 1, 0)
    return ordered[rank], ordered[n - 1 - rank]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
