"""IterNorm: whitening by Newton–Schulz iterations, the baseline of decorrelated batch norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..arguments import require_integer
from ..matrix_functions import newton_schulz_inv_sqrt
from .whitening_norm import WhiteningNorm

__all__ = ["IterativeNorm"]


class IterativeNorm(WhiteningNorm):
    """Iterative normalisation: :class:`DecorrelatedBatchNorm2d` with an approximate whitening matrix.

    S is what ``steps`` Newton–Schulz iterations make of the covariance, normalised by its trace; directions of small
    variance are whitened in part only. Input (N, C, *spatial), of any dimension.

    Args:
        num_features, eps, momentum, affine, track_running_stats, bias, group_size, num_groups, process_group: as there.
        steps: T, iterations. The paper of IterNorm uses 5.

    >>> import torch
    >>> from eigengrad.nn import IterativeNorm
    >>> IterativeNorm(8, group_size=4, steps=5)(torch.randn(16, 8, 5, 5)).shape
    torch.Size([16, 8, 5, 5])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        steps: int = 5,
        group_size: int | None = None,
        num_groups: int | None = None,
        process_group: Any = None,
    ) -> None:
        require_integer("IterativeNorm", "steps", steps, minimum=1)
        self.steps = steps
        super().__init__(
            num_features,
            eps,
            momentum,
            affine,
            track_running_stats,
            device,
            dtype,
            bias=bias,
            group_size=group_size,
            num_groups=num_groups,
            process_group=process_group,
        )

    def whitening_matrices(self, covariance: Tensor) -> Tensor:
        """S by Newton–Schulz iterations."""
        return newton_schulz_inv_sqrt(covariance, self.steps, eps=self.eps)

    def _recipe(self) -> tuple[Any, ...]:
        return self.eps, self.steps

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"{super().extra_repr()}, steps={self.steps}"
