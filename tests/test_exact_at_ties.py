"""The gradients of eigh and svd against mpmath with 50 digits: at ties, beside them, at rank deficiency, and far away.

A loss that does not depend on the basis inside a tied space (U Vᴴ, rotations, projectors) has its exact gradient
through the decompositions. The oracles are closed forms that divide by no gap inside such a space, evaluated at the
very matrix, as it was rounded; one test compares them with central differences, which know no formula.
"""

from __future__ import annotations

import itertools
import math
import warnings

import mpmath
import pytest
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.gradients import resolve
from eigengrad.matrix_functions import low_rank
from eigengrad.testing import random_hermitian, random_matrix, random_unitary

F32, F64 = torch.float32, torch.float64
WITHIN = {F32: 1e-5, F64: 1e-10}
GAPS = [0.0, 1e-15, 1e-14, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
every_dtype = pytest.mark.parametrize("dtype", [F64, F32], ids=str)
every_gap = pytest.mark.parametrize("gap", GAPS)


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


# Oracles ------------------------------------------------------------------------------------------------------------


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


# U Vᴴ and rotations -------------------------------------------------------------------------------------------------


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


# Projectors ---------------------------------------------------------------------------------------------------------


def by_eigh(k: int):
    """V_k V_kᵀ from all eigenvectors."""

    def project(A, **options):
        V = eg.eigh(A, **options).eigenvectors
        V = V[..., -k:] if k > 0 else V[..., :-k]
        return V @ V.mT

    return project


def by_partial_eigh(k: int):
    def project(A, **options):
        V = eg.eigh(A, k=k, **options).eigenvectors
        return V @ V.mT

    return project


PROJECTORS = {"eigh": by_eigh, "eigh(k=)": by_partial_eigh}
every_projector = pytest.mark.parametrize("projector", PROJECTORS.values(), ids=PROJECTORS)

#: Ascending eigenvalues for a gap inside the kept or dropped, and k.
EIGENVALUES = {
    "kept": (lambda g: [-1.0, 0.3, 2.0, 2.0 + g], 2),
    "dropped": (lambda g: [-1.0 - g, -1.0, 1.0, 2.0], 2),
    "both": (lambda g: [1.0 - g, 1.0, 2.0, 2.0 + g], 2),
    "smallest": (lambda g: [-1.0 - g, -1.0, 1.0, 1.0 + g, 1.0 + 2 * g], -2),
    "rank one": (lambda g: [-g, 0.0, 0.0, 1.0], 1),
    "kernel": (lambda g: [-g, 0.0, 1.0, 1.0 + g], -2),
}


def kept_of(n: int, k: int) -> range:
    return range(n - k, n) if k > 0 else range(-k)


@every_dtype
@every_gap
@every_projector
@pytest.mark.parametrize("name", EIGENVALUES)
def test_the_gradient_of_a_projector_is_exact_at_and_beside_ties(name, projector, gap, dtype, generator):
    spectrum, k = EIGENVALUES[name]
    L = torch.tensor(spectrum(gap), dtype=F64)
    for rotate in (True, False):
        A = random_hermitian(L, generator, dtype, rotate=rotate)
        G = symmetric(randn(*A.shape, dtype=dtype))
        expected = projector_gradient(mp(A), mp(G), kept_of(len(L), k))
        assert relative_error(gradient(projector(k), A, G), expected) < WITHIN[dtype]


@every_dtype
@every_projector
@pytest.mark.parametrize("n", [8, 24, 64])
def test_round_off_inside_a_tie_is_not_amplified_for_larger_matrices(n, projector, dtype, generator):
    """Against the divided differences in float64, which the small sizes have compared with mpmath."""
    k = n // 3
    for seed in range(4):
        noise = 1e-7 * seed * torch.rand(n, generator=generator, dtype=F64)
        L = torch.cat([torch.ones(n - k, dtype=F64), 2 * torch.ones(k, dtype=F64)]) + noise
        A, G = random_hermitian(L, generator, dtype), symmetric(randn(n, n, dtype=dtype, seed=seed))
        values, Q = torch.linalg.eigh(A.double())
        H = Q.mT @ G.double() @ Q
        H[n - k :, n - k :], H[: n - k, : n - k] = 0, 0
        gaps = (values.unsqueeze(-1) - values).abs()
        expected = Q @ (H / torch.where(H == 0, 1, gaps)) @ Q.mT
        assert relative_error(gradient(projector(k), A, G), expected) < WITHIN[dtype]


@every_dtype
@every_projector
@pytest.mark.parametrize("gap", [0.0, 1e-6, 1e-4, 1e-3, 4e-3, 1e-2, 3e-2, 1e-1])
@pytest.mark.parametrize("n", [4, 16])
def test_round_off_inside_the_kept_and_dropped_is_not_amplified_at_any_gap(n, gap, projector, dtype, generator):
    """Where X = Xᵀ but for round-off, 1/gap must not make a gradient of it; many matrices, for round-off is random."""
    k = n // 2
    steps = gap * torch.arange(k, dtype=F64) / (k - 1)
    A = random_hermitian(torch.cat([1 - steps.flip(0), 2 + steps]).expand(64, n), generator, dtype)
    G = symmetric(randn(64, n, n, dtype=dtype))
    values, Q = torch.linalg.eigh(A.double())
    H = Q.mT @ G.double() @ Q
    H[..., k:, k:], H[..., :k, :k] = 0, 0
    expected = Q @ (H / torch.where(H == 0, 1, (values.unsqueeze(-1) - values.unsqueeze(-2)).abs())) @ Q.mT
    assert errors(gradient(projector(k), A, G), expected) < WITHIN[dtype]


@every_dtype
@every_projector
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-9, 1e-4])
def test_the_gradient_of_a_subspace_loss_is_exact_at_and_beside_ties(gap, projector, dtype, generator):
    """log |det V_kᵀ T|, the volume between two subspaces: its gradient by P is ½ T (Tᵀ P T)⁻¹ Tᵀ."""
    A = random_hermitian(torch.tensor([0.0, gap, 1.0, 1.0 + gap, 1.0 + 2 * gap], dtype=F64), generator, dtype)
    T = randn(5, 3, dtype=dtype)
    A.requires_grad_()
    V = eg.eigh(A).eigenvectors[:, 2:] if projector is by_eigh else eg.eigh(A, k=3).eigenvectors
    (actual,) = torch.autograd.grad(torch.linalg.slogdet(V.mT @ T).logabsdet, A)
    M, P = mp(T), mp_projector(mp(A), range(2, 5))
    G = M * mpmath.inverse(M.T * P * M) * M.T / 2
    assert relative_error(actual, projector_gradient(mp(A), G, range(2, 5))) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("gap", [1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12])
