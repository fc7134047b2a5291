"""Whole powers of matrices with eigenvalues of both signs: values, divided differences against mpmath, derivatives."""

from __future__ import annotations

import itertools

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad.matrix_functions.power import WholePower
from functions_matrix import INDEFINITE, SIGNED, gradient, hermitian, ids, matrix, randn, relative_error

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
EXPONENTS = [-1000, -7, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 10, 101, 1000]
GAPS = [0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.3]
SIZES = [0.7, 1.0, 1.1]


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(120):
        yield


def signed(name: str, dtype: torch.dtype = F64) -> torch.Tensor:
    eigenvalues, rotate = SIGNED[name]
    return matrix(eigenvalues, dtype, rotate=rotate)


def first_exact(p, x, y):
    x, y = mpmath.mpf(x), mpmath.mpf(y)
    if x == y:
        return p * x ** (p - 1) if p else mpmath.mpf(0)
    return (x**p - y**p) / (x - y)


def second_exact(p, x, y, z):
    x, y, z = sorted(mpmath.mpf(v) for v in (x, y, z))
    if x == z:
        return p * (p - 1) * x ** (p - 2) / 2 if p not in (0, 1) else mpmath.mpf(0)
    return (first_exact(p, y, z) - first_exact(p, x, y)) / (z - x)


def points(dtype):
    """Pairs of every combination of signs, at every gap between their absolute values."""
    pairs = [(s * a, t * a * (1 + g)) for a in SIZES for g in GAPS for s in (-1, 1) for t in (-1, 1)]
    return torch.tensor(pairs, dtype=F64).to(dtype).tolist()


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("p", EXPONENTS)
def test_first_is_accurate_for_points_of_every_sign(p, dtype):
    pairs = points(dtype)
    x, y = (torch.tensor(side, dtype=dtype) for side in zip(*pairs, strict=True))
    eps, info = torch.finfo(dtype).eps, torch.finfo(dtype)
    compared = 0
    for value, (a, b) in zip(WholePower(float(p)).first(x, y).tolist(), pairs, strict=True):
        true = first_exact(p, a, b)
        if true == 0:
            assert value == 0
        elif info.tiny * 4 < abs(true) < info.max / 4:
            compared += 1
            # |p| eps is what the round-off of a point is worth.
            assert abs(value - true) <= (32 + abs(p)) * eps * abs(true), (a, b)
    assert compared >= 12 or p == 0 or dtype == F32


@pytest.mark.parametrize("p", [-3, -2, -1, 2, 3, 4, 5, 10])
def test_second_is_accurate_relative_to_its_size_for_points_of_every_sign(p):
    triples = [(x, y, z) for x, y in points(F64) for z in (-1.0, -0.7, 0.7, 1.3)]
    x, y, z = (torch.tensor(side, dtype=F64) for side in zip(*triples, strict=True))
    got = WholePower(float(p)).second(x, y, z).tolist()
    for value, triple in zip(got, triples, strict=True):
        size = max(abs(v) if p > 0 else 1 / abs(v) for v in triple) ** abs(p - 2 if p > 0 else p) * abs(p * (p - 1))
        assert abs(value - second_exact(p, *triple)) <= 2e-10 * size, triple


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("name", SIGNED)
@pytest.mark.parametrize("p", [-3, -2, -1, 0, 1, 2, 3, 6])
def test_value_and_gradient_are_those_of_torch(p, name, dtype):
    A, G = signed(name, dtype), hermitian(randn(4, 4, dtype=dtype))

    def product(X):
        return torch.linalg.matrix_power(X, p)

    torch.testing.assert_close(eg.matrix_power(A, p), product(A), rtol=1e-12, atol=1e-12)
    if p == 0:
        assert not gradient(lambda X: eg.matrix_power(X, p), A, G).any()
    else:
        got, expected = gradient(lambda X: eg.matrix_power(X, p), A, G), gradient(product, A, G)
        assert relative_error(got, expected) < 1e-12


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SIGNED)
@pytest.mark.parametrize("entry", INDEFINITE, ids=ids(INDEFINITE))
def test_derivatives_are_exact_for_both_signs(entry, name):
    A = signed(name).requires_grad_()

    def call(X):
        return entry.call(hermitian(X))

    assert gradcheck(call, A, check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-6)
    assert gradgradcheck(call, A, check_fwd_over_rev=True, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("p", [1000, 999])
def test_a_large_power_of_a_reflection_has_the_gradient_of_its_powers(p, dtype):
    # A² = I: the derivative of A^p is Σ A^i E A^(p−1−i), half of the terms E (or A E A) each.
    A = matrix([-1.0, -1.0, 1.0, 1.0], dtype, rotate=False)
    E = hermitian(randn(4, 4, dtype=dtype))
    signs = A.diagonal()
    expected = E * torch.where(signs[:, None] == signs, p * signs[:, None] ** (p - 1), float(p % 2))
    got = gradient(lambda X: eg.matrix_power(X, p), A, E)
    assert relative_error(got, expected) < {F64: 1e-12, F32: 1e-5}[dtype]


@pytest.mark.parametrize("scale", [1e-9, 1e9])
@pytest.mark.parametrize("p", [-3, 2, 3])
def test_scales_do_not_matter(p, scale):
    A, G = matrix([-1.0, -1.0, 0.5, 1.0], F32), hermitian(randn(4, 4, dtype=F32))
    reference = gradient(lambda X: eg.matrix_power(X, p), A.double(), G.double())
    got = gradient(lambda X: eg.matrix_power(X, p), A * scale, G)
    assert relative_error(got.double() / scale ** (p - 1), reference) < 1e-5


@pytest.mark.parametrize("eigenvalues", [(-1.0, 0.0, 1.0), (0.0, 1.0, 2.0), (-1.0, 1e-18, 1.0)], ids=str)
@pytest.mark.parametrize("p", [-1, -2, -3.0])
def test_a_negative_power_of_a_singular_matrix_is_refused_by_batch_element(p, eigenvalues):
    A = torch.stack([matrix([-1.0, 1.0, 2.0]), matrix(eigenvalues, rotate=False)])
    with pytest.raises(
        eg.DomainError, match=r"^matrix_power: batch element 1\b.*eigenvalue (0|1e-18); expected a non-zero"
    ):
        eg.matrix_power(A, p)
    with pytest.raises(eg.DomainError, match="non-zero"):
        torch.func.vmap(lambda X: eg.matrix_power(X, p))(A)


def test_a_small_positive_eigenvalue_of_a_positive_matrix_is_not_refused():
    A = torch.diag(torch.tensor([1e-20, 1.0], dtype=F64))
    assert eg.matrix_power(A, -1)[0, 0].item() == pytest.approx(1e20)


def test_a_negative_eigenvalue_is_still_refused_where_the_power_is_not_whole():
    with pytest.raises(eg.DomainError, match=r"-1\b"):
        eg.matrix_power(torch.diag(torch.tensor([-1.0, 1.0])), 1.5)


@pytest.mark.parametrize("p", [2, 3, -1])
def test_compiled_it_is_the_same_for_both_signs(p):
    torch._dynamo.reset()
    A, G = signed("opposite to round-off"), randn(4, 4)

    def call(X):
        return eg.matrix_power(X, p)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradient(compiled, A, G), gradient(call, A, G), rtol=1e-12, atol=1e-12)


def test_first_is_symmetric():
    f = WholePower(5.0)
    values = torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0], dtype=F64)
    for x, y in itertools.product(values, values):
        assert f.first(x, y).item() == pytest.approx(f.first(y, x).item(), rel=1e-15)
