"""Derivatives of eigh(k=…) and svd(k=…) beyond the first: exact at ties on either side of the cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jvp, vmap

import eigengrad as eg
from eigengrad.gradients.partial import Partial
from eigengrad.matrix_functions import low_rank, spectral_projector
from eigengrad.testing import random_hermitian, random_matrix

F64, C128 = torch.float64, torch.complex128
DOUBLE = pytest.mark.parametrize("dtype", [F64, C128], ids=str)


def hermitian(X: Tensor) -> Tensor:
    return (X + X.mH) / 2


def matrix(eigenvalues, generator, dtype=F64) -> Tensor:
    return random_hermitian(torch.tensor(eigenvalues, dtype=F64), generator, dtype)


def project(A: Tensor, k: int, **options) -> Tensor:
    V = eg.eigh(A, k=k, **options).eigenvectors
    return V @ V.mH


def hessian_product(function, A: Tensor, G: Tensor, D: Tensor) -> Tensor:
    """The derivative of the gradient of Re⟨G, function(A)⟩ in the direction D, by two backward passes."""
    A = A.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad((function(A) * G.conj()).real.sum(), A, create_graph=True)
    return torch.autograd.grad((g * D.conj()).real.sum(), A)[0]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return (torch.linalg.norm(actual - expected) / torch.linalg.norm(expected)).item()


#: Ascending eigenvalues and k: the kept ones are apart.
KEPT_APART = {
    "generic": ([-1.0, 0.3, 1.1, 2.0], 2),
    "smallest": ([-1.0, 0.3, 1.1, 2.0], -2),
    "dropped tied": ([-1.0, -1.0, 0.5, 2.0], 2),
    "dropped tied, smallest": ([-1.0, 0.5, 2.0, 2.0], -2),
    "dropped almost tied": ([-1.0, -1.0 + 1e-10, 0.5, 2.0], 2),
    "rank one": ([0.0, 0.0, 0.0, 1.0], 1),
    "rank two": ([0.0, 0.0, 1.0, 3.0], 2),
}
#: Here they are not.
KEPT_TIED = {
    "kept tied": ([-1.0, 0.3, 2.0, 2.0], 2),
    "kept tied, smallest": ([-1.0, -1.0, 0.3, 2.0], -2),
    "kept almost tied": ([-1.0, 0.3, 2.0, 2.0 + 1e-13], 2),
    "both tied": ([1.0, 1.0, 2.0, 2.0], 2),
    "kernel": ([0.0, 0.0, 0.0, 1.0], -3),
}
EVERY = KEPT_APART | KEPT_TIED


# eigh ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@DOUBLE
@pytest.mark.parametrize("name", EVERY)
def test_second_derivatives_of_the_projector_are_those_of_finite_differences(name, dtype, generator):
    values, k = EVERY[name]
    A = matrix(values, generator, dtype).requires_grad_()
    assert gradgradcheck(lambda A: project(hermitian(A), k), A, check_fwd_over_rev=True)


@pytest.mark.sample(1)
@DOUBLE
@pytest.mark.parametrize("name", KEPT_APART)
def test_second_derivatives_of_values_and_vectors_are_those_of_finite_differences(name, dtype, generator):
    values, k = KEPT_APART[name]
    A = matrix(values, generator, dtype).requires_grad_()

    def function(A):
        L, V = eg.eigh(hermitian(A), k=k)
        return L, V.abs() ** 2, (V * L.exp().unsqueeze(-2)) @ V.mH

    assert gradcheck(function, A, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, A, check_fwd_over_rev=True)


@DOUBLE
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("rule", ["saturate", "lorentzian"])
def test_hessian_products_of_the_projector_are_those_of_spectral_projector(name, rule, dtype, generator):
    values, k = EVERY[name]
    A = matrix(values, generator, dtype)
    G, D = (hermitian(torch.randn(4, 4, generator=generator, dtype=dtype)) for _ in range(2))
    expected = hessian_product(lambda A: spectral_projector(A, k), A, G, D)
    # At ties among the kept round-off meets the default rule's 1/τ = 1e5 twice; the other rule has nothing there.
    within = 1e-9 if name in KEPT_APART or rule == "lorentzian" else 1e-5
    assert relative_error(hessian_product(lambda A: project(A, k, gradient=rule), A, G, D), expected) < within


@pytest.mark.parametrize("name", EVERY)
def test_forward_over_reverse_has_the_hessian_products_of_spectral_projector(name, generator):
    values, k = EVERY[name]
    A = matrix(values, generator)
    G, D = (hermitian(torch.randn(4, 4, generator=generator, dtype=F64)) for _ in range(2))
    found = jvp(grad(lambda A: (project(A, k, gradient="lorentzian") * G).sum()), (A,), (D,))[1]
    expected = hessian_product(lambda A: spectral_projector(A, k), A, G, D)
    torch.testing.assert_close(hermitian(found), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("k", [2, -4])
def test_second_derivatives_reach_the_factor_of_a_covariance_that_is_rank_deficient(k, generator):
    X = torch.randn(6, 2, generator=generator, dtype=F64).requires_grad_()
    assert gradgradcheck(lambda X: project(X @ X.mT, k), X)


@pytest.mark.parametrize("UPLO", ["L", "U"])
def test_only_the_triangle_that_is_named_is_read_in_second_derivatives(UPLO, generator):
    A = matrix([0.0, 0.0, 1.0, 3.0], generator)
    G, D = (hermitian(torch.randn(4, 4, generator=generator, dtype=F64)) for _ in range(2))
    part = torch.tril(A) if UPLO == "L" else torch.triu(A)
    found = hessian_product(lambda A: project(A, 2, UPLO=UPLO), part, G, D)
    torch.testing.assert_close(found, hessian_product(lambda A: spectral_projector(A, 2), A, G, D))


def test_second_derivatives_of_the_generalised_problem_are_exact_at_ties_among_the_dropped(generator):
    F = torch.randn(4, 4, generator=generator, dtype=F64)
    B = hermitian(F @ F.mT + torch.eye(4, dtype=F64))
    half = torch.linalg.cholesky(B)
    A = hermitian(half @ matrix([0.0, 0.0, 1.0, 3.0], generator) @ half.mT)

    def function(A, B):
        L, V = eg.eigh(hermitian(A), B=hermitian(B), k=2)
        return L, V @ V.mT

    assert gradgradcheck(function, (A.requires_grad_(), B.requires_grad_()))


def test_batches_and_vmap_have_the_hessian_of_each_matrix(generator):
    A = torch.stack([matrix(values, generator) for values in ([0.0, 0.0, 1.0, 2.0], [-1.0, 0.3, 2.0, 2.5])])
    G = hermitian(torch.randn(4, 4, generator=generator, dtype=F64))

    def loss(A):
        L, V = eg.eigh(A, k=2)
        return (((V * L.unsqueeze(-2)) @ V.mT) * G).sum() + (V @ V.mT * G).sum()

    expected = torch.stack([hessian(loss)(a) for a in A])
    torch.testing.assert_close(vmap(hessian(loss))(A), expected, rtol=1e-9, atol=1e-9)
    X = A.clone().requires_grad_()
    D = hermitian(torch.randn(2, 4, 4, generator=generator, dtype=F64))
    (g,) = torch.autograd.grad(loss(X), X, create_graph=True)
    (found,) = torch.autograd.grad((g * D).sum(), X)
    torch.testing.assert_close(found, torch.einsum("bijkl,bkl->bij", expected, D), rtol=1e-9, atol=1e-9)


@pytest.mark.sample(1)
@DOUBLE
@pytest.mark.parametrize("name", ["generic", "dropped tied", "rank one"])
def test_third_derivatives_are_those_of_finite_differences(name, dtype, generator):
    values, k = EVERY[name]
    A = matrix(values, generator, dtype).requires_grad_()
    G, D = (hermitian(torch.randn(4, 4, generator=generator, dtype=dtype)) for _ in range(2))

    def second(A):
        P = project(hermitian(A), k)
        (g,) = torch.autograd.grad((P * G.conj()).real.sum(), A, create_graph=True)
        return torch.autograd.grad((g * D.conj()).real.sum(), A, create_graph=True)[0]

    assert gradcheck(second, A, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("values", [[1.0, 1.0, 2.0, 2.0], [-1.0, 0.3, 2.0, 2.0]], ids=str)
def test_third_derivatives_are_exact_at_ties_among_the_kept(values, generator):
    """Against differences of fourth order of Hessian products of spectral_projector."""
    A = torch.diag(torch.tensor(values, dtype=F64)).requires_grad_()
    G, D, E = (hermitian(torch.randn(4, 4, generator=generator, dtype=F64)) for _ in range(3))
    (g,) = torch.autograd.grad((project(A, 2, gradient="mask") * G).sum(), A, create_graph=True)
    (h,) = torch.autograd.grad((g * D).sum(), A, create_graph=True)
    (found,) = torch.autograd.grad((h * E).sum(), A)

    def difference(step):
        near, far = (
            hessian_product(lambda A: spectral_projector(A, 2), A.detach() + sign * step * E, G, D) for sign in (1, -1)
        )
        return (near - far) / (2 * step)

    assert relative_error(found, (4 * difference(1e-4) - difference(2e-4)) / 3) < 1e-9


@pytest.mark.parametrize("name", EVERY)
def test_third_derivatives_are_finite_with_the_default_rule(name, generator):
    values, k = EVERY[name]
    A = matrix(values, generator).requires_grad_()
    found = (project(A, k) * torch.randn(4, 4, generator=generator, dtype=F64)).sum()
    for _ in range(3):
        (found,) = torch.autograd.grad(found, A, create_graph=True)
        assert torch.isfinite(found).all()
        found = (found * torch.randn(4, 4, generator=generator, dtype=F64)).sum()


def test_hessian_products_at_the_bottom_of_the_range_are_those_of_ordinary_matrices(generator):
    A = matrix([0.0, 0.0, 1.0, 3.0], generator)
    G, D = (hermitian(torch.randn(4, 4, generator=generator, dtype=F64)) for _ in range(2))

    def product(power):
        X = (A * 2.0**power).requires_grad_()
        (g,) = torch.autograd.grad((project(X, 2) * G).sum(), X, create_graph=True)
        return torch.autograd.grad((g * D * 2.0**power).sum(), X)[0] * 2.0**power

    torch.testing.assert_close(product(-980), product(0), rtol=1e-9, atol=1e-9)


# First derivatives and what is said of them -------------------------------------------------------------------------


@DOUBLE
@pytest.mark.parametrize("k", [2, -3])
@pytest.mark.parametrize(
    "rule", [eg.Saturate(), eg.Lorentzian(), eg.Clip(), eg.Taylor(), eg.Truncate(rank=3)], ids=repr
)
def test_the_gradient_and_its_account_are_those_of_all_pairs_with_nothing_for_the_dropped(rule, k, dtype, generator):
    A = matrix([0.5, 0.5 + 1e-7, 1.0, 1.0 + 1e-6, 3.0], generator, dtype).requires_grad_()
    weights = torch.randn(5, abs(k), generator=generator, dtype=F64)
    with eg.GradientMonitor() as monitor:
        L, V = eg.eigh(A, k=k, gradient=rule)
        (found,) = torch.autograd.grad((V.abs() ** 2 * weights).sum() + (L * weights[0]).sum(), A)
    L, V = eg.eigh(A.detach())
    part = slice(5 - k, 5) if k > 0 else slice(0, -k)
    gL, gV = torch.zeros_like(L), torch.zeros_like(V)
    gL[part], gV[:, part] = weights[0], 2 * V[:, part] * weights
    with eg.GradientMonitor() as whole:
        expected = Partial(rule, k).pullback(L, V, gL, gV)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * expected.abs().max().item())
    assert (monitor.calls, monitor.pairs) == (whole.calls, whole.pairs) == (1, 10)
    assert monitor.acted == whole.acted
    assert monitor.lost == pytest.approx(whole.lost, rel=1e-6)
    assert monitor.amplification == pytest.approx(whole.amplification, rel=1e-6)


# svd ----------------------------------------------------------------------------------------------------------------

SHAPES = pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 4)], ids=str)
#: Descending singular values, k, and whether the kept are apart.
TRIPLES = {
    "generic": ([3.0, 1.8, 0.5], 2, True),
    "smallest": ([3.0, 1.8, 0.5], -1, True),
    "dropped tied": ([3.0, 1.0, 1.0], 1, True),
    "dropped tied, smallest": ([2.0, 2.0, 1.0], -1, True),
    "rank one": ([1.0, 0.0, 0.0], 1, True),
    "rank two": ([2.0, 1.0, 0.0], 2, True),
    "kept tied": ([2.0, 2.0, 1.0], 2, False),
    "kept tied, smallest": ([2.0, 1.0, 1.0], -2, False),
}


@pytest.mark.sample(1)
@DOUBLE
@SHAPES
@pytest.mark.parametrize("name", TRIPLES)
def test_second_derivatives_of_svd_are_those_of_finite_differences(name, shape, dtype, generator):
    values, k, apart = TRIPLES[name]
    A = random_matrix(torch.tensor(values, dtype=F64), *shape, generator, dtype).requires_grad_()

    def function(A):
        U, S, Vh = eg.svd(A, k=k)
        if apart:
            return U.abs() ** 2, (U * S.exp().unsqueeze(-2)) @ Vh
        return U @ U.mH, Vh.mH @ Vh, U @ Vh

    assert gradgradcheck(function, A, check_fwd_over_rev=True)


@DOUBLE
@SHAPES
@pytest.mark.parametrize("name", [name for name in TRIPLES if TRIPLES[name][1] > 0])
def test_hessian_products_of_svd_are_those_of_the_projector_and_of_low_rank(name, shape, dtype, generator):
    values, k, apart = TRIPLES[name]
    A = random_matrix(torch.tensor(values, dtype=F64), *shape, generator, dtype)
    G = hermitian(torch.randn(shape[0], shape[0], generator=generator, dtype=dtype))
    H, D = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))

    def left(A):
        U = eg.svd(A, k=k, gradient="lorentzian").U
        return U @ U.mH

    def truncated(A):
        U, S, Vh = eg.svd(A, k=k, gradient="lorentzian")
        return (U * S.unsqueeze(-2)) @ Vh

    expected = hessian_product(lambda A: spectral_projector(hermitian(A @ A.mH), k), A, G, D)
    assert relative_error(hessian_product(left, A, G, D), expected) < 1e-9
    if apart:
        expected = hessian_product(lambda A: low_rank(A, k), A, H, D)
        assert relative_error(hessian_product(truncated, A, H, D), expected) < 1e-9


#: Descending singular values of which −k are kept, some of them zero.
KEPT_ZEROS = {
    "one zero": ([3.0, 2.0, 1.0, 0.0], -1),
    "zeros": ([3.0, 2.0, 0.0, 0.0], -2),
    "zero and one": ([3.0, 3.0, 1.0, 0.0], -2),
    "dropped tied": ([3.0, 3.0, 1.0, 0.0], -1),
    "zero and a tie": ([2.0, 1.0, 1.0, 0.0], -3),
    "rank one": ([3.0, 0.0, 0.0, 0.0], -3),
    "almost zero": ([3.0, 2.0, 1.0, 1e-17], -1),
}
LONG = pytest.mark.parametrize("shape", [(4, 4), (5, 4), (4, 5)], ids=str)


def kept_span(k: int, shape: tuple[int, int], **options):
    """The projector on the kept vectors of the side of which A determines all, as a function of A."""

    def function(A: Tensor) -> Tensor:
        U, _, Vh = eg.svd(A, k=k, **options)
        return U @ U.mH if shape[0] <= shape[1] else Vh.mH @ Vh

    return function


def gram_span(k: int, shape: tuple[int, int]):
    """The same by the projector of a Hermitian matrix, which has derivatives of its own."""
    return lambda A: spectral_projector(hermitian(A @ A.mH if shape[0] <= shape[1] else A.mH @ A), k)


@DOUBLE
@LONG
@pytest.mark.parametrize("name", KEPT_ZEROS)
def test_hessian_products_of_spans_with_kept_zeros_are_those_of_the_projector(name, shape, dtype, generator):
    values, k = KEPT_ZEROS[name]
    A = random_matrix(torch.tensor(values, dtype=F64), *shape, generator, dtype)
    G = hermitian(torch.randn(4, 4, generator=generator, dtype=dtype))
    D = torch.randn(shape, generator=generator, dtype=dtype)
    expected = hessian_product(gram_span(k, shape), A, G, D)
    found = hessian_product(kept_span(k, shape, gradient="mask"), A, G, D)
    assert relative_error(found, expected) < 1e-9
    # At ties among the kept, zeros or not, round-off meets the default rule's 1/τ twice.
    assert relative_error(hessian_product(kept_span(k, shape), A, G, D), expected) < 1e-5
    if dtype is F64:
        loss = kept_span(k, shape, gradient="mask")
        forward = jvp(grad(lambda A: (loss(A) * G).sum()), (A,), (D,))[1]
        torch.testing.assert_close(forward, expected, rtol=1e-9, atol=1e-9)


@DOUBLE
def test_both_spans_of_a_square_matrix_with_kept_zeros_have_the_second_derivatives_of_differences(dtype, generator):
    A = random_matrix(torch.tensor([2.0, 0.0, 0.0], dtype=F64), 3, 3, generator, dtype).requires_grad_()

    def function(A):
        U, _, Vh = eg.svd(A, k=-2)
        return U @ U.mH, Vh.mH @ Vh, U @ (U.mH @ A)

    assert gradcheck(function, A, check_forward_ad=True)
    assert gradgradcheck(function, A, check_fwd_over_rev=True)


def test_third_derivatives_of_a_span_with_kept_zeros_are_those_of_differences(generator):
    A = random_matrix(torch.tensor([3.0, 2.0, 0.0, 0.0], dtype=F64), 5, 4, generator).requires_grad_()
    G = hermitian(torch.randn(4, 4, generator=generator, dtype=F64))
    D, E = (torch.randn(5, 4, generator=generator, dtype=F64) for _ in range(2))
    (g,) = torch.autograd.grad((kept_span(-2, (5, 4), gradient="mask")(A) * G).sum(), A, create_graph=True)
    (h,) = torch.autograd.grad((g * D).sum(), A, create_graph=True)
    (found,) = torch.autograd.grad((h * E).sum(), A)

    def difference(step):
        near, far = (hessian_product(gram_span(-2, (5, 4)), A.detach() + sign * step * E, G, D) for sign in (1, -1))
        return (near - far) / (2 * step)

    assert relative_error(found, (4 * difference(1e-4) - difference(2e-4)) / 3) < 1e-8


def test_kept_zeros_do_not_change_the_hessian_of_their_neighbours(generator):
    """The unitary part of what is kept, at a tie among them, beside a matrix with zeros; and under vmap."""
    A = torch.stack(
        [
            random_matrix(torch.tensor(s, dtype=F64), 4, 4, generator)
            for s in ([3.0, 1.0, 1.0, 0.0], [3.0, 2.0, 1.0, 1.0])
        ]
    )
    G = torch.randn(4, 4, generator=generator, dtype=F64)

    def loss(A):
        U, _, Vh = eg.svd(A, k=-2)
        return ((U @ Vh) * G).sum()

    expected = torch.stack([hessian(loss)(a) for a in A])
    torch.testing.assert_close(vmap(hessian(loss))(A)[1], expected[1], rtol=1e-6, atol=1e-6)
    assert torch.isfinite(expected).all()
    assert gradgradcheck(lambda A: eg.svd(A, k=-2).U @ eg.svd(A, k=-2).Vh, A[1].clone().requires_grad_())


@pytest.mark.parametrize("k", [2, -2])
@pytest.mark.parametrize("function", [eg.eigh, eg.svd])
def test_a_plain_backward_pass_has_the_gradient_of_one_that_is_differentiated_again(function, k, generator):
    A = random_hermitian(torch.tensor([0.3, 1.0, 2.0, 3.5], dtype=F64), generator).requires_grad_()
    results = function(A, k=k)
    loss = sum((x * torch.randn(x.shape, generator=generator, dtype=F64)).sum() for x in results)
    (quick,) = torch.autograd.grad(loss, A, retain_graph=True)
    (graph,) = torch.autograd.grad(loss, A, create_graph=True)
    assert graph.requires_grad
    torch.testing.assert_close(quick, graph.detach(), rtol=1e-12, atol=1e-12)