def test_partial_eigh_is_as_accurate_as_the_gap_of_the_cut_allows(gap, dtype, generator):
    """Between kept and dropped there is no rule: only the accuracy of the decomposition itself, eps/gap."""
    eps = torch.finfo(dtype).eps
    if gap < 100 * eps:
        pytest.skip("a gap at round-off has no gradient")
    A = random_hermitian(torch.tensor([1.0, 1.0, 1.0 + gap, 2.0 + gap], dtype=F64), generator, dtype)
    G = symmetric(randn(4, 4, dtype=dtype))
    expected = projector_gradient(mp(A), mp(G), range(2, 4))
    assert relative_error(gradient(by_partial_eigh(2), A, G), expected) < 30 * eps / gap


@every_dtype
@every_gap
@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)], ids=str)
@pytest.mark.parametrize("side", ["U", "V"])
def test_projectors_on_leading_singular_vectors_are_exact_at_and_beside_ties(side, shape, gap, dtype, generator):
    A = random_matrix(torch.tensor([2 + gap, 2.0, 1.0, 1.0 - gap / 2], dtype=F64), *shape, generator, dtype)
    M = mp(A) if side == "U" else mp(A).T
    G = symmetric(randn(M.rows, M.rows, dtype=dtype))
    expected = left_projector_gradient(M, mp(G), range(M.rows - 2, M.rows))
    expected = expected if side == "U" else expected.T

    def partial(A):
        U, _, Vh = eg.svd(A, k=2)
        return U @ U.mT if side == "U" else Vh.mT @ Vh

    def whole(A):
        U, _, Vh = eg.svd(A, full_matrices=False)
        return U[:, :2] @ U[:, :2].mT if side == "U" else Vh[:2].mT @ Vh[:2]

    assert relative_error(gradient(partial, A, G), expected) < WITHIN[dtype]
    assert relative_error(gradient(whole, A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("shape", [(4, 4), (6, 4), (4, 6)], ids=str)
@pytest.mark.parametrize("side", ["U", "V"])
@pytest.mark.parametrize("rotated", [True, False], ids=["rotated", "diagonal"])
def test_projectors_on_the_range_are_exact_at_rank_deficiency(side, shape, rank, rotated, dtype, generator):
    values = torch.tensor([1.0] * rank + [0.0] * (4 - rank), dtype=F64)
    A = random_matrix(values, *shape, generator, dtype) if rotated else torch.zeros(shape, dtype=dtype)
    if not rotated:
        A[:4, :4] = torch.diag(values)
    M = mp(A) if side == "U" else mp(A).T
    G = symmetric(randn(M.rows, M.rows, dtype=dtype))
    expected = left_projector_gradient(M, mp(G), range(M.rows - rank, M.rows))
    expected = expected if side == "U" else expected.T

    def project(A):
        U, _, Vh = eg.svd(A, k=rank)
        return U @ U.mT if side == "U" else Vh.mT @ Vh

    assert relative_error(gradient(project, A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_projector_on_the_kernel_is_exact(rank, dtype, generator):
    values = torch.tensor([1.0] * rank + [0.0] * (4 - rank), dtype=F64)
    A, G = random_matrix(values, 6, 4, generator, dtype), symmetric(randn(4, 4, dtype=dtype))
    expected = left_projector_gradient(mp(A).T, mp(G), range(4 - rank)).T

    def project(A):
        _, _, Vh = eg.svd(A, k=rank - 4)
        return Vh.mT @ Vh

    assert relative_error(gradient(project, A, G), expected) < WITHIN[dtype]


@every_dtype
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-8, 1e-2])
def test_projectors_on_trailing_singular_vectors_of_full_rank_are_exact(gap, dtype, generator):
    A = random_matrix(torch.tensor([3.0 + gap, 3.0, 1.0 + gap, 1.0], dtype=F64), 6, 4, generator, dtype)
    G = symmetric(randn(6, 6, dtype=dtype))
    expected = left_projector_gradient(mp(A), mp(G), range(2, 4))  # ascending: two zeros of A Aᵀ come first

    def project(A):
        U, _, _ = eg.svd(A, k=-2)
        return U @ U.mT

    assert relative_error(gradient(project, A, G), expected) < WITHIN[dtype]


# What the decompositions cannot have --------------------------------------------------------------------------------


def sqrt_by_hand(A: Tensor) -> Tensor:
    L, V = eg.eigh(A)
    return (V * L.sqrt().unsqueeze(-2)) @ V.mT


def rank_two_by_hand(A: Tensor) -> Tensor:
    U, S, Vh = eg.svd(A, k=2)
    return (U * S) @ Vh


@every_dtype
def test_at_a_tie_the_gradient_of_v_f_vh_is_not_in_that_of_the_vectors_and_matrix_functions_have_it(dtype):
    """At 4 I the square root has the gradient G/4. What eigh is given has no trace of what is off the diagonal."""
    A, G = 4 * torch.eye(3, dtype=dtype), symmetric(randn(3, 3, dtype=dtype))
    torch.testing.assert_close(gradient(eg.matrix_sqrt, A, G), G / 4)
    torch.testing.assert_close(gradient(sqrt_by_hand, A, G), torch.diag(G.diagonal()) / 4)


@every_dtype
def test_at_a_tie_among_the_kept_low_rank_has_the_gradient_that_svd_has_not(dtype):
    A, G = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=dtype)), randn(3, 3, dtype=dtype)
    right, by_hand = gradient(lambda A: low_rank(A, 2), A, G), gradient(rank_two_by_hand, A, G)
    torch.testing.assert_close(right[:2, :2], G[:2, :2])
    torch.testing.assert_close(by_hand[2], right[2])
    torch.testing.assert_close(by_hand[:, 2], right[:, 2])
    # The antisymmetric part turns both bases oppositely, which svd sees; the symmetric one turns them together.
    lost = (G[0, 1] + G[1, 0]) / 2
    torch.testing.assert_close(right[:2, :2] - by_hand[:2, :2], lost * torch.tensor([[0.0, 1], [1, 0]], dtype=dtype))


