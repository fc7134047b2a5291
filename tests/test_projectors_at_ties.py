"""The gradients of projectors and subspaces through eigh and svd against mpmath: at ties, beside them, far away."""

from __future__ import annotations

import mpmath
import pytest
import torch

import eigengrad as eg
from eigengrad.testing import random_hermitian, random_matrix
from mp_oracles import (
    F64,
    WITHIN,
    errors,
    every_dtype,
    every_gap,
    fifty_digits,  # noqa: F401 - used by every test
    gradient,
    left_projector_gradient,
    mp,
    mp_projector,
    projector_gradient,
    randn,
    relative_error,
    symmetric,
)


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


@pytest.mark.sample(2)
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


@pytest.mark.sample(2)
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


@pytest.mark.sample(2)
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
