"""Statistics over the processes of a group, differentiable."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from .._compat import as_trace_constant

__all__ = ["all_reduce_sum", "merge_moments", "warn_if_unsynchronised"]

_warned = False


@as_trace_constant
def warn_if_unsynchronised() -> None:
    """Warn, once in a process, that others train beside this one and a layer does not share its statistics with them.

    ``torch.nn.SyncBatchNorm.convert_sync_batchnorm``, which trainers call too, knows the batch norms of torch only, and
    passes over other layers without a word.
    """
    global _warned
    if _warned or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return
    _warned = True
    warnings.warn(
        f"a whitening layer trains on the statistics of one process out of {dist.get_world_size()}: "
        "SyncBatchNorm.convert_sync_batchnorm does not know it. To share them, pass process_group='world', or call "
        "eigengrad.nn.DecorrelatedBatchNorm2d.convert_sync_batchnorm(model); process_group='local' says that each "
        "process is meant to have its own, and silences this warning.",
        stacklevel=3,
    )


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


def merge_moments(mean: Tensor, covariance: Tensor, count: int, group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, covariance and count of the points of all processes, from those of each.

    Two collectives in float64, whatever each process computes in: counts with the sums, then covariances about the
    common mean, so that nothing cancels. The count stays on the device, since reading it would wait for it.

    Args:
        mean: (..., d, 1).
        covariance: (..., d, d).
        count: of the points of this process; mean and covariance are zero if it has none.
        group: the processes.

    Returns:
        The same of all of them; the count is a float64 tensor ().
    """
    wide = mean.double()
    packed = all_reduce_sum(torch.cat([(wide * count).flatten(), wide.new_full((1,), float(count))]), group)
    total = packed[-1].detach()
    points = total.clamp(min=1)
    common = packed[:-1].view_as(wide) / points
    offset = wide - common
    merged = all_reduce_sum((covariance.double() + offset @ offset.mT) * (count / points), group)
    return common.to(mean.dtype), merged.to(covariance.dtype), total
