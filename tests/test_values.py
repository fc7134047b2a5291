"""Eigenvalues and singular values alone: the gradient of torch, and second derivatives that are finite at ties."""

from __future__ import annotations

import pytest
import torch

from eigengrad import GradientWarning, matrix_power
from eigengrad.values import eigvalsh, svdvals
from functions_matrix import gradient, matrix, randn, relative_error
from singular_values import SHAPES, with_singular_values

F32, F64, C128 = torch.float32, torch.float64, torch.complex128


@pytest.mark.parametrize("dtype", [F64, F32, C128], ids=str)
@pytest.mark.parametrize("eigenvalues", [(-1.0, 0.5, 2.0), (1.0, 1.0, 2.0), (0.0, 0.0, 0.0)], ids=str)
def test_eigenvalues_and_their_gradient_are_those_of_torch(eigenvalues, dtype):
    A, g = matrix(eigenvalues, dtype), randn(3, dtype=dtype.to_real())
    torch.testing.assert_close(eigvalsh(A), torch.linalg.eigvalsh(A), rtol=0, atol=1e-5 if dtype == F32 else 1e-14)
    g[:] = g[0]  # the sum, whose gradient is determined at ties too
    expected = gradient(torch.linalg.eigvalsh, A, g)
    assert relative_error(gradient(eigvalsh, A, g), expected) < (1e-5 if dtype == F32 else 1e-13)


@pytest.mark.parametrize("dtype", [F64, F32, C128], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sigma", [(2.0, 1.0, 0.5), (2.0, 1.0, 1.0)], ids=str)
def test_singular_values_and_their_gradient_are_those_of_torch(sigma, shape, dtype):
    A = with_singular_values(sigma, shape, dtype)
    torch.testing.assert_close(svdvals(A), torch.linalg.svdvals(A), rtol=0, atol=1e-5 if dtype == F32 else 1e-14)
    g = torch.ones(3, dtype=dtype.to_real())
    expected = gradient(torch.linalg.svdvals, A, g)
    assert relative_error(gradient(svdvals, A, g), expected) < (1e-5 if dtype == F32 else 1e-13)


@pytest.mark.parametrize("triangle", ["L", "U"])
def test_one_triangle_is_read(triangle):
    A = matrix([1.0, 2.0, 3.0])
    half = A.tril() if triangle == "L" else A.triu()
    torch.testing.assert_close(eigvalsh(half, triangle), torch.tensor([1.0, 2.0, 3.0], dtype=F64))
    torch.testing.assert_close(eigvalsh(half, UPLO=triangle), torch.linalg.eigvalsh(half, triangle))


@pytest.mark.parametrize("call", [eigvalsh, svdvals])
@pytest.mark.parametrize("A", [torch.eye(3), torch.zeros(3, 3), torch.diag(torch.tensor([1.0, 1.0, 2.0]))], ids=str)
def test_second_derivatives_at_ties_are_finite_where_those_of_torch_are_not(call, A):
    def second(call):
        X = A.double().requires_grad_()
        (g,) = torch.autograd.grad(call(X).square().sum(), X, create_graph=True)
        return torch.autograd.grad((g * randn(3, 3)).sum(), X)[0]

    assert torch.isfinite(second(call)).all()
    assert not torch.isfinite(second(getattr(torch.linalg, call.__name__))).all()


@pytest.mark.parametrize("call", [eigvalsh, svdvals])
def test_a_driver_is_passed_on(call):
    with pytest.raises(ValueError, match=r"driver.*'lapak'"):
        call(torch.eye(2), driver="lapak")


@pytest.mark.parametrize("values", [eigvalsh, svdvals])
def test_what_second_derivatives_lack_at_a_tie_is_warned_of_and_the_trace_of_a_function_has_it(values):
    """Σ λ³ at λ = 1, 1, 2: between the vectors of the pair, 6λ cannot be told from gradients by λ."""
    A, D = matrix((1.0, 1.0, 2.0), F64), matrix((-1.0, 0.5, 3.0), F64, seed=1)

    def product(loss):
        X = A.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(X), X, create_graph=True)
        return torch.autograd.grad((g * D).sum(), X)[0]

    expected = 3 * (A @ D + D @ A)
    with pytest.warns(GradientWarning, match="equal values and their vectors"):
        found = product(lambda A: (values(A) ** 3).sum())
    assert relative_error(found, expected) > 1e-2
    found = product(lambda A: matrix_power(A, 3).diagonal().sum())
    assert relative_error(found, expected) < 1e-12