def warned(function) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [w for w in caught if issubclass(w.category, eg.GradientWarning)]


@pytest.mark.parametrize("gap", [1e-6, 1e-7, 1e-9, 1e-11])
def test_beside_a_tie_a_warning_says_that_the_gradient_of_v_f_vh_is_lost(gap, generator):
    A = random_hermitian(torch.tensor([1.0, 4.0, 4.0 + gap], dtype=F64), generator)
    V = torch.linalg.eigh(A).eigenvectors[:, 1:]
    G = V @ torch.tensor([[1.0, 5.0], [5.0, 2.0]], dtype=F64) @ V.mT  # only what is inside the tied block
    assert len(warned(lambda: gradient(sqrt_by_hand, A, G))) == 1
    assert relative_error(gradient(sqrt_by_hand, A, G), gradient(eg.matrix_sqrt, A, G)) > 0.5
    assert not warned(lambda: gradient(eg.matrix_sqrt, A, G))


@pytest.mark.parametrize("gap", [1e-6, 1e-7, 1e-9, 1e-11])
def test_beside_a_tie_a_warning_says_that_the_gradient_of_a_low_rank_approximation_is_lost(gap, generator):
    A = random_matrix(torch.tensor([2.0 + gap, 2.0, 1.0], dtype=F64), 3, 3, generator)
    U, _, Vh = torch.linalg.svd(A)
    G = U[:, :2] @ torch.tensor([[1.0, 5.0], [5.0, 2.0]], dtype=F64) @ Vh[:2]
    assert len(warned(lambda: gradient(rank_two_by_hand, A, G))) == 1
    assert relative_error(gradient(rank_two_by_hand, A, G), gradient(lambda A: low_rank(A, 2), A, G)) > 0.5
    assert not warned(lambda: gradient(lambda A: low_rank(A, 2), A, G))


