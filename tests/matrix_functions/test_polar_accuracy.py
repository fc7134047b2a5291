"""The derivatives of the polar factors and rotations against mpmath: at every gap, at ties, of graded matrices."""

from __future__ import annotations

import pytest
import torch

import eigengrad as eg
from functions_matrix import gradient, randn, relative_error
from mp_rotations import as_matrix, exact_gradient, exact_second_derivative, inner, polar_factor
from polar_cases import (
    C128,
    F32,
    F64,
    rotation_u,
    second,
    seeded,  # noqa: F401 - used by every test
    with_determinant_sign,
    with_singular_values,
)


def exact_value(A, G, special=False):
    """Re⟨G, U⟩ as a function of the entries of A, in mpmath."""
    return lambda entries: inner(G, polar_factor(as_matrix(entries, A), special))


def exact_derivatives(A, G, E, special=False):
    value = exact_value(A, G, special)
    return exact_gradient(value, A), exact_second_derivative(value, A, E)


#: Singular values of 3 × 3 matrices with a gap, of a pair that the derivative does not divide by the difference of.
GAPS = [0.0, *(10.0**k for k in range(-15, 1, 3))]
factors = pytest.mark.parametrize("special", [False, True], ids=["orthogonal", "rotation"])


@pytest.mark.sample(2)
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
