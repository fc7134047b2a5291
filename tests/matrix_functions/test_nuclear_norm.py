"""The nuclear norm: its gradient against mpmath, and the subgradient at rank deficiency."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from eigengrad.matrix_functions import nuclear_norm
from functions_matrix import gradient, randn, relative_error, rotation
from singular_values import SHAPES, with_singular_values

F32, F64, C128 = torch.float32, torch.float64, torch.complex128


def mp_norm(A: mpmath.matrix) -> mpmath.matrix:
    gram = A.T * A if A.rows >= A.cols else A * A.T
    return mpmath.matrix([[sum(mpmath.sqrt(x) for x in mpmath.eigsy(gram, eigvals_only=True))]])


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("gap", [0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_is_that_of_mpmath(shape, gap, dtype):
    A = with_singular_values((1.0 + gap, 1.0, 0.5), shape, dtype)
    one = torch.ones(1, 1, dtype=dtype)
    with mpmath.workdps(80):
        h = mpmath.mpf(10) ** -20
        M = mpmath.matrix(A.double().tolist())
        expected = torch.zeros(shape, dtype=F64)
        for i in range(shape[0]):
            for j in range(shape[1]):
                E = mpmath.zeros(*shape)
                E[i, j] = h
                expected[i, j] = float((mp_norm(M + E) - mp_norm(M - E))[0, 0] / (2 * h))
    got = gradient(lambda X: nuclear_norm(X)[None, None], A, one)
    assert relative_error(got, expected) < {F64: 1e-13, F32: 1e-5}[dtype]


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_and_gradient_are_those_of_torch_away_from_ties(shape, dtype):
    A = randn(2, *shape, dtype=dtype)

    def of_torch(X):
        return torch.linalg.matrix_norm(X, "nuc")

    torch.testing.assert_close(nuclear_norm(A), of_torch(A))
    g = randn(2)
    torch.testing.assert_close(gradient(nuclear_norm, A, g), gradient(of_torch, A, g))


@pytest.mark.parametrize("dtype", [F64, F32, C128], ids=str)
@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_at_rank_deficiency_it_is_the_subgradient_of_least_norm(shape, rank, dtype):
    wide = C128 if dtype.is_complex else F64
    m, n = shape
    U, V = rotation(m, wide, 1)[:, :rank], rotation(n, wide, 2)[:, :rank]
    A = (U @ V.mH).to(dtype) * 2
    got = gradient(nuclear_norm, A, torch.ones((), dtype=dtype.to_real()))
    torch.testing.assert_close(got, (U @ V.mH).to(dtype), rtol=0, atol=20 * torch.finfo(dtype).eps)
    X = A.clone().requires_grad_()
    (g,) = torch.autograd.grad(nuclear_norm(X), X, create_graph=True)
    torch.testing.assert_close(g.detach(), got, rtol=0, atol=20 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sigma", [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0)], ids=str)
def test_derivatives_at_ties_are_exact(sigma, shape, dtype):
    A = with_singular_values(sigma, shape, dtype).requires_grad_()
    assert gradcheck(nuclear_norm, A, check_forward_ad=True)
    assert gradgradcheck(nuclear_norm, A, check_fwd_over_rev=True)


def test_third_derivatives_exist():
    A, E = with_singular_values((1.0, 1.0, 1.0), (3, 3)), randn(3, 3)
    t = torch.zeros((), dtype=F64, requires_grad=True)

    def second(at):
        value = nuclear_norm(A + at * E)
        for _ in range(2):
            (value,) = torch.autograd.grad(value, at, create_graph=True)
        return value

    (third,) = torch.autograd.grad(second(t), t)
    h = 1e-4
    high, low = (second(torch.tensor(s * h, dtype=F64, requires_grad=True)) for s in (1, -1))
    assert third.item() == pytest.approx(((high - low) / (2 * h)).item(), rel=1e-5)


def test_a_plain_backward_pass_decomposes_once(monkeypatch):
    from eigengrad.matrix_functions import nuclear_norm as function

    monkeypatch.setitem(function.__globals__, "polar", None)
    A = randn(4, 3).requires_grad_()
    nuclear_norm(A).backward()
    assert A.grad is not None