# The default rule: exact at healthy gaps ----------------------------------------------------------------------------

SIZES = [2, 3, 4, 5, 8, 13, 16, 31, 32, 33, 48, 64]


def separated(n: int, generator: torch.Generator, gap: float = 2e-3, batch: int = 1) -> Tensor:
    """Ascending values from 0 to 1, (batch, n), no two closer than ``gap``, one pair at ``gap`` if n > 2."""
    steps = torch.rand(batch, n - 1, generator=generator, dtype=F64) ** 3
    if n > 2:
        steps[:, 0] = 0
    steps = steps / steps.sum(-1, keepdim=True) * (1 - gap * (n - 1)) + gap
    return torch.cat([torch.zeros(batch, 1, dtype=F64), steps.cumsum(-1)], -1)


def vector_loss(V: Tensor) -> Tensor:
    """A random function of the vectors that does not change with their sign: quadratic and of fourth order."""
    W, Z = randn(*V.shape[-2:], dtype=V.dtype, seed=5), randn(*V.shape[-2:], dtype=V.dtype, seed=6)
    pairs = torch.einsum("...ij,...kj,ik->...", V, V, randn(V.shape[-2], V.shape[-2], dtype=V.dtype, seed=7))
    return ((W * V**2).sum((-2, -1)) + (Z * V**4).sum((-2, -1)) + 0.1 * pairs).sum()


