"""``svd``: the singular value decomposition, with a gradient that survives ties and rank deficiency."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from . import solvers
from ._inputs import check_matrix, full_precision, real_dtype, transforming, widen
from ._return_types import SvdResult, svd_result
from ._transforms import Batched, run
from .eigh import check_phase_invariance
from .gradients import GradientRule, PairRule, resolve
from .gradients.rule import observed_reciprocal, spectrum_scale

__all__ = ["svd"]


def svd(
    A: Tensor,
    full_matrices: bool = True,
    *,
    gradient: str | GradientRule = "taylor",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> SvdResult:
    r"""Singular value decomposition A = U diag(σ) Vᴴ: :func:`torch.linalg.svd` that you can train through.

    U and V are eigenvectors of A Aᴴ and Aᴴ A, so the rule takes the place of 1/(σ_j² − σ_i²), with the difference
    computed as (σ_j − σ_i)(σ_j + σ_i). Where A is not square, the rest of the space counts as singular value 0: the
    1/σ in torch's gradient becomes σ · R(σ², 0), which vanishes with σ instead of growing.

    The rule works on squares of σ/σ_max. So its absolute parameters (``Clip.threshold``, a number as ``Taylor.eps``)
    are relative to σ_max² here, and singular values below √finfo.eps · σ_max, which as squares are at round-off, count
    as tied with zero.

    **Gauge.** A pair (u_i, v_i) is determined up to a common phase. For complex matrices, a loss that depends on it
    raises an error, as in torch. With ``full_matrices=True`` the additional columns are determined up to a rotation;
    their derivative here is the one that rotates them no more than orthogonality requires, which is right for
    every loss of the projector they span.

    Args:
        A: (..., m, n), of any batch shape; the types of :func:`eigengrad.eigh`.
        full_matrices: complete U to (..., m, m) and Vh to (..., n, n).
        gradient: a rule or its name, as in :func:`eigengrad.eigh`, except power iteration, which is defined for
            eigenvectors only.
        driver: who computes the decomposition; ``None`` chooses.
        check_finite: look for NaN and infinity first; ``None`` does so on the CPU.

    Returns:
        ``(U, S, Vh)``, singular values descending, (..., k) with k = min(m, n).

    >>> import torch, eigengrad as eg
    >>> A = torch.ones(4, 3, requires_grad=True)             # rank one
    >>> U, S, Vh = eg.svd(A, full_matrices=False)
    >>> (U[:, 0].abs().sum() + S.sum()).backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """
    check_matrix("svd", A, square=False)
    rule = resolve(gradient)
    if not isinstance(rule, PairRule):
        raise ValueError(
            f"gradient: got {rule!r}, which differentiates eigenvectors only; expected a rule that svd can use, "
            "such as 'taylor', 'exact', 'clip', 'lorentzian', 'mask' or 'truncate'"
        )
    driver = solvers.resolve(driver)
    with full_precision(A):
        U, S, Vh = run(_Svd, _SvdTransforms, widen(A), full_matrices, rule, driver, check_finite)
        if U.dtype != A.dtype:
            U, S, Vh = U.to(A.dtype), S.to(real_dtype(A.dtype)), Vh.to(A.dtype)
    return svd_result(U, S, Vh)


def decompose(function: str, A: Tensor, driver: str | None, check_finite: bool | None) -> tuple[Tensor, Tensor, Tensor]:
    """The thin decomposition as constants, for a caller with a derivative of its own."""
    if not transforming():
        return solvers.svd(A.detach(), False, solvers.resolve(driver), check_finite, function)
    result = svd(A.detach(), full_matrices=False, gradient="mask", driver=driver, check_finite=check_finite)
    return result.U, result.S, result.Vh


class _Svd(Function):
    """What the compiler traces: forward and backward."""

    @staticmethod
    def forward(A: Tensor, full_matrices: bool, rule: PairRule, driver: str, check_finite: bool | None) -> Any:
        return solvers.svd(A, full_matrices, driver, check_finite)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.rule = inputs[2]
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gU: Tensor | None, gS: Tensor | None, gVh: Tensor | None) -> Any:
        U, S, Vh = ctx.saved_tensors
        with full_precision(U):
            gA = _pullback(ctx.rule, U, S, Vh, gU, gS, gVh)
        return gA, None, None, None, None


class _SvdTransforms(_Svd, Batched):
    """The same with forward mode and vmap."""

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        with full_precision(dA):
            U, S, Vh = ctx.saved_tensors
            return _pushforward(ctx.rule, U, S, Vh, dA)


def _weights(rule: PairRule, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rule's R for the squares of the singular values, of A divided by its scale (so that no square underflows).

    Returns the scaled singular values s (..., k); R_ij (..., k, k), antisymmetric with the descending order; and
    s · R(s², 0) (..., k), which stands for 1/s.
    """
    s = S / spectrum_scale(S)
    ascending = s.flip(-1)
    column, row = ascending.unsqueeze(-2), ascending.unsqueeze(-1)
    squares, gaps = ascending * ascending, ((column - row) * (column + row)).abs()
    upper = torch.triu(observed_reciprocal(rule, squares, gaps).flip(-2, -1), 1)
    return s, upper.mT - upper, s * rule.outside(squares).flip(-1)


