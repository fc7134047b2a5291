"""Losses of a matrix whose exact gradient is known, differentiated through every rule.

The losses are the same whatever signs, phases and bases of tied spaces a decomposition returns, so that gradients in
two precisions can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..diagnostics import GradientMonitor
from ..eigh import eigh
from ..errors import LinAlgError
from ..gradients import RULES, GradientRule, Mask, PairRule, UnitNormOrNaN
from ..gradients.spectrum import round_off
from ..matrix_functions import low_rank, matrix_exp, matrix_inv_sqrt, polar, spectral_projector
from ..svd import svd
from .diagnosis import Effect, Loss

__all__ = ["hermitian_losses", "offered", "singular_losses", "widest_gap"]

#: Rows above which power iteration, a loop over eigenvectors, is left out.
_LARGEST_FOR_ITERATION = 128


def offered() -> dict[str, GradientRule]:
    """The rules that somebody could want, by name: not the one that is there to be refuted."""
    return {name: rule for name, rule in RULES.items() if not isinstance(rule, UnitNormOrNaN)}


def hermitian_losses(A: Tensor, tied: Tensor, eps: float | None) -> tuple[Loss, ...]:
    """What becomes of losses of the eigenvectors, of a matrix function and of a subspace.

    Args:
        A: Hermitian (n, n), of the type that the gradients are taken in.
        tied: boolean (n − 1,), whether an eigenvalue equals the next, in ascending order.
        eps: of ``matrix_inv_sqrt``; None for an indefinite matrix, whose exponential is taken.
    """
    n, exact = A.shape[-1], A.to(torch.promote_types(A.dtype, torch.float64))
    # Gaussian, and Hermitian.
    G = _random(n, n, like=exact, seed=0)
    G = (G + G.mH) / 2
    weights = _cluster_weights(tied)
    scale = float(exact.abs().amax()) or 1.0
    k = widest_gap(torch.linalg.eigvalsh(exact))

    def vectors(L: Tensor, V: Tensor) -> Tensor:
        return (weights.to(L) * (V.conj() * (G.to(V) @ V)).sum(-2).real).sum()

    def function(L: Tensor, V: Tensor) -> Tensor:
        values = (L / scale).exp() if eps is None else (L.clamp(min=0) + eps).rsqrt()
        return _inner(G, (V * values.to(V)) @ V.mH)

    def subspace(L: Tensor, V: Tensor) -> Tensor:
        return _inner(G, V[:, n - k :] @ V[:, n - k :].mH)

    def whole_function(X: Tensor) -> Tensor:
        return _inner(G, matrix_exp(X / scale) if eps is None else matrix_inv_sqrt(X, eps=eps))

    def whole_subspace(X: Tensor) -> Tensor:
        return _inner(G, spectral_projector(X, k))

    name = "exp(A/|A|)" if eps is None else "A^(-1/2)"
    call = "matrix_exp(A)" if eps is None else "matrix_inv_sqrt(A)" if not eps else f"matrix_inv_sqrt(A, eps={eps:g})"
    rules = {key: rule for key, rule in offered().items() if isinstance(rule, PairRule) or n <= _LARGEST_FOR_ITERATION}

    def decompose(X: Tensor, rule: GradientRule) -> tuple[Tensor, ...]:
        return tuple(eigh(X, gradient=rule))

    losses = [_single_vectors(vectors, decompose, A, exact, rules)]
    losses.append(_with_function(name, call, function, whole_function, decompose, A, exact, rules))
    if k:
        call = f"spectral_projector(A, {k})"
        losses.append(_with_function(f"subspace, k={k}", call, subspace, whole_subspace, decompose, A, exact, rules))
    return tuple(losses)


def singular_losses(A: Tensor, tied: Tensor, full_rank: bool) -> tuple[Loss, ...]:
    """What becomes of losses of the singular vectors, of a rotation and of a truncation.

    Args:
        A: (m, n), of the type that the gradients are taken in.
        tied: boolean (min(m, n) − 1,), whether a singular value equals the next, in ascending order.
        full_rank: whether none of them is zero to round-off.
    """
    exact = A.to(torch.promote_types(A.dtype, torch.float64))
    G = _random(*A.shape, like=exact, seed=0)
    weights = _cluster_weights(tied.flip(0))
    k = widest_gap(torch.linalg.svdvals(exact).flip(0))

    def vectors(U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
        return (weights.to(S) * (U.conj() * (G.to(U) @ Vh.mH)).sum(-2).real).sum()

    def rotation(U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
        return _inner(G, U @ Vh)

    def truncation(U: Tensor, S: Tensor, Vh: Tensor) -> Tensor:
        return _inner(G, (U[:, :k] * S[:k].to(U)) @ Vh[:k])

    def decompose(X: Tensor, rule: GradientRule) -> tuple[Tensor, ...]:
        return tuple(svd(X, full_matrices=False, gradient=rule))

    rules = {name: rule for name, rule in offered().items() if isinstance(rule, PairRule)}
    losses = [_single_vectors(vectors, decompose, A, exact, rules)]
    if full_rank:
        losses.append(
            _with_function("U Vh", "polar(A).U", rotation, lambda X: _inner(G, polar(X).U), decompose, A, exact, rules)
        )
    if k:
        losses.append(
            _with_function(
                f"rank {k}",
                f"low_rank(A, {k})",
                truncation,
                lambda X: _inner(G, low_rank(X, k)),
                decompose,
                A,
                exact,
                rules,
            )
        )
    return tuple(losses)


def widest_gap(values: Tensor) -> int:
    """How many of the largest of ascending values (n,) to take so that the cut is in the widest gap; 0 if all tie."""
    gaps = values.diff()
    if gaps.numel() == 0 or bool(gaps.amax() <= round_off(values)):
        return 0
    return int(values.numel() - 1 - gaps.argmax())


_Decompose = Callable[[Tensor, GradientRule], tuple[Tensor, ...]]


def _single_vectors(
    loss: Callable[..., Tensor], decompose: _Decompose, A: Tensor, exact: Tensor, rules: Mapping[str, GradientRule]
) -> Loss:
    """The loss of single vectors. Between those that tie it has no gradient: they all have the same weight in it."""
    reference = _gradient(lambda X: loss(*decompose(X, Mask())), exact)
    return Loss("single vectors", _effects(loss, decompose, A, rules, reference))


def _with_function(
    name: str,
    call: str,
    loss: Callable[..., Tensor],
    whole: Callable[[Tensor], Tensor],
    decompose: _Decompose,
    A: Tensor,
    exact: Tensor,
    rules: Mapping[str, GradientRule],
) -> Loss:
    """A loss that a function of eigengrad computes whole, which is the reference in float64."""
    reference = _gradient(whole, exact)
    effects, own = _effects(loss, decompose, A, rules, reference), _gradient(whole, A)
    if effects is None or own is None or reference is None:
        return Loss(name, None, call)
    return Loss(name, effects, call, _effect(own, reference))


def _effects(
    loss: Callable[..., Tensor],
    decompose: _Decompose,
    A: Tensor,
    rules: Mapping[str, GradientRule],
    reference: Tensor | None,
) -> dict[str, Effect] | None:
    """The effect of each rule; None if the exact gradient does not exist, or is zero."""
    if reference is None or not bool(reference.isfinite().all()) or float(reference.norm()) == 0:
        return None
    effects = {}
    for name, rule in rules.items():
        gradient = _gradient(lambda X: loss(*decompose(X, rule)), A)  # noqa: B023 (called at once)
        if gradient is not None:
            effects[name] = _effect(gradient, reference)
    return effects


def _gradient(loss: Callable[[Tensor], Tensor], A: Tensor) -> Tensor | None:
    """The gradient of a loss at A; None where the function refuses A."""
    X = A.detach().clone().requires_grad_()
    try:
        with torch.enable_grad(), GradientMonitor():  # which also means: no warnings
            (gradient,) = torch.autograd.grad(loss(X), X)
    except (LinAlgError, ValueError):
        return None
    return gradient


def _effect(gradient: Tensor, reference: Tensor) -> Effect:
    size = float(reference.norm())
    gradient = gradient.to(reference)
    return Effect(float(gradient.norm()) / size, float((gradient - reference).norm()) / size)


def _inner(G: Tensor, X: Tensor) -> Tensor:
    return (G.to(X).conj() * X).sum().real


def _random(*shape: int, like: Tensor, seed: int) -> Tensor:
    """Gaussian numbers of the type of a tensor, the same in every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=like.dtype) / math.sqrt(shape[-1])


def _cluster_weights(tied: Tensor) -> Tensor:
    """Random weights (n,), the same for values that tie."""
    cluster = torch.cat([torch.zeros(1, dtype=torch.int64), (~tied).long().cumsum(0)])
    return torch.rand(cluster.numel(), generator=torch.Generator().manual_seed(1), dtype=torch.float64)[cluster]
