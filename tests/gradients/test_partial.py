"""eigh(k=…) and svd(k=…): the pairs at one end of the spectrum, whose subspace has its exact gradient at ties."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap

import eigengrad as eg
from eigengrad.matrix_functions import spectral_projector
from eigengrad.testing import random_hermitian, random_matrix

F32, F64, C64, C128 = torch.float32, torch.float64, torch.complex64, torch.complex128
EVERY = [F32, F64, C64, C128]
DOUBLE = [F64, C128]
SHAPES = [(4, 4), (6, 4), (4, 6)]


def hermitian(X: Tensor) -> Tensor:
    return (X + X.mH) / 2


def matrix(eigenvalues, generator, dtype=F64, rotate=True) -> Tensor:
    return random_hermitian(torch.tensor(eigenvalues, dtype=F64), generator, dtype, rotate=rotate)


def weights(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.sin(torch.arange(1, math.prod(shape) + 1, dtype=dtype)).reshape(shape)


def part_of(n: int, k: int) -> slice:
    """Of ascending values."""
    return slice(n - k, n) if k > 0 else slice(0, -k)


def descending(n: int, k: int) -> slice:
    return slice(0, k) if k > 0 else slice(n + k, n)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return (torch.linalg.norm(actual - expected) / torch.linalg.norm(expected)).item()


# Values -------------------------------------------------------------------------------------------------------------

every_k = pytest.mark.parametrize("k", [1, 2, 4, -1, -2, -4])


@pytest.mark.sample(2)
@every_k
@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("batch", [(), (3,), (2, 0), (2, 3)], ids=str)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_eigh_gives_the_pairs_at_one_end_in_ascending_order(k, dtype, batch, requires_grad, generator):
    A = hermitian(torch.randn(*batch, 4, 4, generator=generator, dtype=dtype)).requires_grad_(requires_grad)
    result = eg.eigh(A, k=k)
    assert isinstance(result, torch.return_types.linalg_eigh)
    L, V = eg.eigh(A)
    part = part_of(4, k)
    assert result.eigenvalues.shape == (*batch, abs(k))
    assert result.eigenvectors.shape == (*batch, 4, abs(k))
    torch.testing.assert_close(result.eigenvalues, L[..., part])
    torch.testing.assert_close(result.eigenvectors.abs(), V[..., part].abs(), rtol=1e-4, atol=1e-4)
    tolerance = 100 * torch.finfo(dtype).eps
    product = A @ result.eigenvectors
    torch.testing.assert_close(product, result.eigenvectors * result.eigenvalues.unsqueeze(-2), rtol=0, atol=tolerance)


@pytest.mark.sample(2)
@every_k
@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 6, 4), (0, 4, 5)], ids=str)
@pytest.mark.parametrize("full_matrices", [True, False])
def test_svd_gives_the_triples_at_one_end_in_descending_order(k, dtype, shape, full_matrices, generator):
    A = torch.randn(shape, generator=generator, dtype=dtype)
    result = eg.svd(A, full_matrices, k=k)
    assert isinstance(result, torch.return_types.linalg_svd)
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    part = descending(4, k)
    assert result.U.shape == (*shape[:-1], abs(k))
    assert result.Vh.shape == (*shape[:-2], abs(k), shape[-1])
    torch.testing.assert_close(result.S, S[..., part])
    torch.testing.assert_close(result.U.abs(), U[..., part].abs(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result.Vh.abs(), Vh[..., part, :].abs(), rtol=1e-4, atol=1e-4)
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(A @ result.Vh.mH, result.U * result.S.unsqueeze(-2), rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_comes_back_as_it_was(dtype, generator):
    A = hermitian(torch.randn(4, 4, generator=generator)).to(dtype).requires_grad_()
    for outputs in (tuple(eg.eigh(A, k=2)), tuple(eg.svd(A, k=-2))):
        assert all(x.dtype == dtype for x in outputs)
        (g,) = torch.autograd.grad(sum((x**2 * weights(*x.shape, dtype=dtype)).sum() for x in outputs), A)
        assert g.dtype == dtype
        assert torch.isfinite(g).all()


@pytest.mark.parametrize("UPLO", ["L", "U"])
def test_the_triangle_is_that_which_is_named(UPLO, generator):
    A = hermitian(torch.randn(4, 4, generator=generator, dtype=F64))
    part = torch.tril(A) if UPLO == "L" else torch.triu(A)
    torch.testing.assert_close(eg.eigh(part, UPLO, k=2).eigenvalues, eg.eigh(A).eigenvalues[2:])


# Derivatives at generic points --------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("k", [1, 2, 4, -1])
@pytest.mark.parametrize("gradient", ["exact", "saturate"])
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_derivatives_of_eigh_are_those_of_finite_differences(k, gradient, dtype, generator):
    A = matrix([-1.0, 0.3, 1.1, 2.0], generator, dtype).requires_grad_()

    def function(A):
        L, V = eg.eigh(hermitian(A), k=k, gradient=gradient)
        return L, V.abs() ** 2

    assert gradcheck(function, A, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, A, check_fwd_over_rev=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("k", [1, 3, -2])
@pytest.mark.parametrize("gradient", ["exact", "saturate"])
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("shape", [(3, 3), (4, 3), (3, 4)], ids=str)
def test_derivatives_of_svd_are_those_of_finite_differences(k, gradient, dtype, shape, generator):
    A = random_matrix(torch.tensor([3.0, 1.8, 0.5], dtype=F64), *shape, generator, dtype).requires_grad_()

    def function(A):
        U, S, Vh = eg.svd(A, k=k, gradient=gradient)
        return S, U.abs() ** 2, U @ Vh

    assert gradcheck(function, A, check_forward_ad=True, check_batched_grad=True)
    if gradient == "saturate":
        assert gradgradcheck(function, A, check_fwd_over_rev=True)


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize("k", [2, -2])
def test_the_gradient_is_that_of_the_same_part_of_the_whole(name, k, generator):
    A = matrix([0.2, 0.7, 1.1, 2.0], generator)

    def some(A):
        return eg.eigh(A, k=k).eigenvectors if name == "eigh" else eg.svd(A, k=k).U

    def all_of_them(A):
        return eg.eigh(A).eigenvectors[:, part_of(4, k)] if name == "eigh" else eg.svd(A).U[:, descending(4, k)]

    g, h = (grad(lambda A, f=f: (f(A) ** 2 * weights(4, 2)).sum())(A) for f in (some, all_of_them))
    torch.testing.assert_close(g, h)


# At ties ------------------------------------------------------------------------------------------------------------

#: Ascending eigenvalues and k: inside the kept and inside the dropped, but not between them, there are ties.
TIES = {
    "kept": ([-1.0, 0.3, 2.0, 2.0], 2),
    "dropped": ([-1.0, -1.0, 0.5, 2.0], 2),
    "both": ([1.0, 1.0, 2.0, 2.0], 2),
    "smallest": ([-1.0, -1.0, 1.0, 1.0], -2),
    "rank one": ([0.0, 0.0, 0.0, 1.0], 1),
    "kernel": ([0.0, 0.0, 0.0, 1.0], -3),
    "kept almost": ([-1.0, 0.3, 2.0, 2.0 + 1e-13], 2),
    "dropped almost": ([-1.0, -1.0 + 1e-10, 0.5, 2.0], 2),
    "kept near": ([-1.0, 0.3, 2.0, 2.0 + 1e-6], 2),
    "whole": ([1.0, 1.0, 2.0, 2.0], 4),
}
every_tie = pytest.mark.parametrize("name", TIES)
rotated = pytest.mark.parametrize("rotate", [True, False], ids=["rotated", "diagonal"])


@pytest.mark.sample(2)
@every_tie
@rotated
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("rule", ["saturate", "mask", "lorentzian", "taylor", "clip"])
def test_the_projector_of_eigh_has_the_gradient_of_spectral_projector_at_ties(name, rotate, dtype, rule, generator):
    values, k = TIES[name]
    A = matrix(values, generator, dtype, rotate)
    G = hermitian(torch.randn(4, 4, generator=generator, dtype=dtype))

    def project(A):
        V = eg.eigh(A, k=k, gradient=rule).eigenvectors
        return V @ V.mH

    def gradient(function):
        X = A.clone().requires_grad_()
        return torch.autograd.grad((function(X) * G.conj()).real.sum(), X)[0]

    found, expected = gradient(project), gradient(lambda A: spectral_projector(A, k))
    if name == "whole":
        assert found.abs().max() < 1e-12
    else:
        assert relative_error(found, expected) < 1e-11


@every_tie
@rotated
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_the_projector_of_eigh_has_the_derivatives_of_finite_differences_at_ties(name, rotate, dtype, generator):
    values, k = TIES[name]
    A = matrix(values, generator, dtype, rotate).requires_grad_()

    def project(A):
        V = eg.eigh(hermitian(A), k=k).eigenvectors
        return V @ V.mH

    assert gradcheck(project, A, check_batched_grad=True, atol=1e-6, rtol=1e-6)


@every_tie
@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
def test_forward_mode_of_the_projector_is_exact_at_ties(name, dtype, generator):
    values, k = TIES[name]
    A, D = matrix(values, generator, dtype), hermitian(torch.randn(4, 4, generator=generator, dtype=dtype))

    def project(A):
        V = eg.eigh(A, k=k).eigenvectors
        return V @ V.mH

    found, expected = (jvp(f, (A,), (D,))[1] for f in (project, lambda A: spectral_projector(A, k)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("values", "k"),
    [([2.0, 2.0, 1.0, 1.0], 2), ([2.0, 2.0, 2.0, 1.0], 3), ([3.0, 1.0, 1.0, 1.0], 1), ([2.0, 2.0, 1.0, 1.0], -2)],
    ids=str,
)
def test_losses_of_singular_subspaces_are_those_of_finite_differences_at_ties(values, k, shape, dtype, generator):
    A = random_matrix(torch.tensor(values, dtype=F64), *shape, generator, dtype).requires_grad_()

    def function(A):
        U, _, Vh = eg.svd(A, k=k)
        return U @ U.mH, Vh.mH @ Vh, U @ Vh

    assert gradcheck(function, A, check_batched_grad=True, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", DOUBLE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_losses_of_the_range_are_those_of_finite_differences_at_rank_deficiency(rank, shape, dtype, generator):
    A = torch.zeros(4, dtype=F64)
    A[:rank] = 1.0
    A = random_matrix(A, *shape, generator, dtype).requires_grad_()

    def function(A):
        U, S, Vh = eg.svd(A, k=rank)
        return U @ U.mH, Vh.mH @ Vh, U @ Vh, S.sum()

    assert gradcheck(function, A, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_the_gradient_of_a_subspace_is_scale_free(name, dtype, scale, generator):
    A = matrix([1.0, 1.0, 2.0, 2.0], generator, dtype)

    def project(A):
        V = eg.eigh(A, k=2).eigenvectors if name == "eigh" else eg.svd(A, k=2).U
        return ((V @ V.mT) * weights(4, 4, dtype=dtype)).sum()

    two = 2.0 ** round(math.log2(scale))
    torch.testing.assert_close(grad(project)(A * two) * two, grad(project)(A), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("A", [torch.eye(4), torch.zeros(4, 4), torch.diag(torch.tensor([0.0, 1, 1, 2]))])
@pytest.mark.parametrize("k", [1, 2, -2])
def test_a_cut_through_a_tie_has_a_finite_gradient_to_second_order(name, A, k, dtype):
    A = A.to(dtype).requires_grad_()
    V = eg.eigh(A, k=k).eigenvectors if name == "eigh" else eg.svd(A, k=k).U
    (g,) = torch.autograd.grad(((V @ V.mT) * weights(4, 4, dtype=dtype)).sum(), A, create_graph=True)
    assert torch.isfinite(g).all()
    (h,) = torch.autograd.grad((g * weights(4, 4, dtype=dtype)).sum(), A)
    assert torch.isfinite(h).all()


@pytest.mark.parametrize("gap", [1e-3, 1e-5, 1e-7, 1e-9, 1e-11])
@pytest.mark.parametrize("k", [2, -2])
def test_between_kept_and_dropped_there_is_no_rule(gap, k, generator):
    """The default rule would remove e^(−gap/τ) of it: nearly all at a gap of 1e-7."""
    A = matrix([0.0, 1.0, 1.0 + gap, 3.0], generator)
    G = hermitian(torch.randn(4, 4, generator=generator, dtype=F64))

    def gradient(function):
        X = A.clone().requires_grad_()
        return torch.autograd.grad((function(X) * G).sum(), X)[0]

    def project(A):
        V = eg.eigh(A, k=k).eigenvectors
        return V @ V.mT

    assert relative_error(gradient(project), gradient(lambda A: spectral_projector(A, k))) < 1e-14 / gap


# Transforms ---------------------------------------------------------------------------------------------------------


def summed(name, k, A):
    """A function of what is kept of the decomposition that does not depend on its choice."""
    if name == "eigh":
        values, V = eg.eigh(A, k=k)
    else:
        V, values, _ = eg.svd(A, k=k)
    return ((V @ V.mT) * weights(4, 4)).sum() + (values * weights(abs(k))).sum()


def batch_with_ties(generator):
    return torch.stack([matrix([1.0, 1.0, 2.0, 3.0], generator), matrix([0.5, 0.7, 2.0, 2.0], generator)])


def gradients_one_by_one(loss, A):
    leaves = [a.clone().requires_grad_() for a in A]
    return torch.stack([torch.autograd.grad(loss(x), x)[0] for x in leaves])


@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize("k", [2, -1])
def test_transforms_agree_with_a_loop(name, k, generator):
    A, loss = batch_with_ties(generator), lambda A: summed(name, k, A)
    expected = gradients_one_by_one(loss, A)
    for found in (vmap(grad(loss))(A), torch.stack([grad(loss)(a) for a in A])):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["eigh", "svd"])
@pytest.mark.parametrize("k", [2, -1])
def test_compiled_it_agrees_with_a_loop(name, k, generator, dynamo):
    A, loss = batch_with_ties(generator), lambda A: summed(name, k, A)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = gradients_one_by_one(loss, A)
    torch.testing.assert_close(gradients_one_by_one(compiled, A), expected, rtol=1e-9, atol=1e-9)


def test_power_iteration_takes_k_too(generator):
    A = matrix([0.5, 1.0, 2.0, 4.0], generator).requires_grad_()
    V = eg.eigh(A, k=2, gradient="power_iteration").eigenvectors
    assert V.shape == (4, 2)
    (g,) = torch.autograd.grad((V**2 * weights(4, 2)).sum(), A)
    assert torch.isfinite(g).all()


# Errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 5, -5, 100])
@pytest.mark.parametrize("function", [eg.eigh, eg.svd])
def test_a_count_that_there_is_not_is_refused(function, k):
    with pytest.raises(ValueError, match=rf"{function.__name__}: k must be from 1 to 4, or from -4 to -1.*got {k}"):
        function(torch.eye(4), k=k)


@pytest.mark.parametrize("k", [1.0, "2", True, 2.5, torch.tensor(2), (1,)], ids=str)
@pytest.mark.parametrize("function", [eg.eigh, eg.svd])
def test_a_count_that_is_no_integer_is_refused(function, k):
    with pytest.raises(TypeError, match=f"{function.__name__}: k must be an integer"):
        function(torch.eye(4), k=k)


@pytest.mark.parametrize(("shape", "most"), [((6, 3), 3), ((3, 6), 3), ((5, 1), 1)])
def test_svd_has_no_more_than_the_smaller_size(shape, most):
    assert eg.svd(torch.ones(shape), k=most).S.shape == (most,)
    with pytest.raises(ValueError, match=f"from 1 to {most}"):
        eg.svd(torch.ones(shape), k=most + 1)


@pytest.mark.parametrize("function", [eg.eigh, eg.svd])
def test_a_matrix_of_size_zero_has_no_count(function):
    with pytest.raises(ValueError, match="k must be"):
        function(torch.zeros(0, 0), k=1)
