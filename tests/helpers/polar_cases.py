"""The factors of the polar decomposition, and matrices at which they have derivatives."""

from __future__ import annotations

import pytest
import torch

import eigengrad as eg
from functions_matrix import randn, rotation

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
real_and_complex = pytest.mark.parametrize("dtype", [F64, C128], ids=str)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def polar_u(A):
    return eg.polar(A).U


def polar_h(A):
    return eg.polar(A).H


def rotation_u(A):
    return eg.polar(A, special=True).U


def rotation_h(A):
    return eg.polar(A, special=True).H


def with_determinant_sign(A, sign):
    """A or, if its determinant has another sign, A with its first row negated."""
    return A if torch.linalg.det(A) * sign > 0 else torch.cat([-A[:1], A[1:]])


def with_singular_values(sigma, m=None, n=None, dtype=F64, seed=0):
    """P diag(σ) Qᴴ, m × n, with random P and Q."""
    sigma = torch.as_tensor(sigma, dtype=F64)
    k = len(sigma)
    m, n = m or k, n or k
    return rotation(m, dtype, seed)[:, :k] * sigma @ rotation(n, dtype, seed + 1)[:, :k].mH


#: Where the decomposition of the singular vectors has no derivative, and U has one.
SMOOTH = {
    "generic": with_singular_values([0.5, 1.2, 2.0]),
    "orthogonal": rotation(3),
    "identity": torch.eye(3, dtype=F64),
    "tied pair": with_singular_values([1.0, 1.0, 2.0]),
    "gap 1e-9": with_singular_values([1.0, 1.0 + 1e-9, 2.0]),
    "reflection": torch.diag(torch.tensor([1.0, 1.0, -1.0], dtype=F64)),
    "tall, tied": with_singular_values([1.5, 1.5], 4, 2),
    "wide, tied": with_singular_values([1.5, 1.5], 2, 4),
    "tall, generic": with_singular_values([0.7, 1.5], 3, 2),
}


def check_third_derivative(A, factor):
    E = [randn(*A.shape, seed=k) for k in range(3)]

    def mixed(order, *at):
        t = [torch.tensor(v, dtype=F64, requires_grad=True) for v in at]
        S = factor(A + sum(x * D for x, D in zip(t, E, strict=True)))
        value = (S * randn(*S.shape, seed=9)).sum()
        for x in t[:order]:
            (value,) = torch.autograd.grad(value, x, create_graph=True)
        return value.item()

    h = 1e-4
    differences = (mixed(2, 0.0, 0.0, h) - mixed(2, 0.0, 0.0, -h)) / (2 * h)
    assert mixed(3, 0.0, 0.0, 0.0) == pytest.approx(differences, rel=1e-5, abs=1e-5)


def second(call, A, G, P):
    A = A.clone().requires_grad_()
    (g,) = torch.autograd.grad(call(A), A, G, create_graph=True)
    return g.detach(), torch.autograd.grad(g, A, P)[0]


def signed(diagonal):
    return torch.diag(torch.tensor(diagonal, dtype=F64))


#: Where the nearest rotation has derivatives.
ROTATIONS = {
    "generic": with_singular_values([0.5, 1.2, 2.0]),
    "generic, det < 0": with_determinant_sign(with_singular_values([0.5, 1.2, 2.0]), -1),
    "identity": torch.eye(3, dtype=F64),
    "2 × 2 identity": torch.eye(2, dtype=F64),
    "orthogonal": with_determinant_sign(rotation(3), 1),
    "tied pair": with_determinant_sign(with_singular_values([1.0, 1.0, 2.0]), 1),
    "tied pair, det < 0": with_determinant_sign(with_singular_values([1.0, 2.0, 2.0]), -1),
    "exact tie, det < 0": signed([1.0, 1.0, -0.5]),
    "singular": signed([2.0, 1.0, 0.0]),
    "singular, tied": signed([1.0, 1.0, 0.0]),
    "singular 2 × 2": with_singular_values([1.0, 0.0]),
    "5 × 5, det < 0": with_determinant_sign(with_singular_values([0.2, 1.0, 1.0, 2.0, 2.0]), -1),
}
