"""Statistics of normalisation layers over the joined batch of all processes."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...nn.distributed import all_reduce_sum
from ...nn.whitening_norm import WhiteningNorm
from ...precision import widen

__all__ = ["SynchronisedBatchNorm2d", "synchronise"]


def synchronise(model: nn.Module, device: torch.device) -> nn.Module:
    """Let every normalisation of the model see the batch of all processes. To be called before the optimiser is made.

    The library's layers do it themselves when told to. Batch norms become ``nn.SyncBatchNorm`` on a GPU and
    :class:`SynchronisedBatchNorm2d` elsewhere, where torch has none.
    """
    for module in model.modules():
        if isinstance(module, WhiteningNorm):
            module.process_group = "world"
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return converted
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.BatchNorm2d:
                setattr(parent, name, SynchronisedBatchNorm2d.like(child))
    return model


class SynchronisedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with the statistics of all processes, for devices on which ``nn.SyncBatchNorm`` does not run."""

    @classmethod
    def like(cls, norm: nn.BatchNorm2d) -> SynchronisedBatchNorm2d:
        """A layer with the parameters and statistics of a batch norm."""
        layer = cls(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        layer.load_state_dict(deepcopy(norm.state_dict()), assign=True)  # in their own type, on their own device
        return layer.train(norm.training)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised features, of the shape of ``x``: (N, C, H, W)."""
        if not (self.training and dist.is_initialized()):
            return super().forward(x)
        wide = widen(x)
        sums = torch.cat([wide.sum((0, 2, 3)), wide.new_tensor([x.numel() / x.shape[1]])])
        sums = all_reduce_sum(sums, dist.group.WORLD)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = wide - mean.view(1, -1, 1, 1)  # about the common mean, so that nothing cancels
        variance = all_reduce_sum((centred * centred).sum((0, 2, 3)), dist.group.WORLD) / count
        self._track(mean.detach(), variance.detach() * (count / (count - 1)))
        scale = (variance + self.eps).rsqrt()
        if self.affine:
            scale = scale * self.weight
        y = centred * scale.view(1, -1, 1, 1)
        return (y + self.bias.view(1, -1, 1, 1) if self.affine else y).to(x.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked: Any
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)
