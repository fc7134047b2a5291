"""How long the first call takes: with an empty kernel cache, and in later processes, import of numba included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import write

EIGENSOLVERS = [("jacobi", 4096, 4), ("batched QL", 4096, 16), ("divide and conquer", 8, 256)]
GROUP_SIZES = [4, 8, 16, 32, 64]
REPEATS = 3
TEXT = """Seconds of the first call in a process of its own, float32, two threads: *first* with an empty kernel cache,
so that kernels are compiled; *later* with the cache that the first process left. Importing torch and eigengrad is not
counted, importing numba is. *layer*: forward and backward of `DecorrelatedBatchNorm2d(64, group_size=d)` on 8×64×16×16.
Medians of three. The aim is at most 5 s for an eigensolver and 8 s for a layer at first, and 0.8 s later."""

_EIGH = "A = torch.randn({batch}, {n}, {n}); A = A @ A.mT; call = lambda: eg.eigh(A)"
_LAYER = """from eigengrad.nn import DecorrelatedBatchNorm2d
layer, x = DecorrelatedBatchNorm2d(64, group_size={d}), torch.randn(8, 64, 16, 16, requires_grad=True)
call = lambda: layer(x).sum().backward()"""
_PROGRAM = """
import json, time, torch, eigengrad as eg
torch.set_num_threads(2)
{setup}
start = time.perf_counter()
call()
print(json.dumps(time.perf_counter() - start))
"""


def run(threads: list[int]) -> Path:
    subjects = {f"eigh, {name}, {batch}×{n}×{n}": _EIGH.format(batch=batch, n=n) for name, batch, n in EIGENSOLVERS}
    subjects |= {f"layer, d = {d}": _LAYER.format(d=d) for d in GROUP_SIZES}
    return write("first_use", TEXT, ["call", "first (s)", "later (s)"], [measure(*item) for item in subjects.items()])


def measure(name: str, setup: str) -> dict[str, Any]:
    first, later = [], []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            first.append(seconds(setup, folder))
            later.append(seconds(setup, folder))
    return {"call": name, "first (s)": sorted(first)[REPEATS // 2], "later (s)": sorted(later)[REPEATS // 2]}


def seconds(setup: str, cache: str) -> float:
    variables = os.environ | {"NUMBA_CACHE_DIR": cache}
    program = [sys.executable, "-c", _PROGRAM.format(setup=setup)]
    done = subprocess.run(program, env=variables, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))
