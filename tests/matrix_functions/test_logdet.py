"""The logarithm of the determinant, and that torch's slogdet needs no replacement."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad.matrix_functions import logdet
from functions_matrix import SPECTRA, gradient, hermitian, matrix, randn, relative_error, spectrum

F32, F64, C128 = torch.float32, torch.float64, torch.complex128


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1.0])
def test_value_and_gradient_are_those_of_mpmath(gap, dtype):
    A = matrix([0.5, 1.0, 1.0 + gap], dtype)
    with mpmath.workdps(50):
        M = mpmath.matrix(hermitian(A.double()).tolist())
        value, inverse = float(mpmath.log(mpmath.det(M))), torch.tensor((M**-1).tolist(), dtype=F64)
    assert logdet(A).item() == pytest.approx(value, abs=4 * torch.finfo(dtype).eps)
    got = gradient(logdet, A, torch.ones((), dtype=dtype))
    assert relative_error(got, inverse) < {F64: 1e-13, F32: 1e-5}[dtype]


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_derivatives_are_exact_everywhere(name, eps):
    A = spectrum(name).requires_grad_()

    def call(X):
        return logdet(hermitian(X), eps=eps)

    assert gradcheck(call, A, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(call, A, check_fwd_over_rev=True)


def test_the_third_derivative_is_twice_the_product_of_inverses():
    t = torch.zeros((), dtype=F64, requires_grad=True)
    E = torch.eye(3, dtype=F64)
    value = logdet(2 * torch.eye(3, dtype=F64) + t * E)
    for _ in range(3):
        (value,) = torch.autograd.grad(value, t, create_graph=True)
    assert value.item() == pytest.approx(3 * 2 / 2**3)


def test_eps_is_added_and_the_spectrum_clamped_there():
    A = matrix([-0.5, 0.0, 1.0]).requires_grad_()
    value = logdet(A, eps=0.1)
    assert value.item() == pytest.approx(torch.tensor([0.1, 0.1, 1.1]).log().sum().item(), rel=1e-6)
    value.backward()
    torch.testing.assert_close(torch.linalg.eigvalsh(A.grad), torch.tensor([1 / 1.1, 10.0, 10.0], dtype=F64))


@pytest.mark.parametrize("low", [-0.25, 0.0])
def test_what_is_not_positive_definite_is_refused_by_batch_element(low):
    A = torch.stack([matrix([1.0, 2.0]), matrix([low, 2.0], rotate=False)])
    with pytest.raises(
        eg.DomainError, match=rf"^logdet: batch element 1 of A has eigenvalue {low:g}; expected a positive"
    ):
        logdet(A)
    with pytest.raises(eg.DomainError, match="positive"):
        torch.func.vmap(logdet)(A)


def test_two_negative_eigenvalues_are_refused_although_the_determinant_is_positive():
    with pytest.raises(eg.DomainError):
        logdet(-torch.eye(2))


def test_a_bad_eps_is_refused():
    with pytest.raises(ValueError, match=r"^logdet: eps must not be negative; got -1"):
        logdet(torch.eye(2), eps=-1)


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_slogdet_of_torch_is_exact_at_ties_to_second_order(name, dtype):
    A = spectrum(name, dtype).requires_grad_()

    def call(X):
        return torch.linalg.slogdet(X).logabsdet

    assert gradcheck(call, A, check_forward_ad=True)
    assert gradgradcheck(call, A)
    one = torch.ones((), dtype=F64)
    torch.testing.assert_close(gradient(call, A, one), gradient(logdet, A, one))


def test_the_gradient_scales_with_what_comes_in():
    A, g = torch.stack([matrix([1.0, 2.0, 2.0]), matrix([0.5, 0.5, 3.0])]), randn(2)
    torch.testing.assert_close(gradient(logdet, A, g), g[:, None, None] * torch.linalg.inv(A))
