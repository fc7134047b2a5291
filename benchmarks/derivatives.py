"""Forward and backward of ``eigh`` and of the matrix functions, against the same through ``torch.linalg.eigh``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eigengrad as eg
from eigengrad import kernels
from harness import interleave, on_gpu, write

SIZES = [(16, 4), (8, 8), (4, 16), (2, 32), (1, 64), (128, 64), (1024, 16), (8, 256)]
TEXT = """Forward + backward, float32, covariance matrices; median time of the contestants taking turns, each call
straight after a matrix product of torch.

- *eigh*: `eigengrad.eigh(A)` against `torch.linalg.eigh(A)`, gradients of eigenvalues and eigenvectors.
- *without numba*: the same with the compiled kernels switched off, as it is without the extra `fast`.
- *sqrt*, *inv_sqrt*: `eigengrad.matrix_sqrt(A)` and `matrix_inv_sqrt(A)` against V f(λ) Vᵀ through `torch.linalg.eigh`.
  The columns *sqrt/eigh* and *inv_sqrt/eigh* compare them with `torch.linalg.eigh` alone, forward + backward."""


def run(threads: list[int]) -> Path:
    rows = [measure(batch, n, count) for count in threads for batch, n in SIZES]
    columns = ["threads", "batch", "n", "torch eigh", "eigh", "eigh/torch"]
    columns += [] if on_gpu() else ["without numba/torch"]
    columns += ["sqrt/torch", "inv_sqrt/torch", "sqrt/eigh", "inv_sqrt/eigh"]
    return write("derivatives", TEXT, columns, rows)


def measure(batch: int, n: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    samples = torch.randn(batch, n, 2 * n)
    A = (samples @ samples.mT / (2 * n)).requires_grad_()
    gL, gV = torch.randn(batch, n), torch.randn(batch, n, n)

    def pair(function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[], object]:
        def call() -> None:
            L, V = function(A)
            torch.autograd.backward((L, V), (gL, gV))
            A.grad = None

        return call

    def single(function: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def call() -> None:
            function(A).backward(gV)
            A.grad = None

        return call

    def without_numba() -> None:
        with kernels.disable():
            pair(lambda A: eg.eigh(A, driver="lapack"))()

    slower = {} if on_gpu() else {"without numba": without_numba}
    times = interleave(
        {
            "torch eigh": pair(torch.linalg.eigh),
            "eigh": pair(eg.eigh),
            **slower,
            "torch sqrt": single(lambda A: composed(A, torch.sqrt)),
            "sqrt": single(eg.matrix_sqrt),
            "torch inv_sqrt": single(lambda A: composed(A, torch.rsqrt)),
            "inv_sqrt": single(eg.matrix_inv_sqrt),
        }
    )
    median = {name: timing.median for name, timing in times.items()}
    return {
        "threads": threads,
        "batch": batch,
        "n": n,
        **times,
        "eigh/torch": median["eigh"] / median["torch eigh"],
        **{f"{name}/torch": median[name] / median["torch eigh"] for name in slower},
        "sqrt/torch": median["sqrt"] / median["torch sqrt"],
        "inv_sqrt/torch": median["inv_sqrt"] / median["torch inv_sqrt"],
        "sqrt/eigh": median["sqrt"] / median["torch eigh"],
        "inv_sqrt/eigh": median["inv_sqrt"] / median["torch eigh"],
    }


def composed(A: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    L, V = torch.linalg.eigh(A)
    return (V * f(L).unsqueeze(-2)) @ V.mT
