"""IterNorm: whitening by Newton–Schulz iterations, the baseline of decorrelated batch norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..arguments import require_integer
from ..errors import unknown_choice
from ..matrix_functions import newton_schulz_inv_sqrt, pade_inv_sqrt, taylor_inv_sqrt
from .whitening_norm import WhiteningNorm

__all__ = ["IterativeNorm"]

#: Approximate inverse square roots, by name.
METHODS: dict[str, Callable[..., Tensor]] = {
    "newton_schulz": newton_schulz_inv_sqrt,
    "pade": pade_inv_sqrt,
    "taylor": taylor_inv_sqrt,
}


class IterativeNorm(WhiteningNorm):
    """Iterative normalisation: :class:`DecorrelatedBatchNorm2d` with an approximate whitening matrix.

    S is what ``steps`` Newton–Schulz iterations make of the covariance, normalised by its trace; directions of small
    variance are whitened in part only. Input (N, C, *spatial), of any dimension.

    Args:
        num_features, eps, momentum, affine, track_running_stats, bias, group_size, num_groups, average,
            process_group: as there.
        steps: T, iterations. The paper of IterNorm uses 5. For the other methods, the degree. ``None`` is 5, and 10 for
            "taylor", as their authors have them.
        method: "newton_schulz" (IterNorm), "pade" (MPA: :func:`eigengrad.pade_inv_sqrt`) or "taylor" (MTP:
            :func:`eigengrad.taylor_inv_sqrt`).

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
        steps: int | None = None,
        method: str = "newton_schulz",
        group_size: int | None = None,
        num_groups: int | None = None,
        average: str = "covariance",
        process_group: Any = None,
    ) -> None:
        if method not in METHODS:
            raise unknown_choice("method", method, METHODS)
        if steps is None:
            steps = 10 if method == "taylor" else 5
        require_integer("IterativeNorm", "steps", steps, minimum=1)
        self.steps, self.method = steps, method
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
            average=average,
            process_group=process_group,
        )

    def whitening_matrices(self, covariance: Tensor) -> Tensor:
        """S by the method's iterations or approximant."""
        return METHODS[self.method](covariance, self.steps, eps=self.eps)

    def _recipe(self) -> tuple[Any, ...]:
        return self.eps, self.steps, self.method

    def _iterated_eps(self) -> float:
        return self.eps

    def extra_repr(self) -> str:
        """The constructor's arguments."""
        return f"{super().extra_repr()}, steps={self.steps}, method={self.method}"