def gradient_of_vectors(A: Tensor, eigh=eg.eigh, **options) -> Tensor:
    A = A.detach().clone().requires_grad_()
    return torch.autograd.grad(vector_loss(eigh(A, **options)[1]), A)[0]


def errors(actual: Tensor, expected: Tensor) -> float:
    """The largest relative error of a batch."""
    norm = torch.linalg.matrix_norm
    worst = (norm(actual.double() - expected.double()) / norm(expected.double())).max()
    return worst.item() if math.isfinite(worst) else math.inf


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("gap", [2e-3, 4e-3, 1e-2])
def test_the_default_gradient_is_that_of_torch_at_gaps_from_two_thousandths_on(n, gap, generator):
    A = random_hermitian(separated(n, generator, gap, batch=8), generator)
    assert errors(gradient_of_vectors(A), symmetric(gradient_of_vectors(A, torch.linalg.eigh))) < 1e-6


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_default_gradient_is_that_of_mpmath_at_healthy_gaps(n, generator):
    A = random_hermitian(separated(n, generator)[0], generator)

    def square(X):
        _, Q = mpmath.eigsy(X)
        return entrywise(n, n, lambda i, j: Q[i, j] ** 2)

    G = randn(n, n)
    expected = differences(square, mp(A), mp(G), symmetric=True)
    assert relative_error(gradient(lambda A: eg.eigh(A).eigenvectors ** 2, A, G), expected) < 1e-6


@pytest.mark.parametrize("n", SIZES)
def test_the_default_gradient_of_svd_is_that_of_torch_at_healthy_gaps(n, generator):
    """Relative to the spread of the singular values, which are not small either."""
    S = (separated(n, generator, batch=4) + 0.5).flip(-1)
    A = random_matrix(S, n + 1, n, generator)

    def of(svd):
        X = A.clone().requires_grad_()
        U, _, Vh = svd(X, full_matrices=False)
        return torch.autograd.grad(vector_loss(U) + vector_loss(Vh), X)[0]

    assert errors(of(eg.svd), of(torch.linalg.svd)) < 1e-6


@pytest.mark.parametrize("n", [2, 3, 5, 16, 64])
@pytest.mark.parametrize("c", [10.0, -10.0, 1e3, -1e3])
def test_the_default_gradient_does_not_feel_a_multiple_of_the_identity(n, c, generator):
    """A + cI is rounded by eps |c|, and decomposed to n eps |c|: over the smallest gap, this turns eigenvectors, and
    changes 1/gap, by as much."""
    gap = 2e-3
    A = random_hermitian(separated(n, generator, gap, batch=4), generator)
    tolerance = 4 * n * torch.finfo(F64).eps * (1 + abs(c)) / gap
    shifted = A + c * torch.eye(n, dtype=F64)
    assert errors(gradient_of_vectors(shifted), gradient_of_vectors(A)) < tolerance


