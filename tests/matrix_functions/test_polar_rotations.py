"""The nearest rotation, ``polar(A, special=True)``: values, exact derivatives, what is not determined."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from functions_matrix import gradient, randn, relative_error, rotation
from polar_cases import (
    F32,
    F64,
    ROTATIONS,
    check_third_derivative,
    rotation_h,
    rotation_u,
    second,
    seeded,  # noqa: F401 - used by every test
    signed,
    with_determinant_sign,
)

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
