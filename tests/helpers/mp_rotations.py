"""Polar factors and derivatives in mpmath, to 90 digits: central differences, which know no formula of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import torch
from torch import Tensor

DIGITS = 90
#: Step of the differences. Their error is the square of step/σ, that of round-off 10^−DIGITS divided by its square.
STEP = mpmath.mpf(10) ** -26


def numbers(A: Tensor) -> list[Any]:
    """The entries, exactly; real and imaginary parts one after the other if they are complex."""
    flat = torch.view_as_real(A.detach().resolve_conj()) if A.is_complex() else A.detach()
    return [mpmath.mpf(x) for x in flat.double().flatten().tolist()]


def as_matrix(entries: Sequence[Any], like: Tensor) -> Any:
    """The inverse of :func:`numbers`: an mpmath matrix of the shape of ``like``, (m, n)."""
    if like.is_complex():
        entries = [mpmath.mpc(x, y) for x, y in zip(entries[::2], entries[1::2], strict=True)]
    m, n = like.shape
    return mpmath.matrix([[entries[i * n + j] for j in range(n)] for i in range(m)])


def polar_factor(A: Any, special: bool = False) -> Any:
    """P Qᴴ for A = P diag(σ) Qᴴ; with ``special``, its last column of P is negated if the determinant is −1."""
    decompose = mpmath.svd_c if any(isinstance(x, mpmath.mpc) for x in A) else mpmath.svd_r
    P, _, Qh = decompose(A, full_matrices=False)
    if special and mpmath.det(P) * mpmath.det(Qh) < 0:
        P[:, P.cols - 1] = -P[:, P.cols - 1]
    return P * Qh


def inner(G: Tensor, X: Any) -> Any:
    """Re⟨G, X⟩ for a tensor G and an mpmath matrix X of its shape."""
    other = as_matrix(numbers(G), G)
    return sum(mpmath.re(mpmath.conj(g) * x) for g, x in zip(other, X, strict=True))


def exact_gradient(value: Callable[[Sequence[Any]], Any], at: Tensor) -> Tensor:
    """The gradient of a function of :func:`numbers` at these, in double precision."""
    with mpmath.workdps(DIGITS):
        start, found = numbers(at), []
        for k in range(len(start)):
            ends = [value([*start[:k], start[k] + h, *start[k + 1 :]]) for h in (STEP, -STEP)]
            found.append(float((ends[0] - ends[1]) / (2 * STEP)))
    return _shaped(found, at)


def exact_second_derivative(value: Callable[[Sequence[Any]], Any], at: Tensor, direction: Tensor) -> Tensor:
    """The derivative of :func:`exact_gradient` in a direction."""
    with mpmath.workdps(DIGITS):
        start, along, found = numbers(at), numbers(direction), []
        sides = [[x + h * d for x, d in zip(start, along, strict=True)] for h in (STEP, -STEP)]
        for k in range(len(start)):
            ends = [value([*x[:k], x[k] + h, *x[k + 1 :]]) for x in sides for h in (STEP, -STEP)]
            found.append(float((ends[0] - ends[1] - ends[2] + ends[3]) / (4 * STEP**2)))
    return _shaped(found, at)


def _shaped(entries: list[float], like: Tensor) -> Tensor:
    flat = torch.tensor(entries, dtype=torch.float64)
    return torch.view_as_complex(flat.view(*like.shape, 2)) if like.is_complex() else flat.view(like.shape)
