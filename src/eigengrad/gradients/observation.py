"""What a rule makes of a derivative, shown to those who want to see it: monitors, and whoever is to be warned."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from .._execution import can_read
from .._transforms import Batched
from .removed import is_attributed, warn_incomplete, warn_removed
from .spectrum import pair_gaps, round_off, spectrum_scale, spread

__all__ = [
    "TOGETHER",
    "Observer",
    "account",
    "exact_and_removed",
    "exact_bracket",
    "norm",
    "observe_exact",
    "observe_kept",
    "observe_pairs",
    "observe_pass",
    "observers",
]

#: The share of the largest entries of Vᴴ gV from which on its Hermitian part is more than chance.
TOGETHER = 2.0**-10


class Observer(Protocol):
    """Somebody who wants to see what rules make of derivatives."""

    def observe_pairs(self, eigenvalues: Tensor, numerators: Tensor, R: Tensor) -> None:
        """R of one derivative, (..., n, n), and what it multiplies."""

    def observe_pass(self, exact: Tensor, removed: Tensor) -> None:
        """The norms of an exact gradient and of what a rule removed of it, (...)."""

    def observe_kept(self, kept: Tensor) -> None:
        """Which eigenvectors a rule kept that drops some, boolean (..., n)."""


#: The observers at work: :class:`eigengrad.GradientMonitor` enters and leaves here.
observers: list[Observer] = []


def account(rule: object, L: Tensor, X: Tensor, gL: Tensor | None, numerators: Tensor, R: Tensor) -> None:
    """Show a backward pass to the observers, or warn where it does not have most of the gradient.

    Args:
        rule: filled R.
        L: ascending eigenvalues (or singular values), (..., n).
        X: Vᴴ gV, (..., n, n).
        gL: the gradient of the values, if there is one.
        numerators: what R multiplies, the skew part of X.
        R: in place of 1/|λ_i − λ_j|.
    """
    if observers:  # who have the numbers, and do not wait for the device
        observe_pairs(L, numerators, R)
        return
    if not is_attributed() or L.device.type != "cpu" or L.numel() == 0 or not can_read(L, numerators, R):
        return
    # R times the gap is smallest beside the diagonal: nine of ten passes end here.
    if not (R.diagonal(offset=1, dim1=-2, dim2=-1) * L.diff(dim=-1)).amin().item() <= 0.5:
        return
    exact, removed = exact_and_removed(L, numerators, R)
    if (removed > 0.5 * exact).any():
        warn_removed(rule)
    if gL is not None and is_incomplete(L, X, gL, numerators).any():
        warn_incomplete()


@torch.no_grad()
def is_incomplete(L: Tensor, X: Tensor, gL: Tensor, skew: Tensor) -> Tensor:
    """Where equal values and their vectors enter the loss together, boolean (..., n, n).

    For V f(λ) Vᴴ and its gradient G, X is 2 Ĝ_ij f(λ_j) with Ĝ = Vᴴ G V, and gλ is Ĝ_ii f′(λ_i). Between the vectors of
    a tied pair the gradient is Ĝ_ij f′(λ), of which the skew part of X has nothing, and f′ is not known. So there is
    something missing, unless f′ = 0, if X + Xᴴ is not zero there.
    """
    tied = torch.triu((pair_gaps(L) <= 16 * round_off(L).unsqueeze(-1)) & (skew == 0), 1)
    sizes, used = X.abs().amax(-2), gL != 0
    together = (X + X.mH).abs() > TOGETHER * (sizes.unsqueeze(-1) + sizes.unsqueeze(-2))
    return tied & together & (used.unsqueeze(-1) | used.unsqueeze(-2))


@torch.no_grad()
def exact_and_removed(L: Tensor, numerators: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """The norms, in float64, of the exact derivative and of what R removed of it, (...), in units of 1/spread.

    A rule that exceeds the exact reciprocal has removed nothing.
    """
    numerators, unit = torch.triu(numerators, 1), spread(L).unsqueeze(-1)
    inverse = 1.0 / _known_gaps(L)
    return norm(numerators * (unit * inverse)), norm(numerators * (unit * (inverse - R).clamp(min=0)))


def exact_bracket(L: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """½ (X − Xᴴ)_ij/(λ_j − λ_i) in units of 1/spread, Hermitian (..., n, n), and the spread, (..., 1, 1)."""
    unit = spread(L).unsqueeze(-1)
    upper = torch.triu(skew * (unit / _known_gaps(L)), 1)
    return upper + upper.mH, unit


def _known_gaps(L: Tensor) -> Tensor:
    """|λ_i − λ_j|, and no less than the accuracy of the eigenvalues: 1/gap is large at a tie, but not infinite."""
    return torch.maximum(pair_gaps(L), spectrum_scale(L).unsqueeze(-1) * torch.finfo(L.dtype).eps)


def norm(X: Tensor) -> Tensor:
    """Frobenius norm in float64, where no square of a float32 overflows: (..., n, n) to (...)."""
    size: Tensor = X.abs().double().square().sum((-2, -1)).sqrt()
    return size


def observe_pass(exact: Tensor, removed: Tensor) -> None:
    """Show the norms of an exact gradient and of what was removed of it to the observers, (...)."""
    if observers and not torch.compiler.is_compiling():
        _PassObservation.apply(exact, removed)  # type: ignore[no-untyped-call]


def observe_kept(kept: Tensor) -> None:
    """Show which eigenvectors were kept, boolean (..., n), to the observers."""
    if observers and not torch.compiler.is_compiling():
        _KeptObservation.apply(kept.detach())  # type: ignore[no-untyped-call]


def observe_exact(gradient: Tensor) -> None:
    """Show to the observers that matrices (..., n, n) had their exact gradient."""
    if observers and not torch.compiler.is_compiling():
        exact = torch.ones(gradient.shape[:-2], dtype=torch.float64, device=gradient.device)
        _PassObservation.apply(exact, torch.zeros_like(exact))  # type: ignore[no-untyped-call]


def observe_pairs(L: Tensor, numerators: Tensor, R: Tensor) -> None:
    """Show R to the observers."""
    if observers and not torch.compiler.is_compiling():
        _Observation.apply(L.detach(), numerators.detach(), R.detach())  # type: ignore[no-untyped-call]


class _Observation(Batched):
    """The observers' look, as an autograd function: its forward sees plain tensors even inside a transform."""

    @staticmethod
    def forward(L: Tensor, numerators: Tensor, R: Tensor) -> Any:
        for observer in observers:
            observer.observe_pairs(L, numerators, R)
        return torch.empty_like(R)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...


class _PassObservation(Batched):
    """Hand the norms of a backward pass to the observers: of the exact gradient, and of what was removed of it."""

    @staticmethod
    def forward(exact: Tensor, removed: Tensor) -> Any:
        for observer in observers:
            observer.observe_pass(exact, removed)
        return torch.empty_like(exact)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...


class _KeptObservation(Batched):
    """Hand the kept eigenvectors of a backward pass to the observers."""

    @staticmethod
    def forward(kept: Tensor) -> Any:
        for observer in observers:
            observer.observe_kept(kept)
        return torch.empty_like(kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...
