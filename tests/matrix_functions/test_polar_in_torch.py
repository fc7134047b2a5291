"""The polar decomposition in torch: vmap, grad, jvp, compile, autocast, half precision."""

from __future__ import annotations

import pytest
import torch

import eigengrad as eg
from functions_matrix import gradient, randn, relative_error
from polar_cases import (
    F32,
    ROTATIONS,
    SMOOTH,
    polar_h,
    polar_u,
    rotation_u,
    second,
    seeded,  # noqa: F401 - used by every test
)


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