@pytest.mark.parametrize("c", [0.0, 10.0, -10.0, 1e3, -1e3])
@pytest.mark.parametrize("spectrum", [(0.0, 0.0, 1.0), (0.0, 1e-5, 1.0), (0.0, 5e-5, 2e-4, 1.0), (0.0, 1.0, 1.0, 1.0)])
@every_dtype
def test_what_stands_for_the_reciprocal_does_not_feel_a_shift_at_ties_either(spectrum, c, dtype):
    """To eps |c|/τ: so much the gaps of the shifted eigenvalues are off in units of τ."""
    L = torch.tensor(spectrum, dtype=dtype)
    R, shifted = eg.Saturate().reciprocal(L), eg.Saturate().reciprocal(L + c)
    tau = eg.Saturate().rtol
    off = torch.finfo(dtype).eps * (4 + 2 * abs(c)) / tau
    relative = ((R - shifted).abs() / R).triu(1).max()
    if off < 1:
        assert relative <= off
    assert shifted.triu(1).max() <= 1.01 / tau * (1 + torch.finfo(dtype).eps * abs(c))


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1e-3, 1e3, 1e10, 1e20, 1e30])
@pytest.mark.parametrize("n", [2, 3, 5, 16, 64])
@every_dtype
def test_the_default_gradient_is_scale_free(n, scale, dtype, generator):
    """By powers of two exactly; else to the round-off of c A, which the smallest gap enlarges."""
    gap = 2e-3
    A = random_hermitian(separated(n, generator, gap, batch=4), generator, dtype)
    two = 2.0 ** round(math.log2(scale))
    eps = torch.finfo(dtype).eps
    assert errors(gradient_of_vectors(A * two) * two, gradient_of_vectors(A)) < 10 * n * eps / gap
    assert errors(gradient_of_vectors(A * scale) * scale, gradient_of_vectors(A)) < 10 * n * eps / gap


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@every_dtype
def test_the_default_gradient_is_scale_free_at_ties(scale, dtype):
    A = torch.diag(torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0], dtype=dtype))
    two = 2.0 ** round(math.log2(scale))
    torch.testing.assert_close(gradient_of_vectors(A * two) * two, gradient_of_vectors(A))
    torch.testing.assert_close(
        gradient_of_vectors(torch.eye(4, dtype=dtype) * two) * two, gradient_of_vectors(torch.eye(4, dtype=dtype))
    )


# The default rule: bounded ------------------------------------------------------------------------------------------

DEGENERATE = {
    "a tie": torch.tensor([1.0, 1.0, 2.0, 3.0], dtype=F64),
    "two ties": torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=F64),
    "almost a tie": torch.tensor([1.0, 1.0 + 1e-13, 2.0, 3.0], dtype=F64),
    "identity": torch.ones(4, dtype=F64),
    "minus identity": -torch.ones(4, dtype=F64),
    "almost identity": 1 + torch.arange(4, dtype=F64) * 1e-15,
    "zeros": torch.zeros(4, dtype=F64),
    "rank one": torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=F64),
    "rank one, negative": torch.tensor([-1.0, 0.0, 0.0, 0.0], dtype=F64),
    "two zeros": torch.tensor([-1.0, 0.0, 0.0, 1.0], dtype=F64),
    "shifted tie": 1e6 + torch.tensor([0.0, 0.0, 1.0, 2.0], dtype=F64),
}


def width(L: Tensor, rtol: float = eg.Saturate().rtol) -> float:
    """τ as it is documented: of the spread, or of max|λ| where that is round-off, or of 1."""
    eps, largest = torch.finfo(L.dtype).eps, L.abs().max().item()
    difference = (L.max() - L.min()).item()
    size = difference if difference > len(L) * eps * largest else largest
    return max(rtol * (size or 1.0), eps * largest)


every_degenerate = pytest.mark.parametrize("name", DEGENERATE)


@every_dtype
@every_degenerate
@pytest.mark.parametrize("rtol", [1e-6, 1e-4, 1e-2])
def test_the_bound_is_one_over_tau(name, rtol, dtype):
    L, rule = DEGENERATE[name].to(dtype), eg.Saturate(rtol)
    tau = width(L, rtol)
    R = rule.reciprocal(L)
    assert torch.isfinite(R).all()
    assert R.max() <= (1 + 4 * torch.finfo(dtype).eps) / tau
    assert torch.equal(R, R.mT)
    tied = (L.unsqueeze(-1) == L).fill_diagonal_(False)
    torch.testing.assert_close(R[tied], torch.full_like(R[tied], 1 / tau))


@every_dtype
@every_degenerate
@pytest.mark.parametrize("rotate", [True, False], ids=["rotated", "diagonal"])
def test_the_gradient_is_bounded_by_that_of_the_vectors_over_tau(name, rotate, dtype, generator):
    A = random_hermitian(DEGENERATE[name], generator, dtype, rotate=rotate).requires_grad_()
    L, V = eg.eigh(A)
    gV = randn(4, 4, dtype=dtype)
    (gA,) = torch.autograd.grad(V, A, gV)
    tau = width(L.detach())
    assert torch.linalg.norm(gA) <= 1.001 * torch.linalg.norm(gV) / tau


