"""What a gradient rule is, and the backward and forward mode of ``eigh`` that every rule shares.

With A = V diag(λ) Vᴴ, X = Vᴴ gV and R standing for 1/(λ_j − λ_i) with zero diagonal,

    backward        gA = V [ ½ (X − Xᴴ) ∘ R + diag(gλ) ] Vᴴ
    forward mode    dV = V (R ∘ Vᴴ dA V),   dλ = diag(Vᴴ dA V).

Eigenvalues ascend, so R is positive above the diagonal and antisymmetric. A rule therefore only says what
|R_ij| is for a pair; the sign comes from the order of the indices, here, and so is right at a tie as well. Both
formulas use the same R, which makes them adjoint to each other whatever the rule.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from .. import kernels
from .._inputs import detached, is_concrete, matmul
from .._transforms import Batched, no_gradient
from ..kernels import backward
from .removed import is_attributed, warn_removed

__all__ = [
    "GradientRule",
    "Observer",
    "PairRule",
    "account",
    "exact_and_removed",
    "exact_bracket",
    "norm",
    "observe_pairs",
    "observe_pass",
    "observers",
    "pair_gaps",
    "round_off",
    "skew_part",
    "spectrum_scale",
    "spread",
]


class GradientRule(ABC):
    """How ``eigh`` is differentiated. Rules are immutable and compare by value."""

    @abstractmethod
    def pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
        """gA (..., n, n) from the gradients of the eigenvalues (..., n) and eigenvectors (..., n, n)."""

    @abstractmethod
    def pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        """(dL, dV) for a change dA: the adjoint of :meth:`pullback`."""


class PairRule(GradientRule):
    """A rule that fills R pair by pair: all of them but power iteration."""

    _kernel_fits: ClassVar[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        """See whether the class has a kernel of its own: that of a class whose methods it replaces has another R."""
        super().__init_subclass__(**options)
        methods = (c for c in cls.__mro__ if any(callable(v) for k, v in vars(c).items() if not k.startswith("__")))
        cls._kernel_fits = "kernel" in vars(next(methods))

    @abstractmethod
    def reciprocal(self, eigenvalues: Tensor, gaps: Tensor | None = None) -> Tensor:
        """What takes the place of 1/|λ_i − λ_j|.

        Args:
            eigenvalues: ascending, (..., n).
            gaps: |λ_i − λ_j|, (..., n, n), from a caller who knows them more accurately than the eigenvalues tell
                (``svd`` has σ_i² − σ_j² as a product).

        Returns:
            Non-negative, symmetric (..., n, n). What stands on the diagonal is not used, but must be finite.
        """

    def kernel(self) -> tuple[kernels.Rule, float, float] | None:
        """The compiled kernel that fills this rule's R, and its two parameters, if there is one."""
        return None

    def bracket(self, L: Tensor, X: Tensor, gL: Tensor | None) -> Tensor:
        """½ (X − Xᴴ) ∘ R + diag(gλ), Hermitian (..., n, n)."""
        skew, R = skew_part(X, X.abs().amax(-2)), self.reciprocal(L)
        account(self, L, skew, R)
        upper = torch.triu(skew * R, 1)
        bracket = upper + upper.mH
        return bracket if gL is None else bracket + torch.diag_embed(gL).to(bracket.dtype)

    def pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
        if gV is None or L.size(-1) < 2:
            if gL is None:
                return torch.zeros_like(V) if gV is None else no_gradient(V, gV)
            return matmul(V * gL.unsqueeze(-2), V.mH)
        kernel = self.kernel() if self._kernel_fits else None
        if kernel is not None and not observers and kernels.usable(V, gL, gV):
            gA, much_removed = backward.rule_pullback(*kernel, L, V, gL, gV)
            if much_removed:
                warn_removed(self)
            return gA
        Vh = V.mH
        return matmul(matmul(V, self.bracket(L, matmul(Vh, gV), gL)), Vh)

    def pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        Y = V.mH @ dA @ V
        Y = (Y + Y.mH) * 0.5
        dL = torch.diagonal(Y, dim1=-2, dim2=-1).real.clone()
        if L.shape[-1] < 2:
            return dL, torch.zeros_like(V)
        R = self.reciprocal(L)
        observe_pairs(L, Y, R)
        upper = torch.triu(Y * R, 1)
        return dL, V @ (upper - upper.mH)


