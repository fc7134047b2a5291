"""Second-order pooling, against the same in plain torch around ``torch.linalg.eigh`` and against Newton–Schulz."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigengrad.nn.second_order_pool import second_order_pool
from harness import interleave, write

SHAPES = [(32, 256, 13, 13), (32, 256, 28, 28)]
EPS = 1e-2
MOST_STEPS = 40
TEXT = """Forward + backward, float32, output "triu", eps = 0.01; median time of the contestants taking turns.

- *torch*: covariance, `torch.linalg.eigh`, V √λ Vᵀ and the upper triangle in plain torch, differentiated by autograd.
- *pool*: `second_order_pool(x)`. With fewer positions than channels it decomposes the smaller Gram matrix.
- *Newton–Schulz*: iSQRT-COV with as many steps as bring value and gradient within the error of *pool*, or, if float32
  does not let it get there, with the fewest steps after which neither improves; *5 steps* is what its paper uses.
- *error*: of value and of gradient (which autograd through `torch.linalg.eigh` loses where the eigenvalues are tied),
  relative to the same in float64.
- *eigh alone*: `torch.linalg.eigh` of the covariance matrices, forward only, nothing else; *eigh share*: its part of
  *torch*, and what no gradient can save.
- *GEMM share*: products per second of *pool* (2 flops each, the decomposition not counted as products) over those of
  one 2048×2048 matrix product on as many threads."""


def run(threads: list[int]) -> Path:
    rows = [measure(shape, count) for count in threads for shape in SHAPES]
    columns = ["threads", "shape", "torch", "pool", "torch/pool", "eigh alone", "eigh share", "NS steps"]
    columns += ["Newton–Schulz", "Newton–Schulz/pool", "NS 5 steps", "pool error", "NS error", "NS 5 error"]
    columns += ["torch error", "GEMM Gflop/s", "GEMM share"]
    return write("pooling", TEXT, columns, rows)


def measure(shape: tuple[int, ...], threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    x, G = data(shape)
    truth = value_and_gradient(exact, x.double(), G.double())
    errors = {"pool": error(exact, x, G, truth), "torch": error(composed, x, G, truth)}
    steps, errors["NS"] = equal_accuracy(x, G, truth, errors["pool"])
    errors["NS 5"] = error(newton(5), x, G, truth)
    del truth
    centred = x.flatten(2) - x.flatten(2).mean(-1, keepdim=True)
    A = centred @ centred.mT / centred.shape[-1] + EPS * torch.eye(shape[1])
    square = torch.randn(2048, 2048)
    times = interleave(
        {
            "torch": both_passes(composed, x, G),
            "pool": both_passes(exact, x, G),
            "Newton–Schulz": both_passes(newton(steps), x, G),
            "NS 5 steps": both_passes(newton(5), x, G),
            "eigh alone": lambda: torch.linalg.eigh(A),
            "GEMM": lambda: square @ square,
        }
    )
    median = {name: timing.median for name, timing in times.items()}
    peak = 2 * 2048**3 / median["GEMM"] / 1e3
    return {
        "threads": threads,
        "shape": "×".join(map(str, shape)),
        **times,
        "torch/pool": median["torch"] / median["pool"],
        "eigh share": median["eigh alone"] / median["torch"],
        "NS steps": steps,
        "Newton–Schulz/pool": median["Newton–Schulz"] / median["pool"],
        **{f"{name} error": " / ".join(f"{part:.1e}" for part in parts) for name, parts in errors.items()},
        "GEMM Gflop/s": peak,
        "GEMM share": flops(shape) / median["pool"] / 1e3 / peak,
    }


def data(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Correlated features after a ReLU, as a network has them, and a gradient to bring back."""
    torch.manual_seed(0)
    n, c, h, w = shape
    mix = torch.randn(c, c) * torch.logspace(0, -2, c) / c**0.5
    x = torch.einsum("ij,njhw->nihw", mix, torch.randn(n, c, h, w)).mul(4).relu()
    return x, torch.randn(n, c * (c + 1) // 2)


def exact(x: Tensor) -> Tensor:
    return second_order_pool(x, eps=EPS)


def newton(steps: int) -> Callable[[Tensor], Tensor]:
    return lambda x: second_order_pool(x, method="isqrt_cov", eps=EPS, steps=steps)


def composed(x: Tensor) -> Tensor:
    points = x.flatten(2)
    centred = points - points.mean(-1, keepdim=True)
    d = points.shape[1]
    L, V = torch.linalg.eigh(centred @ centred.mT / points.shape[-1] + EPS * torch.eye(d, dtype=x.dtype))
    S = (V * L.clamp(min=EPS).sqrt().unsqueeze(-2)) @ V.mT
    row, column = torch.triu_indices(d, d)
    return S.flatten(1).index_select(1, row * d + column)


def both_passes(function: Callable[[Tensor], Tensor], x: Tensor, G: Tensor) -> Callable[[], object]:
    return lambda: value_and_gradient(function, x, G)


def value_and_gradient(function: Callable[[Tensor], Tensor], x: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y, x, G)[0]


def error(
    function: Callable[[Tensor], Tensor], x: Tensor, G: Tensor, truth: tuple[Tensor, Tensor]
) -> tuple[float, float]:
    """Relative error of value and gradient, in the norm over the batch."""
    pairs = zip(value_and_gradient(function, x, G), truth, strict=True)
    value, gradient = (float((got.double() - true).norm() / true.norm()) for got, true in pairs)
    return value, gradient


def equal_accuracy(
    x: Tensor, G: Tensor, truth: tuple[Tensor, Tensor], wanted: tuple[float, float]
) -> tuple[int, tuple[float, float]]:
    """The fewest steps of Newton–Schulz with errors of at most ``wanted``, or after which they no longer fall."""
    best = (float("inf"), float("inf"))
    for steps in range(5, MOST_STEPS):
        now = error(newton(steps), x, G, truth)
        if now[0] <= wanted[0] and now[1] <= wanted[1]:
            return steps, now
        if now[0] > 0.9 * best[0] and now[1] > 0.9 * best[1]:
            return steps - 1, best
        best = now
    return MOST_STEPS, best


def flops(shape: tuple[int, ...]) -> float:
    """Of the matrix products in one forward and backward pass of :func:`exact`."""
    n, c, h, w = shape
    m = h * w
    if m < c:  # Gram and its gradient, k(G) and its four, Y = X k and its two, Y Yᵀ and its one
        return 2.0 * n * (2 * m * m * c + 5 * m**3 + 3 * m * m * c + 2 * m * c * c)
    return 2.0 * n * (2 * c * c * m + 5 * c**3)