@every_dtype
@every_degenerate
@pytest.mark.parametrize("rotate", [True, False], ids=["rotated", "diagonal"])
@pytest.mark.parametrize("function", ["eigh", "svd", "eigh(k=)", "svd(k=)"])
def test_second_derivatives_are_finite(name, function, rotate, dtype, generator):
    A = random_hermitian(DEGENERATE[name], generator, dtype, rotate=rotate).requires_grad_()
    outputs = {
        "eigh": lambda: tuple(eg.eigh(A)),
        "svd": lambda: tuple(eg.svd(A)),
        "eigh(k=)": lambda: tuple(eg.eigh(A, k=2)),
        "svd(k=)": lambda: tuple(eg.svd(A, k=-3)),
    }[function]()
    loss = sum((x**2 * randn(*x.shape, dtype=dtype)).sum() for x in outputs)
    (g,) = torch.autograd.grad(loss, A, create_graph=True)
    assert torch.isfinite(g).all()
    (h,) = torch.autograd.grad((g * randn(4, 4, dtype=dtype, seed=9)).sum(), A)
    assert torch.isfinite(h).all()


# The default rule: with kernels and without -------------------------------------------------------------------------


def with_and_without_kernels(rule, *arguments) -> tuple[Tensor, Tensor, Tensor]:
    """The pullback with no derivative to record, with one, and under a monitor, which sees the torch path."""
    with torch.no_grad():
        by_kernel = rule.pullback(*arguments)
    with torch.enable_grad():
        recorded = rule.pullback(*arguments)
    with torch.no_grad(), eg.GradientMonitor():
        observed = rule.pullback(*arguments)
    return by_kernel, recorded.detach(), observed


