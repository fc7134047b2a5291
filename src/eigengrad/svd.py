"""``svd``: the singular value decomposition, with a gradient that survives ties and rank deficiency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import kernels, solvers
from ._execution import functorch_active
from ._inputs import check_matrix, detached
from ._return_types import SvdResult, svd_result
from ._saved import save, saved
from ._transforms import Batched, Differentiable
from .arguments import require_count
from .eigh import check_phase_invariance
from .gradients import GradientRule, PairRule, resolve
from .gradients.equations import inverse, skew_solution
from .gradients.lift import lift, lower
from .gradients.observation import account, observe_pairs
from .gradients.partial import Partial
from .gradients.removed import CallSite, attributed, call_site
from .gradients.resolvent import Complement, Operator, kept_pairs
from .gradients.rule import significant, skew_part
from .gradients.spectrum import reciprocal_where
from .precision import full_precision, real_dtype, widen

__all__ = ["svd"]


def svd(
    A: Tensor,
    full_matrices: bool = True,
    *,
    k: int | None = None,
    gradient: str | GradientRule = "saturate",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> SvdResult:
    r"""Singular value decomposition A = U diag(σ) Vᴴ: :func:`torch.linalg.svd` that you can train through.

    With dP = Uᴴ dA V the singular vectors turn by

        Ω_U, Ω_V = ½ [ (dP + dPᴴ) ∘ 1/(σ_j − σ_i)  ±  (dP − dPᴴ) ∘ 1/(σ_j + σ_i) ].

    Only the first term has a gap, and only there does a gradient rule take the place of the reciprocal. The second is
    exact, and finite at every tie. So a loss of U Vᴴ, which feels the second alone, has its exact gradient wherever
    there is one, and so has a loss of the singular values.

    **Zeros.** Where A is not square, its vectors turn out of their span by 1/σ, which is exact as well. Pairs of
    singular values that are both zero to round-off, max(m, n) · finfo.eps · σ_max, determine nothing, and get nothing
    from 1/(σ_j + σ_i) and 1/σ, which are thereby bounded.

    **Gauge.** A pair (u_i, v_i) is determined up to a common phase. For complex matrices, a loss that depends on it
    raises an error, as in torch. With ``full_matrices=True`` the additional columns are determined up to a rotation;
    their derivative here is the one that rotates them no more than orthogonality requires, which is right for
    every loss of the projector they span.

    Args:
        A: (..., m, n), of any batch shape; the types of :func:`eigengrad.eigh`.
        full_matrices: complete U to (..., m, m) and Vh to (..., n, n). Not used where k is given.
        k: only the k largest singular values and their vectors, or the −k smallest if negative. A loss of the
            subspaces of these vectors then has its exact derivatives, of every order, at ties on either side of the
            cut: between kept and dropped no rule is used. Where singular values that are kept are zero, so have losses
            of U Uᴴ and of V Vᴴ, each of which must be that of a square matrix's vectors or of the shorter side; a loss
            of U Vᴴ, or of the longer side, has no derivative there and gets a bounded one.
        gradient: a rule or its name, as in :func:`eigengrad.eigh`, except power iteration, which is defined for
            eigenvectors only.
        driver: who computes the decomposition; ``None`` chooses.
        check_finite: look for NaN and infinity first; ``None`` does so on the CPU.

    Returns:
        ``(U, S, Vh)``, singular values descending, (..., min(m, n)), or (..., |k|).

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)                 # a pose layer at its start: every singular value tied
    >>> U, S, Vh = eg.svd(A)
    >>> (U @ Vh)[0, 1].backward()
    >>> A.grad[0, 1].item(), A.grad[1, 0].item()
    (0.5, -0.5)
    """
    check_matrix("svd", A, square=False)
    rule = resolve(gradient)
    if not isinstance(rule, PairRule):
        raise ValueError(
            f"gradient: got {rule!r}, which differentiates eigenvectors only; expected a rule that svd can use, "
            "such as 'saturate', 'exact', 'taylor', 'clip', 'lorentzian', 'mask' or 'truncate'"
        )
    driver = solvers.resolve(driver)
    if k is not None:
        require_count("svd", k, min(A.shape[-2:]))
    with full_precision(A):
        M = widen(A)
        if k is None:
            U, S, Vh = _svd_op(M, full_matrices, rule, driver, check_finite, call_site())
        else:
            triples = decompose("svd", M, driver, check_finite)
            U, S, Vh = kept_pairs(M, triples, _JordanWielandt(Partial(rule, k)), call_site())
        if U.dtype != A.dtype:
            U, S, Vh = U.to(A.dtype), S.to(real_dtype(A.dtype)), Vh.to(A.dtype)
    return svd_result(U, S, Vh)


def decompose(function: str, A: Tensor, driver: str | None, check_finite: bool | None) -> tuple[Tensor, Tensor, Tensor]:
    """The thin decomposition as constants, for a caller with a derivative of its own."""
    if not functorch_active():
        return solvers.svd(A.detach(), False, solvers.resolve(driver), check_finite, function)
    result = svd(A.detach(), full_matrices=False, gradient="mask", driver=driver, check_finite=check_finite)
    return result.U, result.S, result.Vh


class _Svd(Batched):
    """What the compiler traces: forward and backward."""

    @staticmethod
    def forward(
        A: Tensor,
        full_matrices: bool,
        rule: PairRule,
        driver: str,
        check_finite: bool | None,
        site: CallSite | None,
    ) -> Any:
        return solvers.svd(A, full_matrices, driver, check_finite)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rule, ctx.site = inputs[2], inputs[5]
        save(ctx, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gU: Tensor | None, gS: Tensor | None, gVh: Tensor | None) -> Any:
        U, S, Vh = saved(ctx)
        with full_precision(U):
            gA = attributed("svd", ctx.site, _pullback, ctx.rule, U, S, Vh, gU, gS, gVh)
        return gA, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        with full_precision(dA):
            U, S, Vh = saved(ctx)
            return _pushforward(ctx.rule, U, S, Vh, dA)


_svd_op = Differentiable(_Svd)


def _split(X: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The parts of X (..., m + n, p) that belong to U and to V, for A of this shape (..., m, n)."""
    m, n = shape[-2:]
    return X.narrow(-2, 0, m), X.narrow(-2, m, n)


