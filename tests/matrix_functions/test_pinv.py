"""The pseudo-inverse: that of torch is exact at ties and rank deficiency, and ours is that of torch."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from eigengrad.matrix_functions import pinv
from functions_matrix import gradient, hermitian, matrix, randn, relative_error, rotation
from singular_values import SHAPES, with_singular_values

F32, F64, C128 = torch.float32, torch.float64, torch.complex128


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sigma", [(2.0, 1.0, 0.5), (1.0, 1.0, 1.0), (2.0, 1.0, 1.0)], ids=str)
def test_value_and_gradient_are_those_of_torch(sigma, shape, dtype):
    A = with_singular_values(sigma, shape, dtype)
    G = randn(*shape[::-1], dtype=dtype)
    torch.testing.assert_close(pinv(A), torch.linalg.pinv(A))
    torch.testing.assert_close(gradient(pinv, A, G), gradient(torch.linalg.pinv, A, G))


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sigma", [(1.0,), (1.0, 1.0), (2.0, 1.0), (1.0, 1.0, 1.0)], ids=str)
def test_derivatives_along_matrices_of_one_rank_are_exact(sigma, shape, dtype):
    m, n = shape
    X = (rotation(m, dtype, 1)[:, : len(sigma)] * torch.tensor(sigma)).requires_grad_()
    Y = rotation(n, dtype, 2)[: len(sigma)].clone().requires_grad_()

    def call(X, Y):
        return pinv(X @ Y, rtol=1e-6)

    assert gradcheck(call, (X, Y), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(call, (X, Y))


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("eigenvalues", [(1.0, 1.0, 2.0), (-1.0, 1.0, 2.0), (1.0, 1.0), (-1.0, 1.0), (2.0,)], ids=str)
def test_derivatives_of_hermitian_matrices_are_exact(eigenvalues, dtype):
    X = rotation(3, dtype, 1)[:, : len(eigenvalues)].clone().requires_grad_()
    L = torch.tensor(eigenvalues, dtype=F64).to(dtype)

    def call(X):
        return pinv(hermitian((X * L) @ X.mH), rtol=1e-6, hermitian=True)

    assert gradcheck(call, X, check_forward_ad=True)
    assert gradgradcheck(call, X)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-9, 1e-3])
def test_the_gradient_at_full_rank_is_that_of_mpmath(gap, dtype):
    A, G = with_singular_values((1.0 + gap, 1.0, 0.5), (5, 3), dtype), randn(3, 5, dtype=dtype)
    with mpmath.workdps(60):
        M, W, h = mpmath.matrix(A.double().tolist()), mpmath.matrix(G.double().tolist()), mpmath.mpf(10) ** -20
        expected = torch.zeros(5, 3, dtype=F64)
        for i in range(5):
            for j in range(3):
                E = mpmath.zeros(5, 3)
                E[i, j] = h
                high, low = ((X.T * X) ** -1 * X.T for X in (M + E, M - E))
                D = high - low
                expected[i, j] = float(sum(W[a, b] * D[a, b] for a in range(3) for b in range(5)) / (2 * h))
    assert relative_error(gradient(pinv, A, G), expected) < {F64: 1e-13, F32: 1e-5}[dtype]


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
@pytest.mark.parametrize(
    "tolerances", [{}, {"rtol": 0.2}, {"atol": 0.3}, {"atol": 0.3, "rtol": 0.01}, {"atol": 0.0}], ids=str
)
def test_tolerances_are_those_of_torch_at_every_scale(tolerances, scale):
    A = with_singular_values((2.0, 0.35, 0.25), (5, 3)) * scale
    tolerances = {k: v * scale if k == "atol" else v for k, v in tolerances.items()}
    got, expected = pinv(A, **tolerances), torch.linalg.pinv(A, **tolerances)
    assert relative_error(got * scale, expected * scale) < 1e-12


def test_the_zero_matrix_is_its_own():
    A = torch.zeros(2, 3, dtype=F64, requires_grad=True)
    assert torch.equal(pinv(A), torch.zeros(3, 2, dtype=F64))


@pytest.mark.parametrize("argument", ["atol", "rtol"])
def test_a_bad_tolerance_is_refused(argument):
    with pytest.raises(ValueError, match=f"^pinv: {argument} must not be negative; got -1"):
        pinv(torch.eye(2), **{argument: -1})
    with pytest.raises(TypeError, match=f"^pinv: {argument} must be a number; got 'a'"):
        pinv(torch.eye(2), **{argument: "a"})


def test_hermitian_gives_the_same():
    A = matrix([-1.0, 1.0, 1.0])
    torch.testing.assert_close(pinv(A, hermitian=True), pinv(A))
