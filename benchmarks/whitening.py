"""The whitening layer, forward + backward, against batch norm and against the same layer in plain torch operations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigengrad.nn import DecorrelatedBatchNorm2d, IterativeNorm
from harness import interleave, write

SHAPES = [(128, 64, 32, 32), (8, 64, 16, 16)]
GROUP_SIZES = [4, 8, 16, 32, 64]
TEXT = """`DecorrelatedBatchNorm2d(64, group_size=d)` in training, forward + backward, float32; ratios of medians to
`nn.BatchNorm2d` measured in turns with it, each call straight after a matrix product of torch. *plain*: the same layer
written around `torch.linalg.eigh`. *limit*: the time that the passes over memory and the products would take at this
machine's bandwidth and matrix-product rate, both measured in the same run, as a share of the layer's time."""


def run(threads: list[int]) -> Path:
    rows = []
    for count in threads:
        torch.set_num_threads(count)
        bandwidth, rate = limits()
        for shape in SHAPES:
            for channels_last in (False, True):
                rows += measure(shape, channels_last, count, bandwidth, rate)
    columns = ["threads", "shape", "layout", "d", "batch norm", "ours", "ours/batch norm", "plain/ours", "limit"]
    return write("whitening", TEXT, [*columns, "IterNorm/batch norm"], rows)


def measure(
    shape: tuple[int, ...], channels_last: bool, threads: int, bandwidth: float, rate: float
) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(shape).contiguous(memory_format=layout).requires_grad_()
    gy = torch.randn(shape).contiguous(memory_format=layout)

    def both(layer: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def call() -> None:
            layer(x).backward(gy)
            x.grad = None

        return call

    ours_and_norm: dict[str, Callable[[Tensor], Tensor]] = {"batch norm": nn.BatchNorm2d(shape[1])}
    others: dict[str, Callable[[Tensor], Tensor]] = {}
    for d in GROUP_SIZES:
        ours_and_norm[f"ours {d}"] = DecorrelatedBatchNorm2d(shape[1], group_size=d)
        others[f"plain {d}"] = Plain(shape[1], d)
        others[f"IterNorm {d}"] = IterativeNorm(shape[1], group_size=d)
    # The close race has many rounds; those that take ten times as long have a few of their own, with ours again.
    times = interleave({name: both(layer) for name, layer in ours_and_norm.items()}, seconds=2.0)
    longer = interleave({name: both(layer) for name, layer in (ours_and_norm | others).items()}, seconds=0.4)
    rows = []
    for d in GROUP_SIZES:
        ours = times[f"ours {d}"]
        bound = 7 * x.numel() * 4 / bandwidth + 10 * x.numel() * d / rate  # reads and writes of maps; multiply-adds
        rows.append(
            {
                "threads": threads,
                "shape": "×".join(map(str, shape)),
                "layout": "channels_last" if channels_last else "NCHW",
                "d": d,
                "batch norm": times["batch norm"],
                "ours": ours,
                "ours/batch norm": ours.median / times["batch norm"].median,
                "plain/ours": longer[f"plain {d}"].median / longer[f"ours {d}"].median,
                "limit": bound * 1e6 / ours.median,
                "IterNorm/batch norm": longer[f"IterNorm {d}"].median / longer["batch norm"].median,
            }
        )
    return rows


def limits() -> tuple[float, float]:
    """Bytes per second of a large copy, and multiply-adds (counted as two) per second of a large product."""
    a, b = torch.randn(64, 1 << 20), torch.empty(64, 1 << 20)
    m = torch.randn(1024, 1024)
    times = interleave({"copy": lambda: b.copy_(a), "product": lambda: m @ m})
    return 2 * a.numel() * 4 / (times["copy"].minimum * 1e-6), 2 * 1024**3 / (times["product"].minimum * 1e-6)


class Plain(nn.Module):
    """The layer as it is usually written."""

    def __init__(self, channels: int, group_size: int, eps: float = 1e-2) -> None:
        super().__init__()
        self.group_size, self.eps = group_size, eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """γ (M + εI)^(−½) (x − μ) + β."""
        d = self.group_size
        points = x.transpose(0, 1).reshape(x.shape[1] // d, d, -1)
        points = points - points.mean(-1, keepdim=True)
        M = points @ points.mT / points.shape[-1] + self.eps * torch.eye(d)
        L, V = torch.linalg.eigh(M)
        S = (V * L.clamp(min=self.eps).rsqrt().unsqueeze(-2)) @ V.mT
        y = (S @ points).reshape(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
        return y * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
