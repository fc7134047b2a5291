"""``eigh``: the Hermitian eigendecomposition, with a gradient that survives ties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import solvers
from ._compat import direct_apply
from ._execution import can_read, forward_mode, functorch_active, is_constant, is_fast_path
from ._inputs import check_matrix
from ._return_types import EighResult, eigh_result
from ._transforms import Batched, Differentiable
from .arguments import require_count
from .errors import GaugeError, unknown_choice
from .generalized import check_pair, reduce_pencil
from .gradients import GradientRule, PairRule, resolve
from .gradients.partial import Partial
from .gradients.removed import CallSite, attributed, call_site
from .gradients.resolvent import Complement, Operator, kept_pairs
from .precision import autocasting, full_precision, real_dtype, widen

__all__ = ["eigh"]


def eigh(
    A: Tensor,
    UPLO: str = "L",
    *,
    B: Tensor | None = None,
    k: int | None = None,
    gradient: str | GradientRule = "saturate",
    driver: str | None = None,
    check_finite: bool | None = None,
) -> EighResult:
    r"""Eigenvalues and eigenvectors of a Hermitian matrix: :func:`torch.linalg.eigh` that you can train through.

    A = V diag(λ) Vᴴ. The values are those of :func:`torch.linalg.eigh`; the derivative of the eigenvectors uses a
    gradient rule where torch divides by λ_j − λ_i, so that it stays finite when eigenvalues are close or equal:

        gA = V [ ½ (X − Xᴴ) ∘ R + diag(gλ) ] Vᴴ,   X = Vᴴ gV,   R_ij in place of 1/(λ_j − λ_i).

    The default rule changes nothing where eigenvalues are apart; see :class:`eigengrad.Saturate`. Where a rule removes
    more than half of a gradient, a :class:`eigengrad.GradientWarning` says so, once for each line that calls.

    Eigenvectors are determined up to a phase (a sign for real matrices), so a loss should not depend on it. For
    complex matrices one that does raises an error, as it does in torch.

    Args:
        A: Hermitian, (..., n, n), of any batch shape; float16, bfloat16 (computed in float32), float32, float64 or
            complex. Only one triangle is read.
        UPLO: which triangle: "L" or "U".
        B: positive definite, (..., n, n), for the generalised problem A x = λ B x; its eigenvectors have Vᴴ B V = I.
            The gradient of B is that of torch's Cholesky factor: run the backward pass outside of autocast.
        k: only the k largest eigenvalues and their vectors, or the −k smallest if negative. A loss of the subspace of
            these vectors then has its exact derivatives, of every order, at ties on either side of the cut: between
            kept and dropped no rule is used.
        gradient: a rule such as ``Saturate(rtol=1e-5)``, or its name: "saturate", "exact", "taylor", "clip",
            "lorentzian", "mask", "truncate", "power_iteration".
        driver: who computes the decomposition; ``None`` chooses.
        check_finite: look for NaN and infinity first. ``None`` does so on the CPU, where it is nearly free; on
            other devices it would wait for the device.

    Returns:
        ``(eigenvalues, eigenvectors)``: ascending (..., n), and (..., n, n) with the eigenvectors as columns; |k| of
        them if k is given.

    Raises:
        NonFiniteError, ConvergenceError, NotPositiveDefiniteError: all are ``torch.linalg.LinAlgError`` and name the
            batch element.

    >>> import torch, eigengrad as eg
    >>> A = torch.eye(3, requires_grad=True)                 # torch.linalg.eigh gives NaN here
    >>> L, V = eg.eigh(A)
    >>> V[0].sum().backward()
    >>> bool(torch.isfinite(A.grad).all())
    True
    """
    if B is None and k is None and UPLO == "L" and driver is None and is_fast_path(A):
        plan = solvers.plan(A)
        if plan is not None:  # the common case, without ten microseconds of questions
            rule = resolve(gradient)
            if A.requires_grad and torch.is_grad_enabled():
                return eigh_result(*direct_apply(_Eigh)(A, UPLO, rule, plan, check_finite, call_site()))
            return eigh_result(*solvers.decompose("eigh", A, UPLO, plan))
    check_matrix("eigh", A, square=True)
    if not isinstance(UPLO, str) or UPLO not in _TRIANGLES:
        raise unknown_choice("UPLO", UPLO, ("L", "U"))
    if autocasting(A):
        with full_precision(A):
            return eigh(A, UPLO, B=B, k=k, gradient=gradient, driver=driver, check_finite=check_finite)
    triangle, rule, solver = _TRIANGLES[UPLO], resolve(gradient), solvers.resolve(driver)
    M, factor = widen(A), None
    if B is not None:
        check_pair(A, B)
        M, factor = reduce_pencil(M, widen(B), triangle, check_finite)
        triangle = "L"
    if k is not None:
        require_count("eigh", k, A.shape[-1])
    if is_constant(M):
        L, V = solvers.eigh(M, triangle, solver, check_finite)
    elif k is not None and isinstance(rule, PairRule):
        pairs = decompose("eigh", M, driver, check_finite, triangle)
        L, V = kept_pairs(M, pairs, _Hermitian(Partial(rule, k)), call_site())
    else:
        L, V = _eigh_op(M, triangle, rule, solver, check_finite, call_site())
    if k is not None and L.shape[-1] > abs(k):
        first = A.shape[-1] - k if k > 0 else 0
        L, V = L.narrow(-1, first, abs(k)), V.narrow(-1, first, abs(k))
    if factor is not None:
        V = torch.linalg.solve_triangular(factor.mH, V, upper=True)
    if V.dtype != A.dtype:
        L, V = L.to(real_dtype(A.dtype)), V.to(A.dtype)
    return eigh_result(L, V)


_TOLERATED = 1e-2  # dependence of a loss on the phase, in torch
_TRIANGLES = {"L": "L", "l": "L", "U": "U", "u": "U"}


def decompose(
    function: str, A: Tensor, driver: str | None, check_finite: bool | None, UPLO: str = "L"
) -> tuple[Tensor, Tensor]:
    """The eigenpairs as constants, for a caller with a derivative of its own."""
    plan = solvers.plan(A) if driver is None and UPLO == "L" and is_fast_path(A) else None
    if plan is not None:
        return solvers.decompose(function, A, UPLO, plan)
    if not functorch_active():
        return solvers.eigh(A.detach(), UPLO, solvers.resolve(driver), check_finite, function)
    result = eigh(A.detach(), UPLO, gradient="mask", driver=driver, check_finite=check_finite)
    return result.eigenvalues, result.eigenvectors


class _Eigh(Batched):
    @staticmethod
    def forward(
        A: Tensor,
        UPLO: str,
        rule: GradientRule,
        driver: str | solvers.Plan,
        check_finite: bool | None,
        site: CallSite | None,
    ) -> Any:
        return solvers.eigh(A, UPLO, driver, check_finite)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.rule, ctx.site = inputs[2], inputs[5]
        ctx.save_for_backward(*output)
        if forward_mode():
            ctx.save_for_forward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gL: Tensor | None, gV: Tensor | None) -> Any:
        L, V = ctx.saved_tensors
        if gV is None or V.dtype is not gV.dtype:
            L, V = _in_type_of(gL, gV, L, V)
        if autocasting(V):
            with full_precision(V):
                return _Eigh.backward(ctx, gL, gV)
        return attributed("eigh", ctx.site, _pullback, ctx.rule, L, V, gL, gV), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        with full_precision(dA):
            return ctx.rule.pushforward(*ctx.saved_tensors, dA)


_eigh_op = Differentiable(_Eigh)


def _pullback(rule: GradientRule, L: Tensor, V: Tensor, gL: Tensor | None, gV: Tensor | None) -> Tensor:
    if gV is not None and V.dtype.is_complex:
        refusal = check_phase_invariance("eigh", V.mH @ gV, L)
        gV = gV if refusal is None else gV + refusal
    return rule.pullback(L, V, gL, gV)


@dataclass(frozen=True)
class _Hermitian(Operator):
    """A itself."""

    weight: ClassVar[float] = 1.0
    function: ClassVar[str] = "eigh"

    def kept(self, *results: Tensor) -> tuple[Tensor, ...]:
        L, V = results
        first, count = self.rule.padding(L.shape[-1])[0], abs(self.rule.k)
        return L.narrow(-1, first, count).clone(), V.narrow(-1, first, count).clone()

    def pairs(self, *results: Tensor) -> tuple[Tensor, Tensor]:
        L, V = results
        return L, V

    def results(self, L: Tensor, V: Tensor, shape: torch.Size) -> tuple[Tensor, ...]:
        return L, V

    def gradients(self, kept: tuple[Tensor, ...], *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        gL, gV = gradients
        return gL, gV

    def first_derivative(self, results: tuple[Tensor, ...], *gradients: Tensor | None) -> Tensor:
        L, V = results
        columns = self.rule.padding(L.shape[-1])
        gL, gV = (None if g is None else pad(g, columns) for g in gradients)
        return _pullback(self.rule, L, V, gL, gV)

    def image(self, dA: Tensor, X: Tensor) -> Tensor:
        return (dA + dA.mH) @ (X * 0.5)

    def outer(self, P: Tensor, Q: Tensor, shape: torch.Size) -> Tensor:
        product = P @ Q.mH
        return (product + product.mH) * 0.5

    def complement(self, L: Tensor, V: Tensor, R: Tensor, shape: torch.Size) -> Complement:
        return Complement(V, self.rule.across(R), None)

    def check_phase(self, X: Tensor, L: Tensor) -> Tensor | None:
        return check_phase_invariance(self.function, X, L)


def _in_type_of(gL: Tensor | None, gV: Tensor | None, L: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """L and V in the precision of their gradients: ``saved_tensors_hooks`` may have handed them back in another."""
    given = gL if gV is None else gV
    if given is None:
        return L, V
    real = real_dtype(given.dtype)
    return L.to(real), V.to(real.to_complex() if V.dtype.is_complex else real)


def check_phase_invariance(function: str, X: Tensor, values: Tensor) -> Tensor | None:
    """Refuse a loss that depends on the arbitrary phase of complex eigenvectors: Im diag(Vᴴ gV) ≠ 0.

    Only for eigenvalues that stand alone: the vectors of close ones are determined even less, and their gradient may
    be nothing but round-off. So may a thousandth of the gradient of a loss in lower precision, and a hundredth where
    torch tolerates its size.

    Args:
        function: what the error names.
        X: Vᴴ gV, (..., n, n).
        values: the eigenvalues in order, (..., n), or more of them: what follows the n-th has no column in X.

    Returns:
        None on the CPU. Elsewhere an error would wait for the device: (..., 1, 1), to be added to the gradient, NaN for
        the matrices that are refused, else 0.
    """
    if not can_read(X) or X.numel() == 0:
        return None
    n, eps = X.shape[-1], torch.finfo(X.dtype).eps
    far = torch.full_like(values[..., :1], torch.inf)
    gaps = torch.cat([far, values.diff(dim=-1).abs(), far], -1)
    alone = torch.minimum(gaps[..., :-1], gaps[..., 1:]) > eps**0.5 * values.abs().amax(-1, keepdim=True)
    phase = X.diagonal(dim1=-2, dim2=-1).imag.abs() * alone[..., :n]
    largest = X.abs().amax((-2, -1)).unsqueeze(-1)
    depends = phase > torch.where(phase > _TOLERATED, 1e-3, 1e-2) * largest
    if X.device.type != "cpu":
        return torch.where(depends.any(-1)[..., None, None], torch.nan, 0.0)
    if depends.any():
        raise GaugeError(function)
    return None
