"""The polar decomposition and orthogonal Procrustes: values, exact derivatives, degenerate matrices."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from functions_matrix import gradient, hermitian, randn, relative_error, rotation
from mp_rotations import as_matrix, exact_gradient, exact_second_derivative, inner, polar_factor

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
SHAPES = [(3, 3), (5, 3), (3, 5), (4, 1), (1, 4), (1, 1), (2, 3, 2)]

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
real_and_complex = pytest.mark.parametrize("dtype", [F64, C128], ids=str)


@pytest.fixture(autouse=True)
def seed():
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


# ------------------------------------------------------------------------------------------------ accuracy, by mpmath


def exact_value(A, G, special=False):
    """Re⟨G, U⟩ as a function of the entries of A, in mpmath."""
    return lambda entries: inner(G, polar_factor(as_matrix(entries, A), special))


def exact_derivatives(A, G, E, special=False):
    value = exact_value(A, G, special)
    return exact_gradient(value, A), exact_second_derivative(value, A, E)


#: Singular values of 3 × 3 matrices with a gap, of a pair that the derivative does not divide by the difference of.
GAPS = [0.0, *(10.0**k for k in range(-15, 1, 3))]
factors = pytest.mark.parametrize("special", [False, True], ids=["orthogonal", "rotation"])


@pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-5), (F64, 1e-10)], ids=str)
@pytest.mark.parametrize("gap", GAPS)
@factors
@pytest.mark.parametrize("sign", [1, -1], ids=["det > 0", "det < 0"])
def test_the_gradient_is_that_of_mpmath_at_every_gap(sign, special, gap, dtype, tolerance):
    A = with_determinant_sign(with_singular_values([1.0, 1.0 + gap, 0.4]), sign).to(dtype)
    G = randn(3, 3, dtype=dtype)
    expected = exact_gradient(exact_value(A, G, special), A)
    assert relative_error(gradient(lambda X: eg.polar(X, special=special).U, A, G), expected) < tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(F32, 1e-5), (F64, 1e-10)], ids=str)
@factors
@pytest.mark.parametrize(
    "diagonal", [(1, 1, 1), (1, 1, -0.5), (1, 1, 2), (2, 2, 2), (-1, -1, 1), (1, 1), (-1, -1), (3,)], ids=str
)
def test_the_gradient_is_that_of_mpmath_where_ties_are_exact(diagonal, special, dtype, tolerance):
    A = torch.diag(torch.tensor(diagonal, dtype=dtype))
    G = randn(*A.shape, dtype=dtype)
    expected = exact_gradient(exact_value(A, G, special), A)
    got = gradient(lambda X: eg.polar(X, special=special).U, A, G)
    if len(diagonal) == 1:
        assert torch.equal(got, torch.zeros_like(got))
    else:
        assert relative_error(got, expected) < tolerance


def rotation_2x2(A):
    """The rotation nearest to A, (2, 2), by the angle: tan θ = (a21 − a12)/(a11 + a22)."""
    sine, cosine = A[1, 0] - A[0, 1], A[0, 0] + A[1, 1]
    length = torch.sqrt(sine * sine + cosine * cosine)
    return torch.stack([cosine, -sine, sine, cosine]).view(2, 2) / length


@pytest.mark.parametrize("small", [10.0**-k for k in range(13)])
@factors
def test_derivatives_of_2_by_2_matrices_are_those_of_the_angle_however_small_the_second_singular_value(special, small):
    for seed in range(5):
        A = with_singular_values([1.0, small], seed=3 * seed)
        sign = 1 if not special or small == 1 else (-1) ** seed
        A, G = with_determinant_sign(A, sign), randn(2, 2, seed=seed)

        def loss(X, G=G):
            return (eg.polar(X, special=special).U * G).sum()

        def angle(X, G=G):
            return (rotation_2x2(X) * G).sum()

        expected = torch.func.hessian(angle)(A)
        assert relative_error(gradient(loss, A, torch.ones(())), gradient(angle, A, torch.ones(()))) < 1e-12
        assert relative_error(torch.func.hessian(loss)(A), expected) < 1e-13
        assert relative_error(torch.autograd.functional.hessian(loss, A), expected) < 1e-13


GRADED = {
    "3, to 1e-6": ([1, 1e-3, 1e-6], 3, F64),
    "3, to 1e-12": ([1, 1e-6, 1e-12], 3, F64),
    "3, last 1e-12": ([1, 1, 1e-12], 3, F64),
    "4, to 1e-6": ([1, 1e-2, 1e-4, 1e-6], 4, F64),
    "4, to 1e-12": ([1, 1e-4, 1e-8, 1e-12], 4, F64),
    "4, last 1e-12": ([1, 1, 1e-3, 1e-12], 4, F64),
    "tall, to 1e-6": ([1, 1e-6], 4, F64),
    "complex, to 1e-6": ([1, 1e-6], 2, C128),
    "tall, complex, to 1e-6": ([1, 1e-6], 3, C128),
}


#: Each with the determinant of either sign, if it has one, for the orthogonal matrix and the rotation.
GRADED_CASES = [
    (name, special, sign)
    for name, (sigma, m, dtype) in GRADED.items()
    for special, sign in (
        [(False, 1), (False, -1), (True, 1), (True, -1)] if m == len(sigma) and dtype == F64 else [(False, 0)]
    )
]


@pytest.mark.parametrize(("name", "special", "sign"), GRADED_CASES)
def test_both_derivatives_of_graded_matrices_are_as_accurate_as_the_matrix_determines_them(name, special, sign):
    sigma, m, dtype = GRADED[name]
    n = len(sigma)
    A = with_singular_values(sigma, m, n, dtype, seed=4)
    A = with_determinant_sign(A, sign) if sign else A
    # The smallest divisor of the derivatives; relative to it, A has round-off eps.
    divisor = sigma[-2] + (sign if special else 1) * sigma[-1] if sign else sigma[-1]
    G, E = randn(m, n, dtype=dtype), randn(m, n, dtype=dtype, seed=1)
    got = second(lambda X: eg.polar(X, special=special).U, A, G, E)
    # Relative to the largest that the derivatives can be, up to a constant: those of one G may happen to be smaller.
    largest = [G.norm() / divisor, G.norm() * E.norm() / divisor**2]
    for one, exact, size in zip(got, exact_derivatives(A, G, E, special), largest, strict=True):
        assert (one - exact).norm() / size < torch.finfo(F64).eps * (16 + 1 / divisor)  # of the products, and of A


@pytest.mark.parametrize("gap", [1e-2, 1e-5, 1e-8])
def test_a_rotation_near_one_that_is_not_determined_is_as_accurate_as_the_matrix_determines_it(gap):
    # det A < 0: the derivative has 1/(σ₂ − σ₃).
    A = with_determinant_sign(with_singular_values([1.0, 0.5 + gap, 0.5]), -1)
    G, E = randn(3, 3), randn(3, 3, seed=1)
    for one, exact in zip(second(rotation_u, A, G, E), exact_derivatives(A, G, E, True), strict=True):
        assert relative_error(one, exact) < 32 * torch.finfo(F64).eps / gap


def test_the_differences_of_mpmath_are_exact_themselves():
    # At the identity dU is the antisymmetric half of dA.
    A, G = torch.eye(3, dtype=F64), randn(3, 3)
    assert relative_error(exact_gradient(exact_value(A, G), A), (G - G.mT) / 2) < 1e-15


# --------------------------------------------------------------------------------------------------------- rotations


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
every_rotation = pytest.mark.parametrize("name", ROTATIONS)


@every_rotation
def test_the_special_factor_is_the_nearest_rotation(name):
    A = ROTATIONS[name]
    n = A.shape[-1]
    U, H = eg.polar(A, special=True)
    torch.testing.assert_close(U @ H, A, rtol=0, atol=1e-13)
    torch.testing.assert_close(U.mT @ U, torch.eye(n, dtype=F64), rtol=0, atol=1e-13)
    assert torch.linalg.det(U).item() == pytest.approx(1.0, abs=1e-13)
    assert torch.equal(H, H.mT)
    assert torch.linalg.det(H).item() == pytest.approx(torch.linalg.det(A).item(), abs=1e-13)
    assert (torch.linalg.eigvalsh(H) < -1e-13).sum() == int(torch.linalg.det(A) < -1e-13)
    best = torch.linalg.matrix_norm(A - U)
    others = torch.stack([with_determinant_sign(rotation(n, seed=s), 1) for s in range(100)])
    near = rotation_u(U + 0.05 * torch.randn(100, n, n, dtype=F64))
    for competitors in (others, near):
        assert (torch.linalg.matrix_norm(A - competitors) >= best - 1e-13).all()


@every_rotation
def test_first_and_second_derivatives_of_rotations_are_exact(name):
    A = ROTATIONS[name].clone().requires_grad_()

    def call(X):
        return tuple(eg.polar(X, special=True))

    options = {"check_batched_grad": True, "atol": 1e-6, "rtol": 1e-6}
    assert gradcheck(call, A, check_forward_ad=True, **options)
    assert gradgradcheck(call, A, check_fwd_over_rev=True, **{**options, "atol": 1e-5, "rtol": 1e-5})


@pytest.mark.parametrize("name", ["identity", "tied pair, det < 0", "singular"])
@pytest.mark.parametrize("factor", [rotation_u, rotation_h], ids=["U", "H"])
def test_third_derivatives_of_rotations_are_exact(name, factor):
    check_third_derivative(ROTATIONS[name], factor)


def test_the_pose_layer_has_a_gradient_at_the_identity():
    def through_torch(A):
        U, _, Vh = torch.linalg.svd(A)
        last = torch.linalg.det(U @ Vh).unsqueeze(-1)
        return U * torch.cat([torch.ones(2, dtype=F64), last]) @ Vh

    A, G, E, h = torch.eye(3, dtype=F64), randn(3, 3), randn(3, 3, seed=1), 1e-5
    g = gradient(rotation_u, A, G)
    differences = (through_torch(A + h * E) - through_torch(A - h * E)) / (2 * h)
    assert not torch.isfinite(gradient(through_torch, A, G)).all()
    assert (g * E).sum().item() == pytest.approx((differences * G).sum().item(), rel=1e-8)
    torch.testing.assert_close(g, (G - G.mT) / 2)


def test_rotations_are_smooth_where_the_determinant_changes_its_sign():
    P, Q, G, E = with_determinant_sign(rotation(3), 1), with_determinant_sign(rotation(3, seed=1), 1), *randn(2, 3, 3)
    at, *near = (second(rotation_u, P * torch.tensor([2.0, 1.0, s]) @ Q.mT, G, E) for s in (0.0, 1e-9, -1e-9))
    for side in near:
        for got, expected in zip(side, at, strict=True):
            assert relative_error(got, expected) < 1e-7


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize(
    "diagonal", [(1, 1, -1), (2, 1, -1), (2, 0, 0), (0, 0, 0), (1, -1), (0, 0), (2, 1, 1, -1)], ids=str
)
def test_rotations_that_are_not_determined_get_no_gradient_from_the_undetermined_pair(diagonal, dtype):
    exact = torch.diag(torch.tensor(diagonal, dtype=dtype))
    P, Q = (with_determinant_sign(rotation(len(diagonal), seed=s), 1).to(dtype) for s in (0, 1))
    for A in (exact, P @ exact @ Q.mT):
        assert torch.linalg.det(rotation_u(A)).item() == pytest.approx(1.0, abs=1e-5)
        for call in (rotation_u, rotation_h):
            derivatives = second(call, A, randn(*A.shape, dtype=dtype), randn(*A.shape, dtype=dtype, seed=1))
            assert all(x.abs().max() < 1e3 for x in derivatives)


def test_the_determined_pairs_of_a_rotation_that_is_not_determined_keep_their_gradient():
    # s = (2, ±1, ∓1), in one order or the other: the first has 1/(2 ± 1) with the others, which determine nothing.
    A, G = signed([2.0, 1.0, -1.0]), randn(3, 3)
    R, H = eg.polar(A, special=True)
    C = R.mT @ G - G.mT @ R
    F = torch.zeros(3, 3, dtype=F64)
    F[0, 1:] = F[1:, 0] = 1 / (2 + H.diagonal()[1:])
    torch.testing.assert_close(gradient(rotation_u, A, G), R @ (F * C), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
@pytest.mark.parametrize("name", ["generic, det < 0", "identity", "exact tie, det < 0"])
def test_the_scale_of_the_matrix_does_not_matter_to_its_rotation(name, scale, dtype):
    A = ROTATIONS[name].to(dtype)
    G = randn(*A.shape, dtype=dtype)
    tolerance = 64 * torch.finfo(dtype).eps
    assert relative_error(rotation_u(A * scale), rotation_u(A.double())) < tolerance
    got = gradient(rotation_u, A * scale, G).double() * scale
    assert relative_error(got, gradient(rotation_u, A.double(), G.double())) < tolerance


def test_a_rotation_of_one_dimension_is_one_without_a_gradient():
    A = torch.tensor([[[2.0]], [[-3.0]], [[0.0]]], dtype=F64)
    U, H = eg.polar(A, special=True)
    assert torch.equal(U, torch.ones_like(A))
    assert torch.equal(H, A)
    assert torch.equal(gradient(rotation_u, A, torch.ones_like(A)), torch.zeros_like(A))


@pytest.mark.parametrize("shape", [(0, 3, 3), (0, 0), (2, 0, 0)], ids=str)
def test_empty_batches_and_matrices_have_rotations(shape):
    A = torch.zeros(shape, dtype=F64)
    U, H = eg.polar(A, special=True)
    assert U.shape == H.shape == shape
    assert gradient(rotation_u, A, A).shape == shape


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: eg.polar(torch.ones(3, 2), special=True), ValueError, r"polar: .*A must be square.*got \(3, 2\)"),
        (lambda: eg.polar(torch.ones(2, 2) * 1j, special=True), TypeError, "polar: .*A must be.*real.*complex64"),
        (
            lambda: eg.procrustes(torch.ones(5, 2) * 1j, torch.ones(5, 2) * 1j, special=True),
            TypeError,
            "procrustes: .*A must be.*real.*complex64",
        ),
    ],
    ids=["not square", "complex", "procrustes of complex"],
)
def test_rotations_are_refused_where_there_are_none(call, kind, message):
    with pytest.raises(kind, match=f"^{message}"):
        call()


# -------------------------------------------------------------------------------------------------------- transforms


def both(A):
    return tuple(eg.polar(A))


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)], ids=str)
def test_vmap_grad_jvp_and_compile_agree_with_eager(shape):
    torch._dynamo.reset()
    A, G, E = randn(3, *shape), randn(*shape, seed=1), randn(3, *shape, seed=2)
    expected = both(A)
    g = gradient(polar_u, A, G.expand(3, *shape))
    for got, want in zip(torch.func.vmap(both)(A), expected, strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda X: (polar_u(X) * G).sum()))(A), g)
    _, dU = torch.func.jvp(polar_u, (A,), (E,))
    assert (dU * G).sum().item() == pytest.approx((g * E).sum().item(), rel=1e-11)
    compiled = torch.compile(polar_u, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A), expected[0])
    torch.testing.assert_close(gradient(compiled, A, G.expand(3, *shape)), g)


def test_rotations_in_vmap_grad_jvp_and_compile_agree_with_eager():
    torch._dynamo.reset()
    A, G, E = randn(4, 3, 3), randn(3, 3, seed=1), randn(4, 3, 3, seed=2)
    assert {-1.0, 1.0} == set(torch.linalg.det(A).sign().tolist())
    g = gradient(rotation_u, A, G.expand(4, 3, 3))
    for got, want in zip(
        torch.func.vmap(lambda X: eg.polar(X, special=True))(A), eg.polar(A, special=True), strict=True
    ):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lambda X: (rotation_u(X) * G).sum()))(A), g)
    _, dU = torch.func.jvp(rotation_u, (A,), (E,))
    assert (dU * G).sum().item() == pytest.approx((g * E).sum().item(), rel=1e-11)
    compiled = torch.compile(rotation_u, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A), rotation_u(A))
    torch.testing.assert_close(gradient(compiled, A, G.expand(4, 3, 3)), g)


@pytest.mark.parametrize("name", ["identity", "tied pair, det < 0", "singular"])
def test_the_hessian_of_a_rotation_by_torch_func_is_that_of_autograd(name):
    A = ROTATIONS[name]
    G = randn(*A.shape)

    def loss(X):
        return (rotation_u(X) * G).sum()

    expected = torch.autograd.functional.hessian(loss, A)
    torch.testing.assert_close(torch.func.hessian(loss)(A), expected)
    batch = torch.stack([A, 2 * A])
    torch.testing.assert_close(torch.func.vmap(torch.func.hessian(loss))(batch), torch.stack([expected, expected / 4]))


def test_the_hessian_by_torch_func_is_that_of_autograd():
    A, G = SMOOTH["tied pair"], randn(3, 3)

    def loss(X):
        return (polar_u(X) * G).sum()

    torch.testing.assert_close(torch.func.hessian(loss)(A), torch.autograd.functional.hessian(loss, A))


@pytest.mark.parametrize("factor", [polar_u, polar_h], ids=["U", "H"])
def test_autocast_changes_neither_value_nor_gradient(factor):
    A, G = randn(3, 3, dtype=F32), randn(3, 3, dtype=F32, seed=1)
    value, g = factor(A), gradient(factor, A, G)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relative_error(factor(A), value) < 1e-6
        assert relative_error(gradient(factor, A, G), g) < 1e-6


@pytest.mark.parametrize("shape", [(3, 3), (4, 2)], ids=str)
def test_autocast_does_not_change_second_derivatives(shape):
    A, G, E = (randn(*shape, dtype=F32, seed=k) for k in range(3))
    expected = second(polar_u, A, G, E)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for got, want in zip(second(polar_u, A, G, E), expected, strict=True):
            assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32_and_cast_back(dtype):
    A, G = randn(4, 3, dtype=dtype), randn(4, 3, dtype=dtype, seed=1)
    U, H = eg.polar(A)
    assert U.dtype == H.dtype == dtype
    same = {"rtol": torch.finfo(dtype).eps, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(U, polar_u(A.float()), **same)
    torch.testing.assert_close(gradient(polar_u, A, G), gradient(polar_u, A.float(), G.float()), **same)


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


# -------------------------------------------------------------------------------------------------------- procrustes


@real_and_complex
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["rotation", "reflection"])
def test_procrustes_recovers_a_rotation_or_reflection(sign, dtype):
    Q = rotation(3, dtype)
    if not dtype.is_complex and torch.linalg.det(Q) * sign < 0:
        Q = Q * torch.tensor([1.0, 1.0, -1.0], dtype=F64)
    A = randn(10, 3, dtype=dtype, seed=1)
    torch.testing.assert_close(eg.procrustes(A, A @ Q), Q, rtol=0, atol=1e-12)


def test_procrustes_minimises_the_distance():
    A, B = randn(8, 3), randn(8, 3, seed=1)
    best = torch.linalg.matrix_norm(A @ eg.procrustes(A, B) - B)
    others = torch.stack([rotation(3, seed=s) for s in range(300)])
    assert (torch.linalg.matrix_norm(A @ others - B) >= best - 1e-12).all()


@real_and_complex
def test_the_derivatives_of_procrustes_are_exact_in_both_arguments(dtype):
    A, B = randn(5, 3, dtype=dtype).requires_grad_(), randn(5, 3, dtype=dtype, seed=1).requires_grad_()
    assert gradcheck(eg.procrustes, (A, B), check_forward_ad=True, atol=1e-6, rtol=1e-6)
    if not dtype.is_complex:
        assert gradgradcheck(eg.procrustes, (A, B), atol=1e-5, rtol=1e-5)


def test_the_gradient_of_procrustes_is_finite_and_exact_when_the_points_match_already():
    # Orthonormal A = B: every singular value of AᴴB is one.
    A = rotation(3).requires_grad_()
    B = A.detach().clone().requires_grad_()
    assert gradcheck(eg.procrustes, (A, B), atol=1e-6, rtol=1e-6)


def test_special_procrustes_is_the_best_rotation_where_the_best_orthogonal_matrix_reflects():
    A = randn(8, 3)
    B = A * torch.tensor([1.0, 1.0, -1.0], dtype=F64) + 0.1 * randn(8, 3, seed=1)
    Q = eg.procrustes(A, B, special=True)
    assert torch.linalg.det(eg.procrustes(A, B)) < 0
    assert torch.linalg.det(Q).item() == pytest.approx(1.0, abs=1e-13)
    best = torch.linalg.matrix_norm(A @ Q - B)
    others = torch.stack([with_determinant_sign(rotation(3, seed=s), 1) for s in range(300)])
    assert (torch.linalg.matrix_norm(A @ others - B) >= best - 1e-12).all()


@pytest.mark.parametrize("sign", [1, -1], ids=["det > 0", "det < 0"])
def test_the_derivatives_of_special_procrustes_are_exact_in_both_arguments(sign):
    A, B = randn(5, 3), randn(5, 3, seed=1)
    if torch.linalg.det(A.mT @ B) * sign < 0:
        B = -B
    points = (A.requires_grad_(), B.detach().requires_grad_())

    def call(A, B):
        return eg.procrustes(A, B, special=True)

    assert gradcheck(call, points, check_forward_ad=True, atol=1e-6, rtol=1e-6)
    assert gradgradcheck(call, points, atol=1e-5, rtol=1e-5)


def test_procrustes_broadcasts_batches():
    A, B = randn(2, 1, 6, 3), randn(4, 6, 3, seed=1)
    Q = eg.procrustes(A, B)
    assert Q.shape == (2, 4, 3, 3)
    torch.testing.assert_close(Q[1, 2], eg.procrustes(A[1, 0], B[2]))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_procrustes_does_not_depend_on_the_unit_of_length(scale, dtype):
    Q, A = rotation(3, dtype), randn(10, 3, dtype=dtype, seed=1)
    B = A @ Q
    assert relative_error(eg.procrustes(A * scale, B * scale), Q) < 100 * torch.finfo(dtype).eps


def test_autocast_changes_neither_procrustes_nor_its_gradient():
    A, B, G = randn(6, 3, dtype=F32), randn(6, 3, dtype=F32, seed=1), randn(3, 3, dtype=F32)

    def call(X):
        return eg.procrustes(X, B)

    value, g = call(A), gradient(call, A, G)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relative_error(call(A), value) < 1e-6
        assert relative_error(gradient(call, A, G), g) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_procrustes_returns_half_precision_for_half_precision(dtype):
    A, B = randn(6, 3, dtype=dtype), randn(6, 3, dtype=dtype, seed=1)
    Q = eg.procrustes(A, B)
    assert Q.dtype == dtype
    expected = eg.procrustes(A.float(), B.float())
    torch.testing.assert_close(Q, expected, rtol=torch.finfo(dtype).eps, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize(
    ("B", "kind", "message"),
    [
        (torch.ones(4, 3), ValueError, r"\(5, 3\).*\(4, 3\)"),
        (torch.ones(5, 2), ValueError, r"\(5, 3\).*\(5, 2\)"),
        ([1.0], TypeError, "B must be a torch.Tensor; got list"),
        (torch.ones(5, 3, dtype=torch.int64), TypeError, "B must be.*torch.int64"),
        (torch.ones(5, 3, dtype=F64), TypeError, "float32.*float64"),
    ],
    ids=["rows", "columns", "list", "integer", "another type"],
)
def test_procrustes_refuses_a_second_argument_that_does_not_fit_by_name(B, kind, message):
    with pytest.raises(kind, match=f"^procrustes: .*{message}"):
        eg.procrustes(torch.ones(5, 3), B)


def test_h_is_hermitian_in_single_precision_too():
    H = polar_h(randn(6, 4, dtype=torch.complex64))
    assert torch.equal(H, hermitian(H))
