"""A spectrum cut in two: the step function, and how far each eigenvalue lies from where it steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._execution import can_read, functorch_active
from .._transforms import Batched
from ..errors import first_index
from ..gradients.removed import call_site, warn_at
from ..gradients.spectrum import spectrum_scale
from .divided_differences import ScalarFunction

__all__ = ["Step", "distances"]


# In units of finfo.eps · max|λ|. However small the matrix, equal eigenvalues are computed up to 12 of them apart (by
# LAPACK at n = 3 to 8, in 10⁶ matrices; the kernels from n = 5): n alone would miss one tie of a hundred at n = 3.
_UNKNOWN = 16


@dataclass(frozen=True)
class Step(ScalarFunction):
    """1 for x > 0 and 0 for x < 0 (or the reverse, if it falls), of points that are not zero.

    f[x, y] is 0 on one side and ±1/(|x| + |y|) across the step; f[x, y, z] is 0 on one side, and the product of the two
    differences across the step otherwise. None of them knows the gaps between points of one side.
    """

    falling: bool = False

    def value(self, x: Tensor) -> Tensor:
        return (x < 0 if self.falling else x > 0).to(x.dtype)

    def first(self, x: Tensor, y: Tensor) -> Tensor:
        across = _across(x, y, 0.0)
        return -across if self.falling else across

    def second(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        positive = (x > 0).to(x.dtype) + (y > 0).to(x.dtype) + (z > 0).to(x.dtype)
        sign = (positive == 1).to(x.dtype) - (positive == 2).to(x.dtype)
        product = sign * _across(x, y, 1.0) * _across(y, z, 1.0) * _across(z, x, 1.0)
        return -product if self.falling else product


def _across(x: Tensor, y: Tensor, same: float) -> Tensor:
    """1/|x − y| where x and y are on different sides of zero, ``same`` where they are not."""
    return torch.where((x > 0) == (y > 0), same, 1.0 / (x.abs() + y.abs()))


def distances(function: str, what: str, values: Tensor, below: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    """How far values lie from the cut between two of them; and a warning where these two may be tied.

    Args:
        function, what: what the warning names: the caller, and what the values are.
        values: ascending, (..., n) with n > 0.
        below: how many of them are below the cut, (..., 1), from 0 to n.
        floor: the least gap that is not round-off, positive, (..., 1).

    Returns:
        The distances, (..., n), negative below the cut and positive above it, half of ``floor`` at least; and the cut,
        (..., 1), midway between its neighbours.
    """
    n = values.shape[-1]
    low = values.gather(-1, (below - 1).clamp(min=0))
    high = values.gather(-1, below.clamp(max=n - 1))
    doubt = floor + spectrum_scale(values) * (_UNKNOWN * torch.finfo(values.dtype).eps)
    _warn_if_tied(function, what, torch.where((below > 0) & (below < n), high - low, torch.inf), doubt)
    cut = low + (high - low) * 0.5
    above = torch.arange(n, device=values.device) >= below
    distance, least = values - cut, floor * 0.5
    return torch.where(above, torch.maximum(distance, least), torch.minimum(distance, -least)), cut


def _warn_if_tied(function: str, what: str, gap: Tensor, doubt: Tensor) -> None:
    """Say that a cut goes through a gap that may be a tie, where numbers can be looked at without waiting for them."""
    if gap.device.type != "cpu" or gap.numel() == 0 or torch.compiler.is_compiling():
        return
    if functorch_active():
        _Tied.apply(gap.detach(), doubt.detach(), function, what)  # type: ignore[no-untyped-call]
    elif can_read(gap):
        tied = (gap <= doubt)[..., 0]
        if tied.any():
            index = first_index(tied)
            where = f"batch element {index[0] if len(index) == 1 else index}" if index else "the matrix"
            message = (  # without numbers, which would make it a new one in every step of a training
                f"{function}: {where} of A has two {what}s that are equal to round-off, with the cut between them. The "
                "result is one of many there, and has no gradient; the one that is returned takes their gap for the "
                "smallest that is not round-off. "
                "warnings.simplefilter('ignore', eigengrad.GradientWarning) silences this."
            )
            site = call_site()
            assert site is not None  # nothing is traced here
            warn_at(site, message)


class _Tied(Batched):
    """The look as an autograd function: in its forward the numbers can be looked at even inside a transform."""

    @staticmethod
    def forward(gap: Tensor, doubt: Tensor, function: str, what: str) -> Any:
        _warn_if_tied(function, what, gap, doubt)
        return torch.empty_like(gap)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...
