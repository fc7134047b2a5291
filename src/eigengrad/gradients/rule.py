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
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import kernels
from .._execution import forward_mode
from .._inputs import detached, matmul
from .._transforms import no_gradient
from ..kernels import RuleVjp, eigh_vjp, gpu, rule_bracket
from .lift import lift, lower
from .observation import account, exact_bracket, norm, observe_pairs, observers
from .removed import warn_incomplete, warn_removed

__all__ = ["GradientRule", "PairRule", "exact_and_missing", "significant", "skew_part"]


class GradientRule(ABC):
    """How ``eigh`` is differentiated. Rules are immutable and compare by value."""

    @abstractmethod
    def pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
        """gA (..., n, n) from the gradients of the eigenvalues (..., n) and eigenvectors (..., n, n)."""

    @abstractmethod
    def pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        """(dL, dV) for a change dA: the adjoint of :meth:`pullback`."""


class PairRule(GradientRule):
    """A rule that fills R pair by pair: all of them but power iteration.

    Subclass it for a rule of your own: a frozen dataclass with one method, :meth:`reciprocal`. An instance is accepted
    wherever ``gradient=`` is.

    >>> import torch, eigengrad as eg
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Constant(eg.PairRule):
    ...     def reciprocal(self, eigenvalues):
    ...         return torch.ones_like(eigenvalues.unsqueeze(-1) - eigenvalues.unsqueeze(-2))
    >>> A = torch.eye(2, requires_grad=True)
    >>> eg.eigh(A, gradient=Constant()).eigenvectors[0, 1].backward()
    >>> A.grad
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]])
    """

    _kernel_fits: ClassVar[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        """See whether the class has a kernel of its own: that of a class whose methods it replaces has another R."""
        super().__init_subclass__(**options)
        if "reciprocal" in vars(cls) and "scale_free" not in vars(cls):  # it would be the one of another reciprocal
            cls.scale_free = PairRule.scale_free  # type: ignore[method-assign]
        methods = (c for c in cls.__mro__ if any(callable(v) for k, v in vars(c).items() if not k.startswith("__")))
        cls._kernel_fits = "kernel" in vars(next(methods))

    @abstractmethod
    def reciprocal(self, eigenvalues: Tensor) -> Tensor:
        """What takes the place of 1/|λ_i − λ_j|.

        Args:
            eigenvalues: ascending, (..., n); the singular values, for ``svd``.

        Returns:
            Non-negative, symmetric (..., n, n). What stands on the diagonal is not used, but must be finite.
        """

    @property
    def scale_free(self) -> bool:
        """Whether ``reciprocal(c λ)`` is ``reciprocal(λ)/c`` for every c > 0: then tiny matrices may be lifted."""
        return False

    def kernel(self) -> tuple[str, tuple[float, float]] | None:
        """The name and the parameters of this rule in compiled kernels, if they know it; see ``kernels.vjp``."""
        return None

    def bracket(self, L: Tensor, X: Tensor, gL: Tensor | None) -> Tensor:
        """½ (X − Xᴴ) ∘ R + diag(gλ), Hermitian (..., n, n)."""
        skew, R = skew_part(X, X.abs().amax(-2)), self.reciprocal(L)
        account(self, L, X, gL, skew, R)
        upper = torch.triu(skew * R, 1)
        bracket = upper + upper.mH
        return bracket if gL is None else bracket + torch.diag_embed(gL).to(bracket.dtype)

    def pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
        if gV is None or L.size(-1) < 2:
            if gL is None:
                return torch.zeros_like(V) if gV is None else no_gradient(V, gV)
            return matmul(V * gL.unsqueeze(-2), V.mH)
        kernel = self._kernel_at_work()
        if kernel is not None:
            if kernels.usable(V, gL, gV):
                gA = self._accepted(eigh_vjp(*kernel, L, V, gL, gV), self.scale_free)
                if gA is not None:
                    return gA
            elif gpu.usable(V, L, gL, gV):
                return gpu.eigh_vjp(
                    *kernel, self.scale_free, L, V, gL, gV, lambda: self.pullback_in_torch(L, V, gL, gV)
                )
            elif gpu.is_operator(f"eigh_vjp {kernel[0]}", V):
                from .. import gpu_operators

                found: Tensor = gpu_operators.eigh_vjp(kernel[0], *kernel[1], self.scale_free, L, V, gL, gV)
                return found
        return self.pullback_in_torch(L, V, gL, gV)

    def pullback_in_torch(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor) -> Tensor:
        """:meth:`pullback` for two or more eigenvalues of any size."""
        factor = lift(L) if self.scale_free else None
        if factor is None:
            return self._pullback(L, V, gL, gV)
        return lower(self._pullback(L * factor, V, None if gL is None else gL / factor, gV), factor)

    def bracket_by_kernel(self, L: Tensor, X: Tensor, gL: Tensor | None) -> Tensor | None:
        """:meth:`bracket` in the memory of X; None if no kernel can fill it, or if the numbers are to be lifted first.

        Not only where this rule is relative to the size of the numbers: the caller may have other reciprocals.
        """
        kernel = self._kernel_at_work()
        if kernel is None or not kernels.usable(X, L, gL):
            return None
        return self._accepted(rule_bracket(*kernel, L, X, gL), True)

    def _kernel_at_work(self) -> tuple[str, tuple[float, float]] | None:
        """:meth:`kernel`, unless the class has replaced what it knows, or somebody wants to see R."""
        return self.kernel() if self._kernel_fits and not observers else None

    def _accepted(self, found: RuleVjp | None, refuse_tiny: bool) -> Tensor | None:
        """What a kernel found, with its warnings; None if it is to refuse tiny matrices, and met one."""
        if found is None or (found.tiny and refuse_tiny):
            return None
        if found.removed:
            warn_removed(self)
        if found.incomplete:
            warn_incomplete()
        return found.gradient

    def _pullback(self, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor) -> Tensor:
        """:meth:`pullback` for two or more eigenvalues whose reciprocals the type can hold."""
        kernel = self._kernel_at_work()
        if kernel is not None and kernels.usable(V, gL, gV):
            gA = self._accepted(eigh_vjp(*kernel, L, V, gL, gV), False)
            if gA is not None:
                return gA
        Vh = V.mH
        return matmul(matmul(V, self.bracket(L, matmul(Vh, gV), gL)), Vh)

    def pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        factor = lift(L) if self.scale_free and L.shape[-1] > 1 else None
        if factor is None:
            return self._pushforward(L, V, dA)
        dL, dV = self._pushforward(L * factor, V, dA * factor.unsqueeze(-1))
        return dL / factor, dV

    def _pushforward(self, L: Tensor, V: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
        Y = V.mH @ dA @ V
        Y = (Y + Y.mH) * 0.5
        dL = torch.diagonal(Y, dim1=-2, dim2=-1).real.clone()
        if L.shape[-1] < 2:
            return dL, torch.zeros_like(V)
        R = self.reciprocal(L)
        observe_pairs(L, Y, R)
        upper = torch.triu(Y * R, 1)
        return dL, V @ (upper - upper.mH)


@torch.no_grad()
def exact_and_missing(L: Tensor, V: Tensor, gV: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """The norms of the exact gradient of eigenvectors, and of what ``G`` (Hermitian) lacks of it, (...).

    For rules that fill no R. In units of 1/spread, as :func:`~eigengrad.gradients.observation.exact_and_removed`.
    """
    X = V.mH @ gV
    exact, unit = exact_bracket(L, skew_part(X, X.abs().amax(-2)))
    return norm(exact), norm(exact - unit * (V.mH @ G @ V))


def skew_part(X: Tensor, sizes: Tensor) -> Tensor:
    """½ (X − Xᴴ), (..., n, n), with zeros where nothing is left of X but round-off.

    A loss that does not depend on the basis of a tied space has X = Xᴴ there. What round-off leaves of the difference
    says nothing, but R would make it as large as the gradient itself.

    Args:
        X: Vᴴ gV.
        sizes: of the columns of gV, (..., n): the largest absolute value in each.
    """
    sizes = sizes * math.sqrt(X.shape[-1])  # of round-off in a product of n × n matrices
    return significant((X - X.mH) * 0.5, sizes.unsqueeze(-1) + sizes.unsqueeze(-2))


def significant(difference: Tensor, sizes: Tensor) -> Tensor:
    """The difference of two products, with zeros where it is round-off of numbers of these sizes.

    What round-off leaves is subtracted as a constant, so that derivatives of the difference remain what they are.
    """
    nothing = difference.abs() <= sizes * torch.finfo(difference.dtype).eps  # false for NaN, which stays
    if not torch.is_grad_enabled() and not forward_mode():
        return difference.masked_fill(nothing, 0.0)
    return difference - detached(torch.where(nothing, difference, 0.0))
