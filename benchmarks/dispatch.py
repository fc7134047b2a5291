"""Where ``eg.eigh`` is faster than ``torch.linalg.eigh``, and whether it is ever slower, over batches and sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import eigengrad as eg
from eigh import matrices, require_both, timed, torch_over_ours
from harness import write

BATCHES = (1, 2, 4, 8, 16, 64, 256, 1024)
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
MOST = 3e8  # batch · n³ of the largest cases, a second of torch's time
TEXT = """Time of `torch.linalg.eigh`, on the better of one and two threads, over that of `eg.eigh` on two, the call
included, straight after a matrix product of torch: a row a size n, a column a batch. Medians of the contestants taking
turns. Below 1 torch is faster."""


def run(threads: list[int]) -> Path:
    require_both(threads)
    rows = []
    for dtype in (torch.float32, torch.float64):
        for n in SIZES:
            row: dict[str, Any] = {"type": str(dtype)[6:], "n": n}
            for batch in BATCHES:
                row[f"batch {batch}"] = ratio(batch, n, dtype) if batch * n**3 <= MOST else "–"
            rows.append(row)
            print(*row.values(), sep="  ", flush=True)
    return write("dispatch", TEXT, ["type", "n", *(f"batch {batch}" for batch in BATCHES)], rows)


def ratio(batch: int, n: int, dtype: torch.dtype) -> float:
    A = matrices(batch, n, dtype)
    contestants = {
        "torch 1": lambda: torch.linalg.eigh(A),
        "torch 2": lambda: torch.linalg.eigh(A),
        "ours 2": lambda: eg.eigh(A),
    }
    return torch_over_ours(timed(contestants, 0.03))
