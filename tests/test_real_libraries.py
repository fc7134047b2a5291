"""Libraries that differentiate through torch.linalg, under patch_torch: unchanged away from ties, finite at ties.

They are not dependencies. To run these tests, install the libraries into a folder of their own, without dependencies,
so that no other torch comes along, and name it::

    pip install --no-deps --target /tmp/reallibs geotorch kornia kornia_rs roma geoopt tensorly \\
        spd-learn pyriemann array-api-compat array-api-extra einops
    PYTHONPATH=/tmp/reallibs python -m pytest -m slow tests/test_real_libraries.py

What torch alone does at the tie is tested as well: where it is finite by itself, the patch is not what makes it so. So
is whether the gradient at the tie is right, by differences. It is for rotations and polar factors. It is not where a
library multiplies V f(λ) Vᴴ or U f(σ) Vᴴ together again from the parts: the derivative between tied vectors is then
(f(λ_i) − f(λ_j)) / (λ_i − λ_j) = 0/0, which no rule can know; eigengrad.matrix_function and low_rank do.
"""

import importlib

import pytest
import torch

import eigengrad as eg
from eigengrad.testing import random_hermitian, random_matrix

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::eigengrad.errors.GradientWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("default::RuntimeWarning"),
]

DOUBLE = torch.float64


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def library(name):
    pytest.importorskip(name.split(".")[0])
    return importlib.import_module(name)


def spd(*values):
    return random_hermitian(torch.tensor(values, dtype=DOUBLE).expand(2, -1), seeded(), DOUBLE)


def matrix(m, n, *values):
    return random_matrix(torch.tensor(values, dtype=DOUBLE).expand(2, -1), m, n, seeded(), DOUBLE)


def diagonal(*values):
    return torch.diag(torch.tensor(values, dtype=DOUBLE)).expand(2, -1, -1).clone()


# Each: a function of the library, an input away from ties, one at a tie, and whether torch alone is finite there. ----


def kornia_zca():
    """Its documents warn of NaN where singular values are not unique."""
    zca_mean = library("kornia.enhance").zca_mean

    def whitened(x):
        transform, _, _ = zca_mean(x.reshape(-1, x.shape[-1]))
        return transform

    corners = torch.cat([torch.eye(4, dtype=DOUBLE), -torch.eye(4, dtype=DOUBLE)])  # covariance: a multiple of I
    return whitened, torch.randn(12, 4, generator=seeded(), dtype=DOUBLE), corners, False


def kornia_essential():
    """The two singular values of an essential matrix are equal, so every valid one is a tie."""
    decompose = library("kornia.geometry.epipolar").decompose_essential_matrix

    mixed = torch.randn(3, 3, generator=seeded(1), dtype=DOUBLE)

    def rotations(E):  # which of the two is the first is arbitrary, as is the sign of the translation
        first, second, translation = decompose(E)
        return (first @ mixed).square() + (second @ mixed).square() + (mixed @ translation).square()

    cross = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=DOUBLE)
    return rotations, matrix(3, 3, 3.0, 2.0, 0.5), cross.expand(2, 3, 3).clone(), False


def kornia_project():
    project = library("kornia.geometry.epipolar.essential").project_to_essential
    return project, matrix(3, 3, 3.0, 2.0, 0.5), diagonal(1.0, 1.0, 0.0), False


def roma_procrustes():
    """Differentiated by torch through the SVD; roma.procrustes has a derivative of its own."""
    naive = library("roma.mappings").special_procrustes_naive
    return naive, matrix(3, 3, 3.0, 2.0, 0.5), diagonal(1.0, 1.0, 1.0), False


def roma_own_procrustes():
    procrustes = library("roma").special_procrustes
    return procrustes, matrix(3, 3, 3.0, 2.0, 0.5), diagonal(1.0, 1.0, 1.0), True


def roma_eigenvector():
    project = library("roma.mappings").symmatrix_to_projective_point

    def projector(A):
        q = project(A, method="eigh")
        return q.unsqueeze(-1) * q.unsqueeze(-2)

    return projector, spd(0.5, 1.0, 2.0, 4.0), diagonal(1.0, 1.0, 1.0, 1.0), False


def geoopt_stiefel():
    """geoopt binds ``svd = torch.linalg.svd`` when it is imported."""
    return library("geoopt").Stiefel().projx, matrix(4, 3, 3.0, 2.0, 0.5), diagonal(1.0, 1.0, 1.0), False


def geoopt_takagi():
    """``eigh = torch.linalg.eigh`` bound at import; the spectrum of the compound matrix is ± each value."""
    takagi = library("geoopt.manifolds.siegel.csym_math").takagi_eig

    def values(A):
        Z = torch.complex(A, torch.zeros_like(A))
        eigenvalues, _ = takagi(0.5 * (Z + Z.mT))
        return eigenvalues

    return values, spd(0.5, 1.0, 2.0), diagonal(1.0, 1.0, 1.0), True


