"""The polar decomposition: values, exact derivatives, degenerate matrices."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from functions_matrix import gradient, hermitian, randn, relative_error, rotation
from polar_cases import (
    C128,
    F32,
    F64,
    SMOOTH,
    check_third_derivative,
    polar_h,
    polar_u,
    real_and_complex,
    second,
    seeded,  # noqa: F401 - used by every test
    with_singular_values,
)

SHAPES = [(3, 3), (5, 3), (3, 5), (4, 1), (1, 4), (1, 1), (2, 3, 2)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


smooth = pytest.mark.parametrize("name", SMOOTH)


@real_and_complex
@every_shape
def test_the_factors_multiply_to_the_matrix_and_are_what_they_promise(shape, dtype):
    A = randn(*shape, dtype=dtype)
    U, H = eg.polar(A)
    k = min(shape[-2:])
    assert U.shape == A.shape
    assert H.shape == (*shape[:-2], shape[-1], shape[-1])
    torch.testing.assert_close(U @ H, A, rtol=0, atol=1e-13)
    gram = U.mH @ U if shape[-2] >= shape[-1] else U @ U.mH
    torch.testing.assert_close(gram, torch.eye(k, dtype=dtype).expand_as(gram), rtol=0, atol=1e-13)
    assert torch.equal(H, H.mH)
    assert torch.linalg.eigvalsh(H).min() > -1e-13


@real_and_complex
@every_shape
def test_h_is_the_square_root_of_the_gram_matrix(shape, dtype):
    A = randn(*shape, dtype=dtype)
    H = eg.polar(A).H
    torch.testing.assert_close(H @ H, A.mH @ A, rtol=1e-12, atol=1e-12)


def test_u_is_the_nearest_matrix_with_orthonormal_columns():
    A = randn(5, 3)
    nearest = torch.linalg.matrix_norm(A - polar_u(A))
    competitors = torch.stack([rotation(5, seed=s)[:, :3] for s in range(200)])
    near = polar_u(polar_u(A) + 0.05 * torch.randn(200, 5, 3, dtype=F64))
    for others in (competitors, near):
        assert (torch.linalg.matrix_norm(A - others) >= nearest - 1e-13).all()


@real_and_complex
@smooth
def test_first_derivatives_of_both_factors_are_exact_at_ties_too(name, dtype):
    A = SMOOTH[name].to(dtype)
    if dtype.is_complex:  # phases that are not real, the singular values unchanged
        A = rotation(A.shape[0], dtype, 5) @ A
    A.requires_grad_()
    options = {"check_forward_ad": True, "check_batched_grad": True, "atol": 1e-6, "rtol": 1e-6}
    assert gradcheck(lambda X: tuple(eg.polar(X)), A, **options)


@smooth
def test_second_derivatives_of_both_factors_are_exact_at_ties_too(name):
    A = SMOOTH[name].clone().requires_grad_()
    options = {"check_fwd_over_rev": True, "check_batched_grad": True, "atol": 1e-5, "rtol": 1e-5}
    assert gradgradcheck(lambda X: tuple(eg.polar(X)), A, **options)


@pytest.mark.parametrize("name", ["generic", "tied pair", "tall, tied", "wide, tied"])
def test_second_derivatives_are_exact_for_complex_matrices(name):
    A = (rotation(SMOOTH[name].shape[0], C128, 5) @ SMOOTH[name].to(C128)).requires_grad_()
    assert gradgradcheck(polar_u, A, check_fwd_over_rev=True, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["orthogonal", "tied pair", "tall, tied", "wide, tied", "generic"])
@pytest.mark.parametrize("factor", [polar_u, polar_h], ids=["U", "H"])
def test_third_derivatives_are_exact_at_ties(name, factor):
    check_third_derivative(SMOOTH[name], factor)


@pytest.mark.parametrize("order", [1, 2])
def test_one_zero_singular_value_of_a_real_square_matrix_is_the_limit_of_small_ones(order):
    # diag(2, 1, s): U = I for every s ≥ 0, and its derivatives, made of 1/(σ_i + σ_j) with i ≠ j, are continuous there.
    G, P = randn(3, 3), randn(3, 3, seed=1)
    at, near = (
        second(polar_u, torch.diag(torch.tensor([2.0, 1.0, s], dtype=F64)), G, P)[order - 1] for s in (0.0, 1e-9)
    )
    assert relative_error(at, near) < 1e-7


def test_the_gradient_at_one_zero_singular_value_is_that_of_differences_on_its_branch():
    # Directions that leave the last diagonal entry alone keep σ_3 at second order: both sides are on the same branch.
    A = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=F64))
    G, E = randn(3, 3), randn(3, 3, seed=1)
    E[2, 2] = 0.0
    E[2, :2] = 0.0  # then det(A + hE) = h · 0: rank two stays rank two
    h, U = 1e-5, polar_u(A)
    ends = [polar_u(A + s * h * E) for s in (1, -1)]
    assert all((end - U).abs().max() < 1e-3 for end in ends), "the branch was left; the test needs another direction"
    differences = (((ends[0] - ends[1]) / (2 * h)) * G).sum()
    assert (gradient(polar_u, A, G) * E).sum().item() == pytest.approx(differences.item(), rel=1e-6)


def test_two_singular_values_just_below_round_off_are_zero_together_too():
    # σ₂ = σ₃ = 2 eps are zero to round-off, which is 3 eps here, but their sum is not.
    A = torch.diag(torch.tensor([1.0, 2 * torch.finfo(F64).eps, 2 * torch.finfo(F64).eps], dtype=F64))
    g, h = second(polar_u, A, randn(3, 3), randn(3, 3, seed=1))
    assert g.abs().max() < 1e3
    assert h.abs().max() < 1e3


DEFICIENT = {
    "zero": torch.zeros(3, 3, dtype=F64),
    "two zeros": torch.diag(torch.tensor([2.0, 0.0, 0.0], dtype=F64)),
    "two zeros, rotated": with_singular_values([2.0, 0.0, 0.0]),
    "tall rank one": with_singular_values([1.0, 0.0], 4, 2),
    "wide rank one": with_singular_values([1.0, 0.0], 2, 4),
    "tall zero": torch.zeros(4, 2, dtype=F64),
    "tall rank one, exactly": torch.eye(4, 2, dtype=F64) * torch.tensor([1.0, 0.0], dtype=F64),
    "wide rank one, exactly": torch.eye(2, 4, dtype=F64) * torch.tensor([[1.0], [0.0]], dtype=F64),
}


@pytest.mark.parametrize("dtype", [F32, F64, C128], ids=str)
@pytest.mark.parametrize("name", DEFICIENT)
def test_rank_deficiency_leaves_first_and_second_derivatives_bounded(name, dtype):
    A = DEFICIENT[name].to(dtype)
    for call in (polar_u, polar_h):
        shape = call(A).shape
        g, h = second(call, A, randn(*shape, dtype=dtype), randn(*A.shape, dtype=dtype, seed=1))
        # What is zero to round-off gets no gradient, and what is not is of order one: nothing may be 1/round-off.
        assert g.abs().max() < 1e3
        assert h.abs().max() < 1e3


def test_two_zero_singular_values_keep_the_gradient_that_is_determined():
    # σ = (2, 0, 0): pairs (1,2) and (1,3) have 1/(2 + 0), the pair (2,3) determines nothing.
    A, G = DEFICIENT["two zeros"], randn(3, 3)
    U = polar_u(A)
    C = U.mT @ G - G.mT @ U
    F = torch.zeros(3, 3, dtype=F64)
    F[0, 1:] = F[1:, 0] = 0.5
    torch.testing.assert_close(gradient(polar_u, A, G), U @ (F * C), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
@pytest.mark.parametrize("name", ["generic", "orthogonal", "tall, tied", "wide, tied"])
def test_the_scale_of_the_matrix_does_not_matter(name, scale, dtype):
    A = SMOOTH[name].to(dtype)
    G = randn(*A.shape, dtype=dtype)
    tolerance = 64 * torch.finfo(dtype).eps
    U, H = eg.polar(A * scale)
    assert relative_error(U, polar_u(A.double())) < tolerance
    assert relative_error(H.double() / scale, polar_h(A.double())) < tolerance
    got = gradient(polar_u, A * scale, G).double() * scale
    assert relative_error(got, gradient(polar_u, A.double(), G.double())) < tolerance


@pytest.mark.parametrize("gap", [0.0, *(10.0**k for k in range(-12, 1, 2))])
def test_the_float32_gradient_is_within_1e_5_of_float64_at_every_gap(gap):
    for seed in range(4):
        A = with_singular_values([1.0, 1.0 + gap, 2.0], seed=seed).float()
        G = randn(3, 3, dtype=F32, seed=seed)
        assert relative_error(gradient(polar_u, A, G), gradient(polar_u, A.double(), G.double())) < 1e-5


def test_differentiating_through_torch_svd_is_nan_at_an_orthogonal_matrix():
    def through_torch(A):
        U, _, Vh = torch.linalg.svd(A)
        return U @ Vh

    A, G = torch.eye(3, dtype=F64), randn(3, 3)
    assert not torch.isfinite(gradient(through_torch, A, G)).all()
    # At the identity dU is the antisymmetric half of dA.
    torch.testing.assert_close(gradient(polar_u, A, G), (G - G.mT) / 2)


EMPTY = [(0, 0), (3, 0), (0, 3), (2, 3, 0), (2, 0, 3), (0, 3, 2), (0, 2, 3)]


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_empty_matrices_and_batches_have_factors_and_gradients(shape):
    A = torch.zeros(shape, dtype=F64)
    U, H = eg.polar(A)
    assert U.shape == shape
    assert H.shape == (*shape[:-2], shape[-1], shape[-1])
    for call in (polar_u, polar_h):
        assert gradient(call, A, torch.zeros_like(call(A))).shape == shape


@pytest.mark.parametrize("neighbour", [1e20, 1e-20, 0.0], ids=str)
def test_a_matrix_does_not_notice_its_neighbours(neighbour):
    A, G, P = randn(4, 3), randn(4, 3, seed=1), randn(4, 3, seed=2)
    pair = torch.stack([neighbour * randn(4, 3, seed=3), A])
    together = second(polar_u, pair, torch.stack([G, G]), torch.stack([torch.zeros_like(P), P]))
    for got, alone in zip(together, second(polar_u, A, G, P), strict=True):
        assert relative_error(got[1], alone) < 1e-14


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ([[1.0]], TypeError, "A must be a torch.Tensor; got list"),
        (torch.ones(3), ValueError, r"\(3,\)"),
        (torch.ones(2, 2, dtype=torch.int32), TypeError, "torch.int32"),
    ],
    ids=["list", "vector", "integer"],
)
def test_what_is_no_matrix_of_numbers_is_refused(bad, kind, message):
    with pytest.raises(kind, match=f"^polar: .*{message}"):
        eg.polar(bad)


def test_a_non_finite_matrix_is_named_as_such():
    A = torch.eye(2).expand(3, 2, 2).clone()
    A[1, 0, 1] = torch.inf
    with pytest.raises(eg.NonFiniteError, match="batch element 1"):
        eg.polar(A)


def test_h_is_hermitian_in_single_precision_too():
    H = polar_h(randn(6, 4, dtype=torch.complex64))
    assert torch.equal(H, hermitian(H))
