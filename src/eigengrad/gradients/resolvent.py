"""The pairs of a decomposition on one side of a cut, with derivatives of every order.

With the kept eigenpairs λ_i, V₁ of a Hermitian matrix A, the reduced resolvent R_i = V₂ (λ_i − Λ₂)⁻¹ V₂ᴴ takes a column
g_i to x_i = R_i g_i, and the derivatives of the kept pairs are

    backward        gA = herm( [X + V₁ (½ (C − Cᴴ) ∘ R + diag(gλ))] V₁ᴴ ),    X = [R_i gv_i],   C = V₁ᴴ gV₁
    forward mode    dV₁ = [R_i (dA V₁)_i] + V₁ (R ∘ V₁ᴴ dA V₁),    dλ = diag(V₁ᴴ dA V₁),

where the matrix R is that of a rule among the kept. Written with the dropped eigenvectors V₂ this could not be
differentiated again where dropped eigenvalues are equal, for V₂ has no derivative there. But X does not depend on their
choice, and it can be written for any basis V₁ of the kept space, so that their choice does not matter either: it is
determined by X B − A X = (I − V₁ V₁ᴴ) G and V₁ᴴ X = 0, with B = V₁ᴴ A V₁ = diag(λ). So

    dX = R[dG − dV₁ V₁ᴴ G − X dB + dA X] − V₁ dV₁ᴴ X,    dB = V₁ᴴ dA V₁ + dV₁ᴴ V₁ B + B V₁ᴴ dV₁,

where R[·] takes each column i by R_i, and for a gradient H of X, with Y = R[H],

    gG = Y,   gB = −herm(Xᴴ Y),   gA = herm(Y Xᴴ) + V₁ gB V₁ᴴ,   gV₁ = −Y (V₁ᴴ G)ᴴ − X (V₁ᴴ H)ᴴ + 2 V₁ B gB.

All of it uses R_i alone, in which V₂ and Λ₂ are numbers, so a function that applies itself has every order. (B in place
of λ matters where kept eigenvalues are equal: there only the diagonal of B could be had from λ.)

The singular triples of A are the pairs of [[0, A], [Aᴴ, 0]], which has the eigenvalues ±σ with the eigenvectors
(u; ±v), and 0. So all of this holds for them too: the same functions serve ``eigh`` and ``svd``.

Only the smallest singular values need another form. Where they are zero, +σ and −σ meet, and so do the kept vectors
and their complement. The spans of U₁ and of V₁ are smooth there all the same, being what is orthogonal to the dropped
vectors U₂ and V₂, which are pairs on the other side of the same cut. From U₁ᴴ U₂ = 0 and V₁ᴴ V₂ = 0,

    dU₁ = −U₂ dU₂ᴴ U₁ + …    and, for the backward pass,    gU₂ = −U₁ gU₁ᴴ U₂    (V likewise),

so the kept vectors turn out of their span, to every order, by the derivatives of the dropped ones. The dots are what is
left of the complement: the vectors (u; −v) of the kept, by 1/(σ_i + σ_j), and what no singular vector spans, by 1/σ_i.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._execution import can_read, forward_mode, functorch_active
from .._inputs import detached
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..precision import full_precision
from .lift import lift, lower
from .observation import account, observe_pairs, observers
from .partial import Partial
from .removed import CallSite, attributed, is_attributed
from .rule import skew_part

__all__ = ["Complement", "Operator", "kept_pairs"]


class Complement(NamedTuple):
    """What is outside the span of the kept vectors: numbers that the reduced resolvent is computed with."""

    basis: Tensor  #: vectors, (..., N, p), of the length of the kept ones
    reciprocals: Tensor  #: 1/(λ_i − μ_j) of kept λ_i and the basis' eigenvalues μ_j, (..., p, |k|); 0 for kept vectors
    rest: Tensor | None  #: the same for all that the basis does not span, (..., |k|), if there is something


@dataclass(frozen=True)
class Operator(ABC):
    """The Hermitian operator of size N whose eigenpairs a decomposition of A gives.

    Args:
        rule: for the pairs of its ascending eigenvalues λ, (..., n).
    """

    rule: Partial

    #: 1/‖v‖² of its eigenvectors.
    weight: ClassVar[float]
    #: The function of this package that it belongs to.
    function: ClassVar[str]

    @abstractmethod
    def kept(self, *results: Tensor) -> tuple[Tensor, ...]:
        """Copies of what is kept of all results of the decomposition."""

    @abstractmethod
    def pairs(self, *results: Tensor) -> tuple[Tensor, Tensor]:
        """Ascending eigenvalues, (..., p), and eigenvectors, (..., N, p), from results of the decomposition."""

    @abstractmethod
    def results(self, L: Tensor, V: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        """Results of the decomposition of A, of this shape, from pairs: the inverse of :meth:`pairs`, and linear."""

    @abstractmethod
    def gradients(self, kept: tuple[Tensor, ...], *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of the kept pairs, from those of the kept results."""

    @abstractmethod
    def first_derivative(self, results: tuple[Tensor, ...], *gradients: Tensor | None) -> Tensor:
        """gA from all results and gradients of the kept, for a backward pass that is not differentiated again."""

    @abstractmethod
    def image(self, dA: Tensor, X: Tensor) -> Tensor:
        """The change of the operator for a change of A, times X, (..., N, p)."""

    @abstractmethod
    def outer(self, P: Tensor, Q: Tensor, shape: torch.Size) -> Tensor:
        """The adjoint of :meth:`image`: the gradient by A, of this shape, of Re⟨P, image(A, Q)⟩."""

    @abstractmethod
    def complement(self, L: Tensor, V: Tensor, R: Tensor, shape: torch.Size) -> Complement:
        """What is outside the span of the kept vectors.

        Args:
            L, V: all pairs, ascending, (..., n) and (..., N, n).
            R: in place of 1/|λ_i − λ_j|, (..., n, n).
            shape: of A.
        """

    @abstractmethod
    def check_phase(self, X: Tensor, L: Tensor) -> Tensor | None:
        """Refuse a loss that depends on the phase of complex vectors, given X = Vᴴ gV, (..., n, n)."""

    def follows_dropped(self) -> bool:
        """Whether the kept vectors are to be turned out of their span by the derivatives of the dropped ones.

        The methods below are for operators of which that is true.
        """
        return False

    def crossed(self, P: Tensor, Q: Tensor, X: Tensor, shape: torch.Size) -> Tensor:
        """−P Qᴴ X, (..., N, p), of the left and of the right vectors, each for themselves."""
        raise NotImplementedError

    def beside(self, L: Tensor, B: Tensor, V1: Tensor, V2: Tensor, G: Tensor, shape: torch.Size) -> Tensor:
        """R[G] within the part of the complement that has nothing of the dropped vectors, (..., N, |k|).

        Args:
            L: all eigenvalues, ascending, (..., n), as constants.
            B: those that are kept, as a diagonal matrix (..., |k|, |k|).
            V1, V2: the kept and the dropped vectors.
            G: (..., N, |k|).
            shape: of A.
        """
        raise NotImplementedError


