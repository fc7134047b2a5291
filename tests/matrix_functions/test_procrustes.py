"""Orthogonal Procrustes: values, exact derivatives, batches."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from functions_matrix import gradient, randn, relative_error, rotation
from polar_cases import (
    F32,
    F64,
    real_and_complex,
    seeded,  # noqa: F401 - used by every test
    with_determinant_sign,
)


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