def skew_part(X: Tensor, sizes: Tensor) -> Tensor:
    """½ (X − Xᴴ), (..., n, n), with zeros where nothing is left of X but round-off.

    A loss that does not depend on the basis of a tied space has X = Xᴴ there. What round-off leaves of the difference
    says nothing, but R would make it as large as the gradient itself. It is subtracted as a constant, so that
    derivatives of the difference remain what they are.

    Args:
        X: Vᴴ gV.
        sizes: of the columns of gV, (..., n): the largest absolute value in each.
    """
    difference = X - X.mH
    noise = (sizes.unsqueeze(-1) + sizes.unsqueeze(-2)) * noise_level(X)
    nothing = torch.where(difference.abs() <= noise, difference, torch.zeros_like(difference))
    return (difference - detached(nothing)) * 0.5


def noise_level(X: Tensor) -> float:
    """Round-off in a product of n × n matrices, relative to the factors: 2 √n finfo.eps."""
    return 2 * math.sqrt(X.shape[-1]) * torch.finfo(X.dtype).eps


class Observer(Protocol):
    """Somebody who wants to see what rules make of derivatives."""

    def observe_pairs(self, eigenvalues: Tensor, numerators: Tensor, R: Tensor) -> None:
        """R of one derivative, (..., n, n), and what it multiplies."""

    def observe_pass(self, exact: Tensor, removed: Tensor) -> None:
        """The norms of an exact gradient and of what a rule removed of it, (...)."""


#: The observers at work: :class:`eigengrad.GradientMonitor` enters and leaves here.
observers: list[Observer] = []


def account(rule: PairRule, L: Tensor, numerators: Tensor, R: Tensor) -> None:
    """Show a backward pass to the observers, or warn where the rule removed more than half of a gradient.

    Args:
        rule: filled R.
        L: ascending eigenvalues (or singular values), (..., n).
        numerators: what R multiplies, (..., n, n).
        R: in place of 1/|λ_i − λ_j|.
    """
    if observers:  # who have the numbers, and do not wait for the device
        observe_pairs(L, numerators, R)
        return
    if not is_attributed() or not L.is_cpu or L.numel() == 0 or not is_concrete(L, numerators, R):
        return
    # R times the gap is smallest beside the diagonal: nine of ten passes end here.
    if not (R.diagonal(offset=1, dim1=-2, dim2=-1) * L.diff(dim=-1)).amin().item() <= 0.5:
        return
    exact, removed = exact_and_removed(L, numerators, R)
    if (removed > 0.5 * exact).any():
        warn_removed(rule)


@torch.no_grad()
def exact_and_removed(L: Tensor, numerators: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    """The norms, in float64, of the exact derivative and of what R removed of it, (...), in units of 1/spread.

    A rule that exceeds the exact reciprocal has removed nothing.
    """
    numerators, unit = torch.triu(numerators, 1), spread(L).unsqueeze(-1)
    inverse = 1.0 / _known_gaps(L)
    return norm(numerators * (unit * inverse)), norm(numerators * (unit * (inverse - R).clamp(min=0)))


def exact_bracket(L: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """½ (X − Xᴴ)_ij/(λ_j − λ_i) in units of 1/spread, Hermitian (..., n, n), and the spread, (..., 1, 1)."""
    unit = spread(L).unsqueeze(-1)
    upper = torch.triu(skew_part(X, X.abs().amax(-2)) * (unit / _known_gaps(L)), 1)
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
    """The same for norms."""

    @staticmethod
    def forward(exact: Tensor, removed: Tensor) -> Any:
        for observer in observers:
            observer.observe_pass(exact, removed)
        return torch.empty_like(exact)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...


def pair_gaps(L: Tensor) -> Tensor:
    """|λ_i − λ_j| for every pair: (..., n) to (..., n, n). Exact for close eigenvalues, which is where it matters."""
    return (L.unsqueeze(-2) - L.unsqueeze(-1)).abs()


def spectrum_scale(eigenvalues: Tensor) -> Tensor:
    """max |λ|, (..., 1): what tolerances are relative to. The zero matrix has no scale and counts as 1."""
    scale = eigenvalues.abs().amax(-1, keepdim=True)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def spread(eigenvalues: Tensor) -> Tensor:
    """λ_max − λ_min of ascending eigenvalues, (..., 1): what gaps are relative to, for it does not feel a shift.

    Where all eigenvalues are equal to round-off, max|λ| takes its place.
    """
    difference = eigenvalues[..., -1:] - eigenvalues[..., :1]
    return torch.where(difference > round_off(eigenvalues), difference, spectrum_scale(eigenvalues))


def round_off(eigenvalues: Tensor) -> Tensor:
    """n · finfo.eps · max|λ|, (..., 1): how accurately the eigenvalues of a matrix are known."""
    return spectrum_scale(eigenvalues) * (eigenvalues.shape[-1] * torch.finfo(eigenvalues.dtype).eps)