def kept_pairs(A: Tensor, results: tuple[Tensor, ...], operator: Operator, site: CallSite | None) -> Any:
    """The results of a decomposition that are kept, as functions of A.

    Args:
        A: the matrix.
        results: all of them, as constants.
        operator: with the rule that knows k.
        site: who is to be warned.
    """
    return _pairs_op(A, *results, operator, site)


class _Pairs(Batched):
    @staticmethod
    def forward(A: Tensor, *arguments: Any) -> Any:
        *results, operator, _ = arguments
        return operator.kept(*results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.operator, ctx.site = inputs
        save(ctx, *tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        A, *tensors = saved(ctx)
        results, kept = tensors[: len(gradients)], tensors[len(gradients) :]
        with full_precision(A):
            function = ctx.operator.function
            gA = attributed(function, ctx.site, _pullback, ctx.operator, A, results, kept, *gradients)
        return gA, *(None for _ in results), None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        A, *tensors = saved(ctx)
        operator, count = ctx.operator, len(tensors) // 2
        with full_precision(A):
            L, V = operator.pairs(*tensors[:count])
            L1, V1 = operator.pairs(*tensors[count:])
            return operator.results(*_pushforward(operator, A, L, V, L1, V1, dA, shown=True), A.shape)


_pairs_op = Differentiable(_Pairs)


def _pullback(
    operator: Operator,
    A: Tensor,
    results: tuple[Tensor, ...],
    kept: tuple[Tensor, ...],
    *gradients: Tensor | None,
) -> Tensor:
    given = [g for g in gradients if g is not None]
    if given and _is_final(*given):
        return operator.first_derivative(results, *gradients)
    L, V = operator.pairs(*results)
    L1, V1 = operator.pairs(*kept)
    return _gradient(operator, A, L, V, L1, V1, *operator.gradients(kept, *gradients), shown=True)


def _gradient(
    operator: Operator,
    A: Tensor,
    L: Tensor,
    V: Tensor,
    L1: Tensor,
    V1: Tensor,
    gL: Tensor | None,
    gV: Tensor | None,
    *,
    shown: bool,
) -> Tensor:
    """gA, which can be differentiated again; ``shown`` to observers, or to whoever is to be warned."""
    if gV is None:
        return (
            torch.zeros_like(A)
            if gL is None
            else operator.outer(V1 * (operator.weight * gL).unsqueeze(-2), V1, A.shape)
        )
    rule, n = operator.rule, L.shape[-1]
    factor, spectrum, R = _lifted(rule, L, L1)
    if factor is not None:
        A, L1, gL = A * factor.unsqueeze(-1), L1 * factor, None if gL is None else gL / factor
    constant = detached(gV)
    X = V.mH @ constant
    sizes = torch.maximum(_largest(X), _largest(constant))
    if shown and (observers or can_read(gV)):
        gV = _look(operator, L, spectrum, R, gL, gV, X, sizes)
    part, scale = rule.kept(n), math.sqrt(V.shape[-2] / L1.shape[-1])
    upper = torch.triu(skew_part(V1.mH @ gV, sizes * scale) * R[..., part, part], 1)
    inside = upper + upper.mH
    if gL is not None:
        inside = inside + torch.diag_embed(gL).to(inside.dtype)
    inside = V1 @ (operator.weight * inside)
    B = _block(operator, A, V1, L1)
    if operator.follows_dropped():
        dropped, L2, V2 = _dropped_pairs(operator, A, spectrum, V)
        outside = operator.beside(spectrum, B, V1, V2, gV, A.shape)
        gV2 = operator.crossed(V1, gV, V2, A.shape)
        gA = _gradient(dropped, A, spectrum, V, L2, V2, None, gV2, shown=False) if V2.shape[-1] else 0
        gA = gA + operator.outer(outside + inside, V1, A.shape)
    else:
        complement = operator.complement(spectrum, V, detached(R), A.shape)
        outside = _resolvent(operator, A, B, V1, gV, complement)
        gA = operator.outer(outside + inside, V1, A.shape)
    return gA if factor is None else lower(gA, factor)


def _dropped_pairs(operator: Operator, A: Tensor, L: Tensor, V: Tensor) -> tuple[Operator, Tensor, Tensor]:
    """The pairs that are not kept, as functions of A, and the operator that keeps them."""
    dropped = type(operator)(operator.rule.opposite(L.shape[-1]))  # torch 2.6 does not compile dataclasses.replace
    results = operator.results(L, V, A.shape)
    if torch.compiler.is_compiling() and not functorch_active():  # no compiled backward pass is differentiated again
        return dropped, *dropped.pairs(*dropped.kept(*results))
    return dropped, *dropped.pairs(*kept_pairs(A, results, dropped, None))


def _look(
    operator: Operator,
    L: Tensor,
    spectrum: Tensor,
    R: Tensor,
    gL: Tensor | None,
    gV: Tensor,
    X: Tensor,
    sizes: Tensor,
) -> Tensor:
    """Refuse what depends on a phase, show the pass to observers or warn: as for all pairs, the dropped with zeros.

    Returns:
        ``gV``, or NaN for what is refused on a device that an error would wait for.
    """
    columns = operator.rule.padding(L.shape[-1])
    X, slopes = pad(X, columns), None if gL is None else pad(gL, columns)
    refusal = operator.check_phase(X, L) if X.dtype.is_complex else None
    if X.shape[-1] > 1 and (observers or is_attributed()):
        account(operator.rule, spectrum, X, slopes, skew_part(X, pad(sizes, columns)), R)
    return gV if refusal is None else gV + refusal


def _pushforward(
    operator: Operator, A: Tensor, L: Tensor, V: Tensor, L1: Tensor, V1: Tensor, dA: Tensor, *, shown: bool
) -> tuple[Tensor, Tensor]:
    """(dλ, dV₁) of the kept pairs for a change dA; ``shown`` to observers."""
    rule = operator.rule
    factor, spectrum, R = _lifted(rule, L, L1)
    if factor is not None:
        A, L1, dA = A * factor.unsqueeze(-1), L1 * factor, dA * factor.unsqueeze(-1)
    if shown and observers:
        observe_pairs(spectrum, operator.weight * _hermitian(V.mH @ operator.image(dA, V)), R)
    F = operator.image(dA, V1)
    Y = operator.weight * _hermitian(V1.mH @ F)
    dL = torch.diagonal(Y, dim1=-2, dim2=-1).real.clone()
    part = rule.kept(L.shape[-1])
    upper = torch.triu(Y * R[..., part, part], 1)
    B = _block(operator, A, V1, L1)
    if operator.follows_dropped():
        dropped, L2, V2 = _dropped_pairs(operator, A, spectrum, V)
        outside = operator.beside(spectrum, B, V1, V2, F, A.shape)
        if V2.shape[-1]:
            dV2 = _pushforward(dropped, A, spectrum, V, L2, V2, dA, shown=False)[1]
            outside = outside + operator.crossed(V2, dV2, V1, A.shape)
    else:
        complement = operator.complement(spectrum, V, detached(R), A.shape)
        outside = _resolvent(operator, A, B, V1, F, complement)
    return dL if factor is None else dL / factor, outside + V1 @ (upper - upper.mH)


def _lifted(rule: Partial, L: Tensor, L1: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
    """What tiny matrices are multiplied by (``gradients.lift``), and their spectrum and reciprocals then.

    The reciprocals, (..., n, n), are functions of the kept eigenvalues. The dropped ones, of which rules need the
    spread of the spectrum, have no derivative at a tie: they are constants, as in the spectrum, (..., n).
    """
    factor, mixed = lift(L), rule.joined(L, L1)
    if factor is None:
        return None, L, rule.reciprocal(mixed)
    if rule.scale_free:
        return factor, L * factor, rule.reciprocal(mixed * factor)
    return factor, L * factor, rule.reciprocal(mixed) / factor.unsqueeze(-1)


def _block(operator: Operator, A: Tensor, V1: Tensor, L1: Tensor) -> Tensor:
    """B = V₁ᴴ A V₁ = diag(λ), (..., |k|, |k|), as a function of A and V₁; λ is a constant that carries its value."""
    if _is_final(V1):
        return _Block.forward(A, V1, L1, operator)
    B: Tensor = _block_op(A, V1, detached(L1), operator)
    return B


class _Block(Batched):
    @staticmethod
    def forward(A: Tensor, V1: Tensor, L1: Tensor, operator: Operator) -> Tensor:
        return torch.diag_embed(L1).to(V1.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.operator = inputs
        save(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, gB: Tensor) -> Any:
        A, V1, L1 = saved(ctx)
        operator = ctx.operator
        with full_precision(A):
            turned = V1 @ (operator.weight * _hermitian(gB))
            gV = 2 * operator.weight * (V1 @ (_block(operator, A, V1, L1) @ _hermitian(gB)))
            return operator.outer(turned, V1, A.shape), gV, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor | None, dV: Tensor | None, *_: None) -> Any:
        A, V1, L1 = saved(ctx)
        operator = ctx.operator
        with full_precision(A):
            dB = torch.zeros_like(V1[..., : L1.shape[-1], :])
            if dA is not None:
                dB = dB + operator.weight * (V1.mH @ operator.image(dA, V1))
            if dV is not None:
                dB = dB + 2 * operator.weight * _hermitian(_block(operator, A, V1, L1) @ (V1.mH @ dV))
            return dB


_block_op = Differentiable(_Block)


def _resolvent(operator: Operator, A: Tensor, B: Tensor, V1: Tensor, G: Tensor, complement: Complement) -> Tensor:
    """X = R[G], (..., N, |k|), as a function of A, B, V₁ and G."""
    if _is_final(G):
        return _weigh(operator, G, *complement)
    X: Tensor = _resolvent_op(A, B, V1, G, *complement, operator)
    return X


def _weigh(operator: Operator, G: Tensor, basis: Tensor, reciprocals: Tensor, rest: Tensor | None) -> Tensor:
    """R[G]. Round-off in the components of G, which says nothing, is not weighed: 1/gap may be large."""
    components = operator.weight * (basis.mH @ G)
    round_off = 2 * math.sqrt(G.shape[-2]) * torch.finfo(G.dtype).eps  # as in skew_part
    nothing = components.abs() <= round_off * _largest(components).unsqueeze(-2)  # false for NaN, which stays
    X = basis @ (torch.where(nothing, 0.0, components) * reciprocals)
    return X if rest is None else X + (G - basis @ components) * rest.unsqueeze(-2)


class _Resolvent(Batched):
    @staticmethod
    def forward(
        A: Tensor,
        B: Tensor,
        V1: Tensor,
        G: Tensor,
        basis: Tensor,
        reciprocals: Tensor,
        rest: Tensor | None,
        operator: Operator,
    ) -> Any:
        return _weigh(operator, G, basis, reciprocals, rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.operator = inputs
        save(ctx, *tensors, output)

    @staticmethod
    def backward(ctx: Any, H: Tensor) -> Any:
        A, B, V1, G, *complement, X = saved(ctx)
        operator = ctx.operator
        with full_precision(A):
            Y = _resolvent(operator, A, B, V1, H, Complement(*complement))
            gB = -_hermitian(X.mH @ Y)
            gV = -operator.weight * (Y @ (V1.mH @ G).mH + X @ (V1.mH @ H).mH)
            return operator.outer(Y, X, A.shape), gB, gV, Y, None, None, None, None

    @staticmethod
    def jvp(
        ctx: Any, dA: Tensor | None, dB: Tensor | None, dV: Tensor | None, dG: Tensor | None, *_: Tensor | None
    ) -> Any:
        A, B, V1, G, *complement, X = saved(ctx)
        operator = ctx.operator
        with full_precision(A):
            change = torch.zeros_like(G) if dG is None else dG
            if dA is not None:
                change = change + operator.image(dA, X)
            if dB is not None:
                change = change - X @ dB
            if dV is not None:
                change = change - operator.weight * (dV @ (V1.mH @ G))
            dX = _resolvent(operator, A, B, V1, change, Complement(*complement))
            return dX if dV is None else dX - operator.weight * (V1 @ (dV.mH @ X))


_resolvent_op = Differentiable(_Resolvent)


def _is_final(*tensors: Tensor) -> bool:
    """Whether what is computed from these tensors is not differentiated further."""
    return not torch.is_grad_enabled() and not forward_mode() and can_read(*tensors)


def _largest(G: Tensor) -> Tensor:
    """The largest absolute value in each column, (..., p), of matrices (..., N, p)."""
    return G.abs().amax(-2)


def _hermitian(Y: Tensor) -> Tensor:
    return (Y + Y.mH) * 0.5
