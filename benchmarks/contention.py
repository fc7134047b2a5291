"""What a second busy process on every core does to calls of ours, and to torch's own operations."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import eigengrad as eg
from eigengrad.nn import DecorrelatedBatchNorm2d
from eigh import matrices
from harness import Timing, interleave, write

TEXT = """The same calls on a quiet machine and beside other processes that keep every core busy, two threads, float32,
medians in turns. *slower*: busy over quiet. The operations of torch are those that a network calls beside ours."""


def run(threads: list[int]) -> Path:
    torch.set_num_threads(2)
    contestants = calls()
    quiet = interleave(contestants, 1.0)
    spawn = multiprocessing.get_context("spawn")
    neighbours = [spawn.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in neighbours:
        process.start()
    try:
        busy = interleave(contestants, 1.0)
    finally:
        for process in neighbours:
            process.kill()
    rows = [row(name, quiet[name], busy[name]) for name in contestants]
    return write("contention", TEXT, ["call", "quiet", "busy", "slower"], rows)


def row(name: str, quiet: Timing, busy: Timing) -> dict[str, Any]:
    return {"call": name, "quiet": quiet, "busy": busy, "slower": busy.median / quiet.median}


def calls() -> dict[str, Callable[[], object]]:
    x, gy = torch.randn(8, 64, 16, 16, requires_grad=True), torch.randn(8, 64, 16, 16)
    weight, square = torch.randn(64, 64, 3, 3), torch.randn(512, 512)
    norm = nn.BatchNorm2d(64)

    def both_passes(layer: nn.Module) -> Callable[[], object]:
        return lambda: torch.autograd.grad(layer(x), x, gy)

    found: dict[str, Callable[[], object]] = {
        "torch: conv2d": lambda: nn.functional.conv2d(x.detach(), weight, padding=1),
        "torch: product": lambda: square @ square,
        "torch: batch norm": both_passes(norm),
        "torch: relu": lambda: torch.relu(x.detach()),
    }
    for d in (4, 16, 64):
        found[f"layer, d = {d}"] = both_passes(DecorrelatedBatchNorm2d(64, group_size=d))
    for batch, n in ((4096, 4), (4096, 16), (64, 64), (2, 32)):
        A = matrices(batch, n, torch.float32)
        found[f"eigh {batch}×{n}"] = lambda A=A: eg.eigh(A)  # type: ignore[misc]
    return found


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass
