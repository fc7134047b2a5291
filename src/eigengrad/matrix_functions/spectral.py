"""f(A) = V f(λ) Vᴴ with exact derivatives, ties or not.

With F_ij = f[λ_i, λ_j], the derivative in a direction E and (because it is self-adjoint) the backward pass are both

    D(A, E) = V [ F ∘ (Vᴴ E V) ] Vᴴ.

Its own derivative with respect to A in a direction P is the symmetric bilinear

    D²(A; E, P) = V [ Σ_k f[λ_i, λ_k, λ_j] (Ẽ_ik P̃_kj + P̃_ik Ẽ_kj) ] Vᴴ,    Ẽ = Vᴴ E V.

Three autograd functions, each the derivative of the one before: :func:`spectral`, :func:`directional`,
:func:`bilinear`. In all of them λ and V are constants that carry the decomposition of A; the gradient goes to A alone.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .. import kernels
from .._execution import can_read, forward_mode, functorch_active, is_constant, is_fast_path
from .._inputs import add_to_diagonal, check_matrix, matmul
from .._saved import save, saved
from .._transforms import Batched, Differentiable
from ..arguments import require_non_negative
from ..eigh import decompose, eigh
from ..errors import DomainError, first_index
from ..gradients import GradientRule
from ..gradients.observation import observe_exact
from ..gradients.spectrum import round_off
from ..kernels import function_vjp, gpu
from ..matmul import precise_matmul
from ..precision import full_precision, widen
from .divided_differences import ScalarFunction
from .hermitian import require_hermitian

__all__ = ["apply", "directional", "into_domain", "spectral"]


@runtime_checkable
class ClosedForm(Protocol):
    """A function that knows its second derivative in terms of the first, and so is differentiable to every order."""

    def bilinear(self, A: Tensor, E: Tensor, P: Tensor, L: Tensor, V: Tensor) -> Tensor:
        """D²(A; E, P)."""


def apply(
    name: str,
    A: Tensor,
    f: ScalarFunction,
    *,
    eps: float,
    gradient: str | GradientRule,
    driver: str | None,
    check_finite: bool | None,
    known_hermitian: bool = False,
) -> Tensor:
    """f(A + eps·I) with the spectrum clamped at ``eps``: the body of every matrix function.

    A rule is given the eigenvalues of A + eps·I, as in the paper; exact derivatives do not need to know. A caller who
    made A knows that it is Hermitian; others are refused if it is not.
    """
    check_matrix(name, A, square=True)
    plain = is_fast_path(A)  # asked once: the checks below would each ask what takes as long as they do
    if not known_hermitian:
        require_hermitian(name, A, check_finite, plain)
    require_non_negative(name, "eps", eps)
    with full_precision(A):
        M = widen(A)
        if isinstance(gradient, str) and gradient == "exact":
            L, V = decompose(name, M, driver, check_finite)
            L = into_domain(name, f, L + eps if eps else L, eps, plain)
            f.require_constant(L)
            S = spectral(M, L, V, f)
        else:
            shifted = add_to_diagonal(M, eps) if eps else M
            L, V = eigh(shifted, gradient=gradient, driver=driver, check_finite=check_finite)
            S = precise_matmul(V * f.value(into_domain(name, f, L, eps)).unsqueeze(-2), V.mH)
        return S if M is A else S.to(A.dtype)


def into_domain(name: str, f: ScalarFunction, L: Tensor, eps: float, plain: bool = False) -> Tensor:
    """The eigenvalues L of A + eps·I clamped at eps, or an error that names the matrix that f is not defined for.

    ``plain``: it is known that the numbers can be looked at.
    """
    if eps > 0:
        return L.clamp(min=eps)
    if f.domain == "real" or L.numel() == 0:
        return L
    if not plain and functorch_active() and not torch.compiler.is_compiling() and L.device.type == "cpu":
        _Domain.apply(L.detach(), name, f.domain)  # type: ignore[no-untyped-call]
    elif plain or (L.device.type == "cpu" and can_read(L)):
        if _is_inside(L, name, f.domain):
            return L
    elif f.domain != "non-zero":  # nobody can raise an error here: NaN is as loud as it gets
        return torch.where(L.detach() < -round_off(L.detach()), torch.nan, L.clamp(min=0))
    return L if f.domain == "non-zero" else L.clamp(min=0)


def _is_inside(L: Tensor, name: str, domain: str) -> bool:
    """Whether all eigenvalues are positive; an error where they are outside the domain by more than round-off."""
    if L.min().item() > 0:
        return True
    if domain == "non-zero":  # with both signs at hand, what is zero to round-off has neither a sign nor an inverse
        size = L.abs()
        smallest = size.amin(-1)
        zero = (smallest == 0) | ((L[..., 0] < 0) & (smallest <= round_off(L)[..., 0]))
        if zero.any():
            index = first_index(zero)
            raise DomainError(name, index, float(L[index][size[index].argmin()]), f"a {domain} spectrum")
        return True
    lowest = L[..., 0]
    outside = lowest <= 0 if domain == "positive" else lowest < -round_off(L)[..., 0]
    if outside.any():
        index = first_index(outside)
        raise DomainError(name, index, float(lowest[index]), f"a {domain} spectrum")
    return False


class _Domain(Batched):
    """The check as an autograd function: in its forward the numbers can be looked at even inside a transform."""

    @staticmethod
    def forward(L: Tensor, name: str, domain: str) -> Any:
        _is_inside(L, name, domain)
        return torch.empty_like(L)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None: ...


def spectral(A: Tensor, L: Tensor, V: Tensor, f: ScalarFunction) -> Tensor:
    """V f(λ) Vᴴ as a function of A."""
    if is_constant(A):
        return _Spectral.forward(A, L, V, f)
    S: Tensor = _spectral_op(A, L, V, f)
    return S


def directional(A: Tensor, E: Tensor, L: Tensor, V: Tensor, f: ScalarFunction) -> Tensor:
    """D(A, E) of the symmetric part of E, as a function of A and E."""
    if f.kernel is not None and kernels.usable(E):  # a plain backward pass
        D = function_vjp(f.kernel, L, V, E)
        if D is not None:
            return D
    if f.kernel is not None and gpu.usable(V, L, E):
        return gpu.function_vjp(f.kernel, L, V, E, lambda: directional_of((E + E.mH) * 0.5, L, V, f))
    if f.kernel is not None and gpu.is_operator(f"function_vjp {f.kernel}", V):
        from .. import gpu_operators

        by_operator: Tensor = gpu_operators.function_vjp(f.kernel, L, V, E)
        return by_operator
    E = (E + E.mH) * 0.5
    if not torch.is_grad_enabled() and not forward_mode() and can_read(E):
        return directional_of(E, L, V, f)
    found: Tensor = _directional_op(A, E, L, V, f)
    return found


def bilinear(A: Tensor, E: Tensor, P: Tensor, L: Tensor, V: Tensor, f: ScalarFunction) -> Tensor:
    """D²(A; E, P), as a function of A, E and P.

    A :class:`ClosedForm` goes on to every order; other functions stop here and say so.
    """
    if isinstance(f, ClosedForm):
        return f.bilinear(A, E, P, L, V)
    B: Tensor = _bilinear_op(A, E, P, L, V, f)
    return B


def directional_of(E: Tensor, L: Tensor, V: Tensor, f: ScalarFunction) -> Tensor:
    Vh = V.mH
    weighed = f.weigh(L.unsqueeze(-1), L.unsqueeze(-2), matmul(matmul(Vh, E), V))
    return matmul(matmul(V, weighed), Vh)


class _Spectral(Batched):
    @staticmethod
    def forward(A: Tensor, L: Tensor, V: Tensor, f: ScalarFunction) -> Tensor:
        return matmul(V * f.value(L).unsqueeze(-2), V.mH)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.f = inputs
        save(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Any:
        A, L, V = saved(ctx)
        with full_precision(V):
            observe_exact(G)
            return directional(A, G, L, V, ctx.f), None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor, *_: None) -> Any:
        A, L, V = saved(ctx)
        with full_precision(V):
            return directional(A, dA, L, V, ctx.f)


_spectral_op = Differentiable(_Spectral)


class _Directional(Batched):
    @staticmethod
    def forward(A: Tensor, E: Tensor, L: Tensor, V: Tensor, f: ScalarFunction) -> Any:
        return directional_of(E, L, V, f)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.f = inputs
        save(ctx, *tensors)

    @staticmethod
    def backward(ctx: Any, H: Tensor) -> Any:
        A, E, L, V = saved(ctx)
        with full_precision(V):
            gA = bilinear(A, H, E.mH, L, V, ctx.f)
            return (gA + gA.mH) * 0.5, directional(A, H, L, V, ctx.f), None, None, None

    @staticmethod
    def jvp(ctx: Any, dA: Tensor | None, dE: Tensor | None, *_: None) -> Any:
        A, E, L, V = saved(ctx)
        with full_precision(V):
            result = torch.zeros_like(E)
            if dE is not None:
                result = result + directional(A, dE, L, V, ctx.f)
            if dA is not None:
                result = result + bilinear(A, E, (dA + dA.mH) * 0.5, L, V, ctx.f)
            return result


_directional_op = Differentiable(_Directional)


class _Bilinear(Batched):
    @staticmethod
    def forward(A: Tensor, E: Tensor, P: Tensor, L: Tensor, V: Tensor, f: ScalarFunction) -> Any:
        x, y, z = L[..., :, None, None], L[..., None, :, None], L[..., None, None, :]
        F = f.second(x, z, y)  # [i, k, j]
        E, P = V.mH @ E @ V, V.mH @ P @ V
        paths = E.unsqueeze(-1) * P.unsqueeze(-3) + P.unsqueeze(-1) * E.unsqueeze(-3)
        return V @ (F * paths).sum(-2) @ V.mH

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.f = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(
            f"third derivatives of {type(ctx.f).__name__} are not available; matrix_sqrt and matrix_inv_sqrt "
            "have derivatives of every order. (torch.autograd.functional.hvp and vhp differentiate three times to get "
            "a second derivative: use torch.func.jvp of torch.func.grad instead.)"
        )

    @staticmethod
    def jvp(ctx: Any, *_: Tensor) -> Any:
        return _Bilinear.backward(ctx)


_bilinear_op = Differentiable(_Bilinear)
