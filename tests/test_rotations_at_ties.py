"""The gradients of U Vᴴ and rotations through svd, against mpmath: at ties, beside them, near rank deficiency."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.testing import random_hermitian, random_matrix
from mp_oracles import (
    F64,
    WITHIN,
    differences,
    every_dtype,
    every_gap,
    fifty_digits,  # noqa: F401 - used by every test
    gradient,
    left_projector_gradient,
    mp,
    mp_projector,
    mp_rotation,
    projector_gradient,
    randn,
    relative_error,
    rotation_gradient,
    tensor,
)

SINGULAR_VALUES = [2.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize("values", [SINGULAR_VALUES, [1.0, 1.0, 1.0, 1.0], [3.0, 2.0, 1.0, 0.5]], ids=str)
@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)], ids=str)
def test_the_oracles_are_central_differences(shape, values, generator):
    A = mp(random_matrix(torch.tensor(values), *shape, generator))
    G = mp(randn(*shape))
    expected = differences(mp_rotation, A, G, symmetric=False)
    assert relative_error(tensor(rotation_gradient(A, G)), expected) < 1e-15
    if shape == (4, 4):
        S = mp(random_hermitian(torch.tensor([1.0, 1.0, 3.0, 3.0]), generator))
        expected = differences(lambda X: mp_projector(X, range(2, 4)), S, G, symmetric=True)
        assert relative_error(tensor(projector_gradient(S, G, range(2, 4))), expected) < 1e-15
        A = mp(random_matrix(torch.tensor([3.0, 2.0, 1.0, 0.0]), *shape, generator))
        expected = differences(lambda X: mp_rotation(X, special=True), A, G, symmetric=False)
        assert relative_error(tensor(rotation_gradient(A, G, special=True)), expected) < 1e-15
    m = shape[0]
    A = mp(random_matrix(torch.tensor([3.0, 3.0, 0.0, 0.0]), *shape, generator))
    expected = differences(lambda X: mp_projector(X * X.T, range(m - 2, m)), A, mp(randn(m, m)), symmetric=False)
    assert relative_error(tensor(left_projector_gradient(A, mp(randn(m, m)), range(m - 2, m))), expected) < 1e-15


def rotation(A: Tensor, **options) -> Tensor:
    U, _, Vh = eg.svd(A, full_matrices=False, **options)
    return U @ Vh


def pose(A: Tensor, **options) -> Tensor:
    """The usual layer: U diag(1, 1, det) Vh with a constant determinant."""
    U, _, Vh = eg.svd(A, **options)
    D = torch.ones_like(A[..., 0])
    D[..., -1] = torch.linalg.det(U @ Vh).detach().sign()
    return (U * D.unsqueeze(-2)) @ Vh


SHAPES = [(2, 2), (3, 3), (5, 5), (6, 4), (4, 6), (5, 1), (1, 5)]


def values_with_gap(k: int, gap: float) -> Tensor:
    """1, 1 + gap, and beyond: about half of the values in one tie, the others in another."""
    return torch.tensor([(1.0 if i % 2 else 2.0) + gap * (i // 2) for i in range(k)], dtype=F64).sort(0, True).values


@pytest.mark.sample(2)
@every_dtype
@every_gap
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("full_matrices", [False, True], ids=["thin", "full"])
def test_the_gradient_of_u_vh_is_exact_at_and_beside_ties(shape, gap, full_matrices, dtype, generator):
    k = min(shape)
    A = random_matrix(values_with_gap(k, gap), *shape, generator, dtype)
    G = randn(*shape, dtype=dtype)

    def product(A):
        U, _, Vh = eg.svd(A, full_matrices)
        return U[:, :k] @ Vh[:k]

    assert relative_error(gradient(product, A, G), rotation_gradient(mp(A), mp(G))) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 3.0, 1e-20, 1e20])
def test_the_gradient_of_u_vh_is_exact_at_the_identity(shape, scale, dtype):
    A, G = scale * torch.eye(*shape, dtype=dtype), randn(*shape, dtype=dtype)
    expected = rotation_gradient(mp(A), mp(G))
    assert relative_error(gradient(rotation, A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("rule", ["saturate", "mask", "taylor", "clip", "lorentzian", "truncate"])
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-8, 1e-4, 1e-2])
def test_the_gradient_of_u_vh_is_exact_whatever_the_rule(gap, rule, dtype, generator):
    A = random_matrix(values_with_gap(4, gap), 4, 4, generator, dtype)
    G = randn(4, 4, dtype=dtype)
    expected = rotation_gradient(mp(A), mp(G))
    assert relative_error(gradient(lambda A: rotation(A, gradient=rule), A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("n", [8, 24, 64])
def test_round_off_in_u_vh_is_not_amplified_for_larger_matrices(n, dtype, generator):
    """Against the Sylvester form in float64, which the small sizes have compared with mpmath."""
    for seed in range(4):
        A = random_matrix(values_with_gap(n, 1e-7 * seed), n, n, generator, dtype)
        G = randn(n, n, dtype=dtype, seed=seed)
        U, S, Vh = torch.linalg.svd(A.double())
        P = U.mT @ G.double() @ Vh.mT
        expected = U @ ((P - P.mT) / (S.unsqueeze(-1) + S)) @ Vh
        assert relative_error(gradient(rotation, A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("smallest", [1e-1, 1e-2, 1e-3])
@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)], ids=str)
def test_the_gradient_of_u_vh_near_rank_deficiency_is_as_accurate_as_its_condition_allows(
    shape, smallest, dtype, generator
):
    A = random_matrix(torch.tensor([1.0, 1.0, smallest, smallest]), *shape, generator, dtype)
    G = randn(*shape, dtype=dtype)
    tolerance = 10 * torch.finfo(dtype).eps / smallest
    assert relative_error(gradient(rotation, A, G), rotation_gradient(mp(A), mp(G))) < max(tolerance, 1e-14)


def with_determinant(values: list[float], sign: int, generator, dtype) -> Tensor:
    A = random_matrix(torch.tensor(values, dtype=F64), 3, 3, generator, F64)
    if torch.linalg.det(A) * sign < 0:
        A = A[[1, 0, 2]]
    return A.to(dtype)


@pytest.mark.sample(2)
@every_dtype
@every_gap
@pytest.mark.parametrize("tie", ["leading", "trailing", "all"])
def test_the_pose_layer_is_exact_at_and_beside_ties(tie, gap, dtype, generator):
    values = {"leading": [2 + gap, 2, 1], "trailing": [2, 1 + gap, 1], "all": [1 + 2 * gap, 1 + gap, 1]}[tie]
    A, G = with_determinant(values, 1, generator, dtype), randn(3, 3, dtype=dtype)
    expected = rotation_gradient(mp(A), mp(G), special=True)
    assert relative_error(gradient(pose, A, G), expected) < WITHIN[dtype]


@every_dtype
@every_gap
def test_the_pose_layer_is_exact_for_reflections_whose_last_value_stands_alone(gap, dtype, generator):
    A, G = with_determinant([2 + gap, 2, 1], -1, generator, dtype), randn(3, 3, dtype=dtype)
    expected = rotation_gradient(mp(A), mp(G), special=True)
    assert relative_error(gradient(pose, A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("gap", [1.0, 1e-1, 1e-2, 3e-3])
def test_the_pose_layer_of_a_reflection_is_exact_where_the_last_gap_is_healthy(gap, dtype, generator):
    """The rotation depends on 1/(σ_2 − σ_3) there: the gradient itself grows like that."""
    A, G = with_determinant([2.0, 1 + gap, 1.0], -1, generator, dtype), randn(3, 3, dtype=dtype)
    expected = rotation_gradient(mp(A), mp(G), special=True)
    tolerance = max(WITHIN[dtype], 10 * torch.finfo(dtype).eps / gap)
    assert relative_error(gradient(pose, A, G), expected) < tolerance


@pytest.mark.sample(2)
@every_dtype
@pytest.mark.parametrize("smallest", [0.0, 1e-30, 1e-18, 1e-15, 1e-12, 1e-8, 1e-4])
@pytest.mark.parametrize("leading", [(2.0, 1.0), (1.0, 1.0)], ids=str)
@pytest.mark.parametrize("rotated", [True, False], ids=["rotated", "diagonal"])
def test_the_pose_layer_is_exact_at_rank_two(leading, smallest, rotated, dtype, generator):
    """The rotation is determined by the two leading pairs; the sign of the last pair is round-off, and so is det."""
    values = torch.tensor([*leading, smallest], dtype=F64)
    A = random_matrix(values, 3, 3, generator, dtype) if rotated else torch.diag(values).to(dtype)
    G = randn(3, 3, dtype=dtype)
    U, S, Vt = mpmath.svd_r(mp(A))
    expected = rotation_gradient(mp(A), mp(G), special=True)
    assert mpmath.fabs(S[2]) < 2e-4
    assert mpmath.fabs(mpmath.det(U * Vt)) > 0.99
    assert relative_error(gradient(pose, A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_the_pose_layer_is_exact_at_every_scale(scale, dtype, generator):
    A, G = scale * torch.eye(3, dtype=dtype), randn(3, 3, dtype=dtype)
    expected = rotation_gradient(mp(A), mp(G), special=True)
    assert relative_error(gradient(pose, A, G), expected) < WITHIN[dtype]


def second_derivative(function, A: Tensor, G: Tensor, D: Tensor) -> Tensor:
    """The gradient of ⟨D, gradient of ⟨G, function(A)⟩⟩."""
    X = A.clone().requires_grad_()
    (g,) = torch.autograd.grad((function(X) * G).sum(), X, create_graph=True)
    return torch.autograd.grad((g * D).sum(), X)[0]


@pytest.mark.parametrize("gap", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9, 1e-14, 0.0])
def test_second_derivatives_of_u_vh_are_exact_at_healthy_gaps_and_finite_at_ties(gap, generator):
    A = random_matrix(torch.tensor([3.0, 1 + gap, 1.0], dtype=F64), 3, 3, generator)
    G, D = randn(3, 3), randn(3, 3, seed=3)
    found = second_derivative(rotation, A, G, D)
    assert torch.isfinite(found).all()
    if gap >= 5e-3:
        assert relative_error(found, second_derivative(lambda A: eg.polar(A)[0], A, G, D)) < 1e-10
