"""Forward and backward passes timed in turns, so that a disturbance of the machine hits all contestants alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Timing", "time_passes"]


@dataclass(frozen=True)
class Timing:
    """The fastest of the rounds, in milliseconds: what else a machine does only ever adds to it."""

    forward: float
    backward: float


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
    fastest = {name: [min(part) for part in zip(*pairs, strict=True)] for name, pairs in samples.items()}
    return {name: Timing(forward, backward) for name, (forward, backward) in fastest.items()}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
