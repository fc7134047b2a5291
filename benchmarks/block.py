"""A block of a network, conv–norm–ReLU–conv–ReLU–conv, with the whitening layer against the same with batch norm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eigengrad.nn import DecorrelatedBatchNorm2d
from harness import interleave, write

SHAPES = [(64, 3, 32, 32), (8, 3, 16, 16)]
GROUP_SIZES = [4, 8, 16, 32, 64]
TEXT = """Forward + backward of conv 3→64, norm, ReLU, conv 64→64, ReLU, conv 64→64 (3×3, float32, NCHW), with
`DecorrelatedBatchNorm2d(64, group_size=d)` as its norm: median time over that of the same block with `nn.BatchNorm2d`,
taken in turns."""


def run(threads: list[int]) -> Path:
    rows = [row for count in threads for shape in SHAPES for row in measure(shape, count)]
    return write("block", TEXT, ["threads", "shape", "d", "batch norm", "ours", "ours/batch norm"], rows)


def measure(shape: tuple[int, ...], threads: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    norms: dict[str, nn.Module] = {"batch norm": nn.BatchNorm2d(64)}
    norms |= {f"ours {d}": DecorrelatedBatchNorm2d(64, group_size=d) for d in GROUP_SIZES}
    times = interleave({name: both_passes(norm, shape) for name, norm in norms.items()}, seconds=4.0)
    base = times["batch norm"]
    return [
        {
            "threads": threads,
            "shape": "×".join(map(str, shape)),
            "d": d,
            "batch norm": base,
            "ours": times[f"ours {d}"],
            "ours/batch norm": times[f"ours {d}"].median / base.median,
        }
        for d in GROUP_SIZES
    ]


def both_passes(norm: nn.Module, shape: tuple[int, ...]) -> Callable[[], object]:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(channels, 64, 3, padding=1, bias=False) for channels in (3, 64, 64)]
    block = nn.Sequential(convolutions[0], norm, nn.ReLU(), convolutions[1], nn.ReLU(), convolutions[2])
    x = torch.randn(shape)
    gy = torch.randn(shape[0], 64, *shape[2:])

    def call() -> None:
        block(x).backward(gy)
        block.zero_grad()

    return call