@dataclass(frozen=True)
class _JordanWielandt(Operator):
    """[[0, A], [Aᴴ, 0]], which has the eigenvalues ±σ with the eigenvectors (u; ±v), and 0."""

    weight: ClassVar[float] = 0.5
    function: ClassVar[str] = "svd"

    def kept(self, *results: Tensor) -> tuple[Tensor, ...]:
        U, S, Vh = results
        first, count = self.rule.padding(S.shape[-1])[1], abs(self.rule.k)  # singular values descend
        parts = U.narrow(-1, first, count), S.narrow(-1, first, count), Vh.narrow(-2, first, count)
        return tuple(part.clone() for part in parts)

    def pairs(self, *results: Tensor) -> tuple[Tensor, Tensor]:
        U, S, Vh = results
        return S.flip(-1), torch.cat([U, Vh.mH], -2).flip(-1)

    def results(self, L: Tensor, V: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        left, right = _split(V.flip(-1), shape)
        return left, L.flip(-1), right.mH

    def gradients(self, kept: tuple[Tensor, ...], *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        gU, gS, gVh = gradients
        values, vectors = self.pairs(
            *(torch.zeros_like(x) if g is None else g for x, g in zip(kept, gradients, strict=True))
        )
        return None if gS is None else values, None if gU is None and gVh is None else vectors

    def first_derivative(self, results: tuple[Tensor, ...], *gradients: Tensor | None) -> Tensor:
        (U, S, Vh), (gU, gS, gVh) = results, gradients
        after, before = self.rule.padding(S.shape[-1])
        return _pullback(
            self.rule,
            U,
            S,
            Vh,
            None if gU is None else pad(gU, (before, after)),
            None if gS is None else pad(gS, (before, after)),
            None if gVh is None else pad(gVh, (0, 0, before, after)),
        )

    def image(self, dA: Tensor, X: Tensor) -> Tensor:
        left, right = _split(X, dA.shape)
        return torch.cat([dA @ right, dA.mH @ left], -2)

    def outer(self, P: Tensor, Q: Tensor, shape: torch.Size) -> Tensor:
        (P_left, P_right), (Q_left, Q_right) = _split(P, shape), _split(Q, shape)
        return P_left @ Q_right.mH + Q_left @ P_right.mH

    def complement(self, L: Tensor, V: Tensor, R: Tensor, shape: torch.Size) -> Complement:
        m, n = shape[-2:]
        part = self.rule.kept(L.shape[-1])
        left, right = _split(V, shape)
        sums, singles = _reciprocals(L, L[..., -1:], m, n)
        opposite = sums[..., part]
        basis = torch.cat([V, torch.cat([left, -right], -2)], -1)
        reciprocals = torch.cat([self.rule.across(R), opposite], -2)
        return Complement(basis, reciprocals, None if m == n else singles[..., part])

    def follows_dropped(self) -> bool:
        return self.rule.k < 0

    def crossed(self, P: Tensor, Q: Tensor, X: Tensor, shape: torch.Size) -> Tensor:
        parts = zip(_split(P, shape), _split(Q, shape), _split(X, shape), strict=True)
        return torch.cat([-(p @ (q.mH @ x)) for p, q, x in parts], -2)

    def beside(self, L: Tensor, B: Tensor, V1: Tensor, V2: Tensor, G: Tensor, shape: torch.Size) -> Tensor:
        m, n = shape[-2:]
        part, sizes = self.rule.kept(L.shape[-1]), detached(G).abs().amax(-2)
        sums, singles = (x[..., part] for x in _reciprocals(L, L[..., -1:], m, n))
        unit = torch.eye(B.shape[-1], dtype=B.dtype, device=B.device).expand(B.shape)
        left, right = _split(V1, shape)
        opposite = torch.cat([left, -right], -2)
        numerators = skew_part(opposite.mH @ G, sizes * math.sqrt(V1.shape[-2] / B.shape[-1]))
        X = opposite @ (0.5 * self.weight * skew_solution(B, numerators, unit, sums[..., part, :]))
        if m == n:
            return X
        rest = _split(G + self.crossed(V1, V1, G, shape) + self.crossed(V2, V2, G, shape), shape)
        left, right = rest[0] if m > n else torch.zeros_like(left), rest[1] if m < n else torch.zeros_like(right)
        return X + torch.cat([left, right], -2) @ inverse(B, unit, singles)

    def check_phase(self, X: Tensor, L: Tensor) -> Tensor | None:
        values = torch.cat([L.flip(-1), torch.zeros_like(L[..., :1])], -1)
        return check_phase_invariance(self.function, X.flip(-2, -1), values)


def _reciprocals(S: Tensor, largest: Tensor, m: int, n: int) -> tuple[Tensor, Tensor]:
    """1/(σ_i + σ_j), (..., k, k), and 1/σ_i, (..., k), with zeros where they would be those of round-off alone."""
    limits = torch.finfo(S.dtype)
    floor = (largest.detach() * (max(m, n) * limits.eps)).clamp(min=limits.tiny)
    nonzero = floor < S
    some = nonzero.unsqueeze(-1) | nonzero.unsqueeze(-2)
    sums = S.unsqueeze(-1) + S.unsqueeze(-2)
    return reciprocal_where(some, sums), reciprocal_where(nonzero, S)


def _lifted(S: Tensor, rule: PairRule) -> tuple[Tensor | None, Tensor, Tensor]:
    """What tiny matrices are multiplied by (``gradients.lift``), and what they have then.

    These are the singular values (..., k), still descending, and the rule's reciprocals (..., k, k) of ascending ones.
    """
    factor, plain = lift(S), S
    if factor is not None:
        S = S * factor
        if not rule.scale_free:
            return factor, S, rule.reciprocal(plain.flip(-1)) / factor.unsqueeze(-1)
    return factor, S, rule.reciprocal(S.flip(-1))


def _antisymmetric(R: Tensor) -> Tensor:
    """From |1/(σ_i − σ_j)| of ascending singular values to 1/(σ_j − σ_i) of descending ones, (..., k, k)."""
    upper = torch.triu(R.flip(-2, -1), 1)
    return upper.mT - upper


def _pullback(
    rule: PairRule, U: Tensor, S: Tensor, Vh: Tensor, gU: Tensor | None, gS: Tensor | None, gVh: Tensor | None
) -> Tensor:
    k = S.shape[-1]
    U1, V1 = U.narrow(-1, 0, k), Vh.narrow(-2, 0, k).mH
    if k == 0 or (gU is None and gVh is None):
        return U1 @ _diagonal(gS, U1) @ V1.mH
    gU = torch.zeros_like(U) if gU is None else gU
    gV = torch.zeros_like(Vh.mH) if gVh is None else gVh.mH
    gU1, gV1 = gU.narrow(-1, 0, k), gV.narrow(-1, 0, k)
    XU, XV = U1.mH @ gU1, V1.mH @ gV1
    X = XU + XV
    refusal = None
    if U.dtype.is_complex:
        refusal = check_phase_invariance("svd", X, torch.cat([S, torch.zeros_like(S[..., :1])], -1))
    sizes = gU1.abs().amax(-2) + gV1.abs().amax(-2)
    common, opposite = skew_part(torch.stack([X, XU - XV]), sizes).unbind(0)
    core = _core_by_kernel(rule, S, X, common, gS)
    factor = None
    if core is None:
        factor, S, R = _lifted(S, rule)
        core = _diagonal(gS, U1) if factor is None else _diagonal(gS, U1) / factor.unsqueeze(-1)
        if k > 1:
            slopes = None if gS is None else gS.flip(-1)
            account(rule, S.flip(-1), X.flip(-2, -1), slopes, common.flip(-2, -1), R)
        core = core + common * _antisymmetric(R)
    sums, singles = _reciprocals(S, S[..., :1], U.shape[-2], Vh.shape[-1])
    core = core + opposite * sums
    gA = U1 @ (core if refusal is None else core + refusal) @ V1.mH
    if U.shape[-2] > k:
        gA = gA + (_outside(U, gU, XU, sizes) * singles.unsqueeze(-2)) @ V1.mH
    if Vh.shape[-1] > k:
        gA = gA + U1 @ (_outside(Vh.mH, gV, XV, sizes) * singles.unsqueeze(-2)).mH
    return gA if factor is None else lower(gA, factor)


def _diagonal(gS: Tensor | None, U1: Tensor) -> Tensor:
    """diag(gσ), (..., k, k), or zeros, in the type of U1 (..., m, k)."""
    return torch.zeros_like(U1[..., : U1.shape[-1], :]) if gS is None else torch.diag_embed(gS).to(U1.dtype)


def _core_by_kernel(rule: PairRule, S: Tensor, X: Tensor, common: Tensor, gS: Tensor | None) -> Tensor | None:
    """diag(gσ) and ``common`` times the rule's reciprocals, (..., k, k), as one kernel has them, if there is one.

    Args:
        rule: fills 1/(σ_j − σ_i).
        S: descending, (..., k).
        X: Uᴴ gU + Vᴴ gV, (..., k, k); ``common`` is what is significant of its skew part.
        gS: the gradient of S, if there is one.
    """
    if S.shape[-1] < 2 or not kernels.usable(common, S, gS):
        return None
    if gS is None:
        core = rule.bracket_by_kernel(S.flip(-1), common.flip(-2, -1), None)
    else:  # whether values and vectors enter the loss together is seen by the Hermitian part
        both = torch.add(common, X + X.mT, alpha=0.5)
        core = rule.bracket_by_kernel(S.flip(-1), both.flip(-2, -1), gS.flip(-1))
    return None if core is None else core.flip(-2, -1)


def _outside(Q: Tensor, gQ: Tensor, X: Tensor, sizes: Tensor) -> Tensor:
    """The part of gQ that moves the k leading columns of Q out of their span, (..., m, k).

    If Q has more columns, they turn against the leading ones, so their gradient belongs here as well.

    Args:
        Q, gQ: (..., m, k or more).
        X: Qᴴ gQ of the leading columns, (..., k, k).
        sizes: of the leading columns of gQ, (..., k): the largest absolute value in each.
    """
    k = X.shape[-1]
    leading, more = Q.narrow(-1, 0, k), Q.shape[-1] - k
    outside = significant(gQ.narrow(-1, 0, k) - leading @ X, sizes.unsqueeze(-2))
    return outside - Q.narrow(-1, k, more) @ (leading.mH @ gQ.narrow(-1, k, more)).mH if more else outside


def _pushforward(rule: PairRule, U: Tensor, S: Tensor, Vh: Tensor, dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k = S.shape[-1]
    if k == 0:
        return torch.zeros_like(U), torch.zeros_like(S), torch.zeros_like(Vh)
    factor, S, R = _lifted(S, rule)
    if factor is not None:
        dA = dA * factor.unsqueeze(-1)
    V = Vh.mH
    U1, V1 = U[..., :k], V[..., :k]
    P = U1.mH @ dA @ V1
    dS = torch.diagonal(P, dim1=-2, dim2=-1).real.clone()
    if factor is not None:
        dS = dS / factor
    observe_pairs(S.flip(-1), ((P + P.mH) * 0.5).flip(-2, -1), R)
    sums, singles = _reciprocals(S, S[..., :1], U.shape[-2], Vh.shape[-1])
    common, opposite = (P + P.mH) * (0.5 * _antisymmetric(R)), (P - P.mH) * (0.5 * sums)
    dU = _turn(U, U1 @ (common + opposite), (dA @ V1 - U1 @ P) * singles.unsqueeze(-2), k)
    dV = _turn(V, V1 @ (common - opposite), (dA.mH @ U1 - V1 @ P.mH) * singles.unsqueeze(-2), k)
    return dU, dS, dV.mH


def _turn(Q: Tensor, inside: Tensor, outside: Tensor, k: int) -> Tensor:
    """dQ from the change of the leading columns within and out of their span."""
    if Q.shape[-2] == k:
        return inside
    leading, rest = Q[..., :k], Q[..., k:]
    return torch.cat([inside + outside, -leading @ (outside.mH @ rest)], -1)
