"""The decomposition itself, alone and with its gradient, against ``torch.linalg.eigh`` on one and on two threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.testing import decomposition_errors
from harness import Timing, interleave, on_gpu, write

LARGE = [(4096, 4), (4096, 8), (4096, 16), (512, 32), (64, 64), (32, 128), (8, 256), (2, 512)]
SMALL = [(16, 4), (8, 8), (4, 16), (2, 32), (1, 64), (1, 128), (1, 256), (1, 512)]
TRAINED = [(16, 4), (1024, 16), (128, 64)]
TEXT = """`eg.eigh` against `torch.linalg.eigh`, the call included; medians of the contestants taking turns, each call
straight after a matrix product of torch, as in the middle of a network.

- *torch 1*, *torch 2*: on one and two threads (its loop over a batch is serial; the threads are MKL's);
  *torch/ours*: the better of the two over *ours 2*, eigengrad on two threads; *ours 1* on one.
- *by itself*: *torch/ours* in a run of its own, where calls follow each other with nothing between.
- *residual*, *orthogonality*: ‖AV − VΛ‖/‖A‖ and ‖VᵀV − I‖, over those of LAPACK.
- *peak*: nominal flops (9 n³ a matrix) a second of *ours 2* over those of a 2048×2048 matrix product on two threads.
- *backward* is that of the default rule, and torch's own: `torch.autograd.grad` from gradients of eigenvalues and
  eigenvectors; *autograd 2*: the same through a `torch.autograd.Function` that computes nothing in either direction."""
COLUMNS = ["type", "pass", "batch", "n", "torch 1", "torch 2", "ours 1", "ours 2", "torch/ours", "by itself"]
COLUMNS += ["residual", "orthogonality", "peak", "autograd 2"]


GPU_SIZES = [(512, 3), (4096, 4), (4096, 8), (4096, 16), (512, 32), (500, 64), (500, 100), (32, 128), (8, 256)]
GPU_TEXT = """`eg.eigh` against `torch.linalg.eigh` on the GPU; medians of the contestants taking turns, each call
straight after a matrix product. *residual*, *orthogonality*: ‖AV − VΛ‖/‖A‖ and ‖VᵀV − I‖, over those of torch.
*backward* is that of the default rule, and torch's own. What *ours* is, the file `choices.json` says."""
GPU_COLUMNS = ["type", "pass", "batch", "n", "torch", "ours", "torch/ours", "residual", "orthogonality"]


def run(threads: list[int]) -> Path:
    if on_gpu():
        rows = []
        for dtype in (torch.float32, torch.float64):
            rows += [row for batch, n in GPU_SIZES for row in both_on_gpu(batch, n, dtype)]
        return write("eigh", GPU_TEXT, GPU_COLUMNS, rows)
    require_both(threads)
    rows = []
    for dtype in (torch.float32, torch.float64):
        rows += [forward(batch, n, dtype) for batch, n in LARGE + SMALL]
        rows += [forward_and_backward(batch, n, dtype) for batch, n in TRAINED]
    return write("eigh", TEXT, COLUMNS, rows)


def require_both(threads: list[int]) -> None:
    """Say so if one and two threads, which are contestants, are not what was asked for."""
    if threads != [1, 2]:
        print("one and two threads are contestants here; --threads has no effect")


def matrices(batch: int, n: int, dtype: torch.dtype) -> Tensor:
    """Covariances of correlated features, 4n observations each."""
    torch.manual_seed(0)
    X = torch.randn(batch, n, n) @ torch.randn(batch, n, 4 * n)
    return (X @ X.mT / (4 * n * n) + 1e-3 * torch.eye(n)).to(dtype)


def forward(batch: int, n: int, dtype: torch.dtype) -> dict[str, Any]:
    A = matrices(batch, n, dtype)
    square = torch.randn(2048, 2048, dtype=dtype)
    contestants = {
        "torch 1": lambda: torch.linalg.eigh(A),
        "torch 2": lambda: torch.linalg.eigh(A),
        "ours 1": lambda: eg.eigh(A),
        "ours 2": lambda: eg.eigh(A),
    }
    times, alone = timed(contestants), timed(contestants, 0.2, in_place=False)
    torch.set_num_threads(2)
    gemm = interleave({"product": lambda: square @ square}, 0.3)["product"].median
    ours, lapack = ([float(x.max()) for x in decomposition_errors(A, *e(A))] for e in (eg.eigh, torch.linalg.eigh))
    share = (9 * n**3 * batch / times["ours 2"].median) / (2 * 2048**3 / gemm)
    accuracy = {"residual": ours[0] / lapack[0], "orthogonality": ours[1] / lapack[1]}
    rest = {"peak": f"{100 * share:.0f} %", "autograd 2": "–"}
    return row(dtype, "forward", batch, n, times, alone) | accuracy | rest


def forward_and_backward(batch: int, n: int, dtype: torch.dtype) -> dict[str, Any]:
    A = matrices(batch, n, dtype).requires_grad_()
    gL, gV = torch.randn(batch, n, dtype=dtype), torch.randn(batch, n, n, dtype=dtype)

    def both(decompose: Callable[[Tensor], Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(tuple(decompose(A)), A, (gL, gV))

    names = {"torch 1": torch.linalg.eigh, "torch 2": torch.linalg.eigh, "ours 1": eg.eigh, "ours 2": eg.eigh}
    names["autograd 2"] = lambda A: Nothing.apply(A, gL, gV)
    contestants = {name: both(decompose) for name, decompose in names.items()}
    times, alone = timed(contestants), timed(contestants, 0.2, in_place=False)
    return row(dtype, "forward + backward", batch, n, times, alone) | dict.fromkeys(
        ("residual", "orthogonality", "peak"), "–"
    )


def both_on_gpu(batch: int, n: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """The rows of the forward pass and of both passes."""
    A = matrices(batch, n, dtype)
    times = interleave({"torch": lambda: torch.linalg.eigh(A), "ours": lambda: eg.eigh(A)}, 0.4)
    ours, theirs = ([float(x.max()) for x in decomposition_errors(A, *e(A))] for e in (eg.eigh, torch.linalg.eigh))
    B = A.clone().requires_grad_()
    gL, gV = torch.randn(batch, n, dtype=dtype), torch.randn(batch, n, n, dtype=dtype)

    def both(decompose: Callable[[Tensor], Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(tuple(decompose(B)), B, (gL, gV))

    trained = interleave({"torch": both(torch.linalg.eigh), "ours": both(eg.eigh)}, 0.4)
    accuracy = {"residual": ours[0] / theirs[0], "orthogonality": ours[1] / theirs[1]}
    return [
        {
            "type": str(dtype)[6:],
            "pass": what,
            "batch": batch,
            "n": n,
            **found,
            "torch/ours": found["torch"].median / found["ours"].median,
            **errors,
        }
        for what, found, errors in (
            ("forward", times, accuracy),
            ("forward + backward", trained, dict.fromkeys(accuracy, "–")),
        )
    ]


class Nothing(torch.autograd.Function):
    """What autograd takes for a function of one matrix with two results."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, L: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors that are there already."""
        ctx.save_for_backward(L, V)
        return L.view_as(L), V.view_as(V)

    @staticmethod
    def backward(ctx: Any, gL: Tensor, gV: Tensor) -> tuple[Tensor, None, None]:
        """A gradient that is there already."""
        _, _ = ctx.saved_tensors
        return gV, None, None


def timed(
    contestants: dict[str, Callable[[], object]], seconds: float = 0.4, in_place: bool = True
) -> dict[str, Timing]:
    """In turns, on as many threads as the names end in."""
    return interleave(contestants, seconds, lambda name: torch.set_num_threads(int(name[-1])), in_place)


def row(
    dtype: torch.dtype, what: str, batch: int, n: int, times: dict[str, Timing], alone: dict[str, Timing]
) -> dict[str, Any]:
    ratios = {"torch/ours": torch_over_ours(times), "by itself": torch_over_ours(alone)}
    return {"type": str(dtype)[6:], "pass": what, "batch": batch, "n": n, **times, **ratios}


def torch_over_ours(times: dict[str, Timing]) -> float:
    """Torch on the better of one and two threads, over ours on two."""
    return min(times["torch 1"].median, times["torch 2"].median) / times["ours 2"].median
