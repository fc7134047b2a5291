"""What a gradient rule is, and the backward and forward mode of ``eigh`` that every rule shares.

With A = V diag(λ) Vᴴ, X = Vᴴ gV and R standing for 1/(λ_j − λ_i) with zero diagonal,

    backward        gA = V [ ½ (X − Xᴴ) ∘ R + diag(gλ) ] Vᴴ
    forward mode    dV = V (R ∘ Vᴴ dA V),   dλ = diag(Vᴴ dA V).

Eigenvalues ascend, so R is positive above the diagonal and antisymmetric. A rule therefore only says what
|R_ij| is for a pair; the sign comes from the order of the indices, here, and so is right at a tie as well. Both
formulas use the same R, which makes them adjoint to each other whatever the rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from .. import kernels
from .._inputs import matmul
from .._transforms import Batched, no_gradient
from ..kernels import backward

__all__ = ["GradientRule", "Observer", "PairRule", "observed_reciprocal", "observers", "pair_gaps", "spectrum_scale"]


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

    def outside(self, eigenvalues: Tensor) -> Tensor:
        """What takes the place of 1/λ_i: the gap to the eigenvalue 0 of all that is orthogonal to a thin ``svd``.

        Non-negative eigenvalues, ascending, (..., n), to (..., n).
        """
        extended = torch.cat([torch.zeros_like(eigenvalues[..., :1]), eigenvalues], -1)
        return self.reciprocal(extended)[..., 0, 1:]

    def kernel(self) -> tuple[kernels.Rule, float, float] | None:
        """The compiled kernel that fills this rule's R, and its two parameters, if there is one."""
        return None

    def bracket(self, L: Tensor, X: Tensor, gL: Tensor | None) -> Tensor:
        """½ (X − Xᴴ) ∘ R + diag(gλ), Hermitian (..., n, n)."""
        upper = torch.triu((X - X.mH) * (0.5 * observed_reciprocal(self, L)), 1)
        bracket = upper + upper.mH
        return bracket if gL is None else bracket + torch.diag_embed(gL).to(bracket.dtype)

    def pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
        if gV is None or L.size(-1) < 2:
            if gL is None:
                return torch.zeros_like(V) if gV is None else no_gradient(V, gV)
            return matmul(V * gL.unsqueeze(-2), V.mH)
        kernel = self.kernel() if self._kernel_fits else None
        if kernel is not None and not observers and kernels.usable(V, gL, gV):
            return backward.rule_pullback(*kernel, L, V, gL, gV)
        Vh = V.mH
        return matmul(matmul(V, self.bracket(L, matmul(Vh, gV), gL)), Vh)

    def pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        Y = V.mH @ dA @ V
        Y = (Y + Y.mH) * 0.5
        dL = torch.diagonal(Y, dim1=-2, dim2=-1).real.clone()
        if L.shape[-1] < 2:
            return dL, torch.zeros_like(V)
        upper = torch.triu(Y * observed_reciprocal(self, L), 1)
        return dL, V @ (upper - upper.mH)


class Observer(Protocol):
    """Somebody who wants to see each R that a derivative uses."""

    def observe(self, eigenvalues: Tensor, gaps: Tensor, R: Tensor) -> None: ...


#: The observers at work: :class:`eigengrad.GradientMonitor` enters and leaves here.
observers: list[Observer] = []


def observed_reciprocal(rule: PairRule, eigenvalues: Tensor, gaps: Tensor | None = None) -> Tensor:
    """The rule's answer, shown to the observers."""
    R = rule.reciprocal(eigenvalues, gaps)
    if observers and not torch.compiler.is_compiling():
        gaps = pair_gaps(eigenvalues) if gaps is None else gaps
        _Observation.apply(eigenvalues.detach(), gaps.detach(), R.detach())  # type: ignore[no-untyped-call]
    return R


class _Observation(Batched):
    """The observers' look, as an autograd function: its forward sees plain tensors even inside a transform."""

    @staticmethod
    def forward(eigenvalues: Tensor, gaps: Tensor, R: Tensor) -> Any:
        for observer in observers:
            observer.observe(eigenvalues, gaps, R)
        return torch.empty_like(R)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...


def pair_gaps(L: Tensor) -> Tensor:
    """|λ_i − λ_j| for every pair: (..., n) to (..., n, n). Exact for close eigenvalues, which is where it matters."""
    return (L.unsqueeze(-2) - L.unsqueeze(-1)).abs()


def spectrum_scale(eigenvalues: Tensor) -> Tensor:
    """max |λ|, (..., 1): what tolerances are relative to. The zero matrix has no scale and counts as 1."""
    scale = eigenvalues.abs().amax(-1, keepdim=True)
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def round_off(eigenvalues: Tensor) -> Tensor:
    """n · finfo.eps · max|λ|, (..., 1): how accurately the eigenvalues of a matrix are known."""
    return spectrum_scale(eigenvalues) * (eigenvalues.shape[-1] * torch.finfo(eigenvalues.dtype).eps)