def mixed_spectra(batch: int, n: int, generator: torch.Generator) -> Tensor:
    """Healthy gaps, exact ties, gaps around τ, and multiples of the identity, one after the other."""
    L = torch.rand(batch, n, generator=generator, dtype=F64).sort(-1).values
    for b in range(batch):
        if b % 4 == 1:
            L[b] = (L[b] * max(2, n // 3)).round()
        elif b % 4 == 2:
            L[b, : n // 2] = L[b, 0] + 1e-4 * torch.rand(n // 2, generator=generator, dtype=F64).sort().values
        elif b % 4 == 3:
            L[b] = 1.0
    return L.sort(-1).values


@every_dtype
@pytest.mark.parametrize("n", [*range(2, 71), 100])
def test_kernels_and_torch_agree_for_every_size(n, dtype, generator):
    batch = {0: 1, 1: 2, 2: 7, 3: 16, 4: 40}[n % 5]
    check_kernels(batch, n, dtype, generator)


@every_dtype
@pytest.mark.parametrize("batch", [*range(1, 20), 24, 31, 32, 33, 40])
@pytest.mark.parametrize("n", [3, 8, 33])
def test_kernels_and_torch_agree_for_every_batch(n, batch, dtype, generator):
    check_kernels(batch, n, dtype, generator)


def check_kernels(batch: int, n: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    L = mixed_spectra(batch, n, generator).to(dtype)
    V = random_unitary((batch, n), generator).to(dtype)
    gV, gL = randn(batch, n, n, dtype=dtype), randn(batch, n, dtype=dtype)
    for values in (None, gL):
        first, *others = with_and_without_kernels(eg.Saturate(), L, V, values, gV)
        for other in others:
            assert errors(first, other) < 20 * math.sqrt(n) * torch.finfo(dtype).eps


@every_dtype
@pytest.mark.parametrize("rule", ["saturate", "mask", "taylor", "clip", "lorentzian"])
def test_kernels_and_torch_agree_in_leaving_out_what_is_round_off(rule, dtype, generator):
    """A gradient that is symmetric in the basis of the vectors leaves nothing but round-off of ½ (X − Xᵀ)."""
    rule = resolve(rule)
    for n in (3, 8, 20, 64):
        V = random_unitary((5, n), generator)
        S = randn(5, n, n)
        gV = (V @ (S + S.mT)).to(dtype)
        L = torch.ones(5, n, dtype=dtype)
        for found in with_and_without_kernels(rule, L, V.to(dtype), None, gV):
            assert found.abs().max() <= 100 * torch.finfo(dtype).eps * gV.abs().max()


# The rule's own derivatives -----------------------------------------------------------------------------------------

#: Gaps in units of τ.
DISTANCES = [0.0, 1e-12, 1e-8, 1e-5, 1e-3, 5e-3, 1e-2, 1.05e-2, 1.2e-2, 2e-2, 5e-2, 0.1, 0.13, 0.14, 0.2, 0.5, 1.0, 2.0]
DISTANCES += [5.0, 10.0, 20.0, 40.0, 70.0, 100.0]
RTOL = 1e-4


def mp_reciprocal(*eigenvalues):
    """R of the second and third of four eigenvalues, for Saturate(RTOL)."""
    gap = eigenvalues[2] - eigenvalues[1]
    tau = mpmath.mpf(RTOL) * (eigenvalues[3] - eigenvalues[0])
    x = gap / tau
    # The series is what −expm1(−x)/x is; at x = 0 it has derivatives where the quotient has none.
    if mpmath.fabs(x) < mpmath.mpf(10) ** -3:
        return mpmath.fsum((-x) ** k / mpmath.factorial(k + 1) for k in range(16)) / tau
    return -mpmath.expm1(-x) / gap


def derivatives(L: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Derivatives of R_12 by the eigenvalues, of the first or second order: ours and those of mpmath."""

    def ours(L):
        return eg.Saturate(RTOL).reciprocal(L)[..., 1, 2]

    points = [mpmath.mpf(x) for x in L.double().tolist()]
    with mpmath.workdps(60):
        indices = list(itertools.combinations_with_replacement(range(4), order))
        exact = []
        for index in indices:
            orders = tuple(index.count(i) for i in range(4))
            exact.append(float(mpmath.diff(mp_reciprocal, tuple(points), orders, h=mpmath.mpf(10) ** -14)))
    with torch.enable_grad():
        X = L.clone().requires_grad_()
        (g,) = torch.autograd.grad(ours(X), X, create_graph=True)
        if order == 1:
            found = [g[i].item() for (i,) in indices]
        else:
            H = [torch.autograd.grad(g[i], X, retain_graph=True)[0] for i in range(4)]
            found = [H[i][j].item() for i, j in indices]
    return torch.tensor(found, dtype=F64), torch.tensor(exact, dtype=F64)


@every_dtype
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("order", [1, 2])
def test_the_derivatives_of_the_rule_are_those_of_mpmath(order, distance, dtype):
    """Relative to the largest of that order, which is of the size of its bound near the tie.

    Powers of two as τ, so that the distance is what it says; the second eigenvalue is 0, so no gap is rounded.
    """
    L = torch.tensor([-0.375, 0.0, RTOL * distance, 0.625], dtype=dtype)
    found, exact = derivatives(L, order)
    tolerance = 100 * torch.finfo(dtype).eps ** (1 - order / 8)
    assert (found - exact).abs().max() <= tolerance * exact.abs().max()


@every_dtype
@pytest.mark.parametrize("distance", DISTANCES)
def test_the_rule_itself_is_that_of_mpmath_recorded_or_not(distance, dtype):
    L = torch.tensor([-0.375, 0.0, RTOL * distance, 0.625], dtype=dtype)
    exact = float(mp_reciprocal(*(mpmath.mpf(x) for x in L.double().tolist())))
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert eg.Saturate(RTOL).reciprocal(L)[1, 2].item() == pytest.approx(exact, rel=8 * torch.finfo(dtype).eps)
