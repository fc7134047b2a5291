"""Gradients in mpmath with 50 digits, and how ours are compared with them.

The oracles are closed forms that divide by no gap inside a tied space, evaluated at the very matrix, as it was rounded;
``tests/test_rotations_at_ties.py`` compares them with central differences, which know no formula.
"""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from torch import Tensor

F32, F64 = torch.float32, torch.float64
WITHIN = {F32: 1e-5, F64: 1e-10}
GAPS = [0.0, 1e-15, 1e-14, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
every_dtype = pytest.mark.parametrize("dtype", [F64, F32], ids=str)
every_gap = pytest.mark.parametrize("gap", GAPS)


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


def mp(X: Tensor) -> mpmath.matrix:
    """The numbers of a matrix, exactly."""
    return mpmath.matrix(X.detach().double().tolist())


def tensor(X: mpmath.matrix) -> Tensor:
    return torch.tensor([[float(X[i, j]) for j in range(X.cols)] for i in range(X.rows)], dtype=F64)


def entrywise(rows: int, columns: int, entry) -> mpmath.matrix:
    return mpmath.matrix([[entry(i, j) for j in range(columns)] for i in range(rows)])


def signs_of(U: mpmath.matrix, Vt: mpmath.matrix, special: bool) -> list[int]:
    """1, …, 1, ±1: the sign that makes U diag(…) Vᵀ a rotation."""
    k = U.cols
    last = mpmath.sign(mpmath.det(U) * mpmath.det(Vt)) if special else 1
    return [1] * (k - 1) + [int(last)]


def mp_rotation(A: mpmath.matrix, special: bool = False) -> mpmath.matrix:
    """U Vᵀ, or U diag(1, …, 1, det) Vᵀ."""
    U, _, Vt = mpmath.svd_r(A, full_matrices=False)
    return U * mpmath.diag(signs_of(U, Vt, special)) * Vt


def rotation_gradient(A: mpmath.matrix, G: mpmath.matrix, special: bool = False) -> mpmath.matrix:
    """The gradient of ⟨G, U D Vᵀ⟩: (P_ij − P_ji)/(d_i σ_i + d_j σ_j) in the basis of the singular vectors."""
    U, S, Vt = mpmath.svd_r(A, full_matrices=False)
    d = signs_of(U, Vt, special)
    k, U, V = len(d), U * mpmath.diag(d), Vt.T
    s = [S[i] * d[i] for i in range(k)]
    P = U.T * G * V
    K = entrywise(k, k, lambda i, j: mpmath.mpf(0) if i == j else (P[i, j] - P[j, i]) / (s[i] + s[j]))
    gA = U * K * V.T
    if A.rows > k:
        gA += (G * V - U * P) * mpmath.diag([1 / x for x in s]) * V.T
    if A.cols > k:
        gA += U * mpmath.diag([1 / x for x in s]) * (U.T * G - P * V.T)
    return gA


def mp_projector(A: mpmath.matrix, kept: range) -> mpmath.matrix:
    """The projector on eigenvectors of symmetric A, by their position in ascending order."""
    _, Q = mpmath.eigsy(A)
    V = entrywise(A.rows, len(kept), lambda i, j: Q[i, kept[j]])
    return V * V.T


def projector_gradient(A: mpmath.matrix, G: mpmath.matrix, kept: range) -> mpmath.matrix:
    """The gradient of ⟨G, P(A)⟩: divided differences of the step, which vanish for two kept or two dropped ones."""
    L, Q = mpmath.eigsy(A)
    H = Q.T * (G + G.T) * Q / 2

    def entry(i, j):
        return mpmath.mpf(0) if (i in kept) == (j in kept) else H[i, j] * ((i in kept) - (j in kept)) / (L[i] - L[j])

    return Q * entrywise(A.rows, A.rows, entry) * Q.T


def left_projector_gradient(A: mpmath.matrix, G: mpmath.matrix, kept: range) -> mpmath.matrix:
    """The gradient of ⟨G, P(A Aᵀ)⟩ by A."""
    return 2 * projector_gradient(A * A.T, G, kept) * A


def differences(function, A: mpmath.matrix, G: mpmath.matrix, symmetric: bool) -> mpmath.matrix:
    """The gradient of ⟨G, function(A)⟩ by central differences with 80 digits."""
    with mpmath.workdps(80):
        h = mpmath.mpf(10) ** -26
        result = mpmath.zeros(A.rows, A.cols)
        for i, j in itertools.product(range(A.rows), range(A.cols)):
            E = mpmath.zeros(A.rows, A.cols)
            E[i, j] += h / 2
            E[(j, i) if symmetric else (i, j)] += h / 2
            D = function(A + E) - function(A - E)
            result[i, j] = sum(g * d for g, d in zip(G, D, strict=True)) / (2 * h)
        return result


def relative_error(actual: Tensor, expected: mpmath.matrix | Tensor) -> float:
    expected = expected if isinstance(expected, Tensor) else tensor(expected)
    error = torch.linalg.norm(actual.double() - expected) / torch.linalg.norm(expected)
    return error.item() if math.isfinite(error) else math.inf


def randn(*shape: int, dtype: torch.dtype = F64, seed: int = 100) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def symmetric(X: Tensor) -> Tensor:
    return (X + X.mT) / 2


def gradient(function, A: Tensor, G: Tensor) -> Tensor:
    """The gradient of ⟨G, function(A)⟩ by A."""
    A = A.detach().clone().requires_grad_()
    return torch.autograd.grad((function(A) * G).sum(), A)[0]


def errors(actual: Tensor, expected: Tensor) -> float:
    """The largest relative error of a batch."""
    norm = torch.linalg.matrix_norm
    worst = (norm(actual.double() - expected.double()) / norm(expected.double())).max()
    return worst.item() if math.isfinite(worst) else math.inf
