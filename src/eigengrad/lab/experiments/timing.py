"""Forward and backward passes timed in turns, so that a disturbance of the machine hits all contestants alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Timing", "time_passes"]


@dataclass(frozen=True)
class Timing:
    """Medians, in milliseconds."""

    forward: float
    backward: float


def time_passes(layers: Mapping[str, nn.Module], x: Tensor, rounds: int) -> dict[str, Timing]:
    """Time ``layer(x)`` and its backward pass for every layer, one after the other, in each of ``rounds`` rounds."""
    x = x.detach().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    names = list(layers)
    for turn in range(-1, rounds):  # the first round compiles and allocates, and does not count
        start = max(turn, 0) % len(names)
        for name in names[start:] + names[:start]:
            before = _now(x.device)
            y = layers[name](x)
            between = _now(x.device)
            g = torch.randn(y.shape, generator=generator).to(y.device)
            begin = _now(x.device)
            y.backward(g)
            end = _now(x.device)
            x.grad = None
            if turn >= 0:
                samples[name].append((1e3 * (between - before), 1e3 * (end - begin)))
    return {
        name: Timing(*(statistics.median(part) for part in zip(*pairs, strict=True))) for name, pairs in samples.items()
    }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