def _pullback(
    rule: PairRule, U: Tensor, S: Tensor, Vh: Tensor, gU: Tensor | None, gS: Tensor | None, gVh: Tensor | None
) -> Tensor:
    k = S.shape[-1]
    U1, V1 = U.narrow(-1, 0, k), Vh.narrow(-2, 0, k).mH
    core = torch.zeros_like(U1[..., :k, :]) if gS is None else torch.diag_embed(gS).to(U.dtype)
    if k == 0 or (gU is None and gVh is None):
        return U1 @ core @ V1.mH
    gU = torch.zeros_like(U) if gU is None else gU
    gV = torch.zeros_like(Vh.mH) if gVh is None else gVh.mH
    s, R, inverse = _weights(rule, S)
    XU, XV = U1.mH @ gU.narrow(-1, 0, k), V1.mH @ gV.narrow(-1, 0, k)
    vectors = ((XU - XU.mH) * R) * s.unsqueeze(-2) + ((XV - XV.mH) * R) * s.unsqueeze(-1)
    if U.is_complex():
        check_phase_invariance("svd", XU + XV, torch.cat([S, torch.zeros_like(S[..., :1])], -1))
        phase = torch.diagonal(XU - XV, dim1=-2, dim2=-1).imag * (0.5 * inverse)
        vectors = vectors + torch.diag_embed(torch.complex(torch.zeros_like(phase), phase))
    scale = spectrum_scale(S).unsqueeze(-1)
    gA = U1 @ (core + vectors / scale) @ V1.mH
    if U.shape[-2] > k:
        gA = gA + (_outside(U, gU, XU, k) * inverse.unsqueeze(-2) / scale) @ V1.mH
    if Vh.shape[-1] > k:
        gA = gA + U1 @ (_outside(Vh.mH, gV, XV, k) * inverse.unsqueeze(-2) / scale).mH
    return gA


def _outside(Q: Tensor, gQ: Tensor, X: Tensor, k: int) -> Tensor:
    """The part of gQ that moves the k leading columns of Q out of their span, (..., m, k).

    If Q has more columns, they turn against the leading ones, so their gradient belongs here as well.
    """
    leading, more = Q.narrow(-1, 0, k), Q.shape[-1] - k
    outside = gQ.narrow(-1, 0, k) - leading @ X
    return outside - Q.narrow(-1, k, more) @ (leading.mH @ gQ.narrow(-1, k, more)).mH if more else outside


def _pushforward(rule: PairRule, U: Tensor, S: Tensor, Vh: Tensor, dA: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    k = S.shape[-1]
    V = Vh.mH
    U1, V1 = U[..., :k], V[..., :k]
    P = U1.mH @ dA @ V1
    dS = torch.diagonal(P, dim1=-2, dim2=-1).real.clone()
    if k == 0:
        return torch.zeros_like(U), dS, torch.zeros_like(Vh)
    s, R, inverse = _weights(rule, S)
    scale = spectrum_scale(S).unsqueeze(-1)
    row, column = s.unsqueeze(-2), s.unsqueeze(-1)
    turnU = (R * (P * row + column * P.mH)) / scale
    turnV = (R * (column * P + P.mH * row)) / scale
    if U.is_complex():
        phase = torch.diagonal(P, dim1=-2, dim2=-1).imag * (0.5 * inverse) / scale[..., 0]
        turn = torch.diag_embed(torch.complex(torch.zeros_like(phase), phase))
        turnU, turnV = turnU + turn, turnV - turn
    dU = _turn(U, U1 @ turnU, (dA @ V1 - U1 @ P) * inverse.unsqueeze(-2) / scale, k)
    dV = _turn(V, V1 @ turnV, (dA.mH @ U1 - V1 @ P.mH) * inverse.unsqueeze(-2) / scale, k)
    return dU, dS, dV.mH


def _turn(Q: Tensor, inside: Tensor, outside: Tensor, k: int) -> Tensor:
    """dQ from the change of the leading columns within and out of their span."""
    if Q.shape[-2] == k:
        return inside
    leading, rest = Q[..., :k], Q[..., k:]
    return torch.cat([inside + outside, -leading @ (outside.mH @ rest)], -1)
