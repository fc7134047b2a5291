"""Statistics over the processes of a group, differentiable."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

__all__ = ["all_reduce_sum", "merge_moments"]


def all_reduce_sum(x: Tensor, group: Any) -> Tensor:
    """The sum of ``x`` over the group, in every process; gradients are summed on the way back."""
    total: Tensor = _AllReduceSum.apply(x, group)  # type: ignore[no-untyped-call]
    return total


class _AllReduceSum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Any:
        ctx.group = group
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return all_reduce_sum(g, ctx.group), None


def merge_moments(mean: Tensor, covariance: Tensor, count: int, group: Any) -> tuple[Tensor, Tensor, int]:
    """Mean, covariance and count of the points of all processes, from those of each.

    Means first, then covariances about the common mean, so that nothing cancels. mean: (..., d, 1), covariance:
    (..., d, d).
    """
    counts = torch.tensor([float(count)], dtype=torch.float64, device=mean.device)
    dist.all_reduce(counts, group=group)
    total = int(counts.item())
    share = count / max(total, 1)
    common = all_reduce_sum(mean * share, group)
    offset = mean - common
    return common, all_reduce_sum((covariance + offset @ offset.mT) * share, group), total