def tensorly_truncated():
    """tensorly registers torch.linalg.svd with its backend when it is imported."""
    tensorly = library("tensorly")

    def approximation(A):
        with tensorly.backend_context("pytorch"):
            U, S, V = library("tensorly.tenalg.svd").truncated_svd(A, n_eigenvecs=2)
        return (U * S) @ V

    return approximation, matrix(4, 3, 3.0, 2.0, 0.5)[0], diagonal(2.0, 2.0, 1.0)[0], False


def tensorly_symeig():
    tensorly = library("tensorly")

    def approximation(A):
        with tensorly.backend_context("pytorch"):
            U, S, V = library("tensorly.tenalg.svd").symeig_svd(A, n_eigenvecs=2)
        return (U * S) @ V

    return approximation, matrix(4, 3, 3.0, 2.0, 0.5)[0], diagonal(2.0, 2.0, 1.0)[0], False


def tensorly_tucker():
    tensorly = library("tensorly")

    def reconstruction(x):
        with tensorly.backend_context("pytorch"):
            decomposed = library("tensorly.decomposition").tucker(x, rank=[2, 2, 2], n_iter_max=3)
            return tensorly.tucker_to_tensor(decomposed)

    tied = torch.zeros(3, 3, 3, dtype=DOUBLE)
    tied[0, 0, 0] = tied[1, 1, 1] = 1.0
    return reconstruction, torch.randn(3, 3, 3, generator=seeded(), dtype=DOUBLE), tied, False


def spd_learn_distance():
    """By eigvalsh, whose first derivative knows no gaps, and functions with derivatives of their own."""
    distance = library("spd_learn.functional").airm_distance
    other = spd(1.0, 3.0, 5.0)

    def distances(A):
        return distance(0.5 * (A + A.mT), other)

    return distances, spd(0.5, 1.0, 2.0), diagonal(1.0, 1.0, 1.0), True


def spd_learn_log():
    log = library("spd_learn.functional").matrix_log.apply
    return lambda A: log(0.5 * (A + A.mT)), spd(0.5, 1.0, 2.0), diagonal(1.0, 1.0, 1.0), True


def geotorch_low_rank():
    """geotorch decomposes only where it inverts a parametrisation, here with a gradient through its submersion."""
    layer = library("geotorch").LowRank(size=(4, 3), rank=2)

    def factors(A):
        U, S, V = layer.submersion_inv(A, check_in_manifold=False)
        return (U * S.unsqueeze(-2)) @ V.mT

    return factors, matrix(4, 3, 3.0, 2.0, 0.5), diagonal(2.0, 2.0, 1.0, 0.0)[..., :3], False


#: With what the gradient at the tie is under the patch: right, finite but not right, or of something that has none.
EXCERPTS = {
    kornia_zca: "finite",
    kornia_essential: "right",
    kornia_project: "right",
    roma_procrustes: "right",
    roma_own_procrustes: "right",
    roma_eigenvector: "not differentiable",
    geoopt_stiefel: "right",
    geoopt_takagi: "not differentiable",
    tensorly_truncated: "finite",
    tensorly_symeig: "right",
    tensorly_tucker: "right",
    spd_learn_distance: "right",
    spd_learn_log: "right",
    geotorch_low_rank: "finite",
}


def gradient(function, A):
    """The result, and the gradient of its product with fixed random numbers."""
    A = A.clone().requires_grad_()
    result = function(A)
    weights = torch.randn(result.shape, generator=seeded(7), dtype=result.dtype)
    return result.detach(), torch.autograd.grad((result * weights).sum(), A)[0]


def differences(function, A, step=1e-5):
    """The gradient of :func:`gradient` by central differences."""
    weights = torch.randn(function(A).shape, generator=seeded(7), dtype=DOUBLE)
    found = torch.zeros_like(A)
    for index in range(A.numel()):
        E = torch.zeros_like(A)
        E.view(-1)[index] = step
        found.view(-1)[index] = ((function(A + E) - function(A - E)) * weights).sum() / (2 * step)
    return found


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda excerpt: excerpt.__name__)
def test_away_from_ties_nothing_changes(excerpt):
    function, regular, _, _ = excerpt()
    expected = gradient(function, regular)
    with eg.patch_torch():
        actual = gradient(function, regular)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda excerpt: excerpt.__name__)
def test_at_ties_gradients_are_finite(excerpt):
    function, _, tied, finite_in_torch = excerpt()
    value, alone = gradient(function, tied)
    assert bool(torch.isfinite(alone).all()) == finite_in_torch
    with eg.patch_torch():
        patched, found = gradient(function, tied)
    torch.testing.assert_close(patched, value)
    assert torch.isfinite(found).all()
    patch = eg.patch_torch()
    patch.enable()
    try:
        torch.testing.assert_close(gradient(function, tied)[1], found)
    finally:
        patch.disable()


@pytest.mark.parametrize(
    "excerpt", [e for e, kind in EXCERPTS.items() if kind != "not differentiable"], ids=lambda excerpt: excerpt.__name__
)
def test_at_ties_gradients_are_those_of_differences_where_no_product_is_put_together_again(excerpt):
    function, _, tied, _ = excerpt()
    with eg.patch_torch():
        _, found = gradient(function, tied)
    expected = differences(function, tied)
    error = torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected)
    assert (error < 1e-7) == (EXCERPTS[excerpt] == "right")
    assert error < 1
