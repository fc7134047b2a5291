"""MPA and MTP: the approximants themselves, their Lyapunov backward pass, and where they fall short."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad.matrix_functions.lyapunov import lyapunov_by_products
from functions_matrix import gradient, hermitian, matrix, randn, relative_error

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
#: name → (function, exact, power, a degree that is exact to round-off for condition numbers of 10)
FUNCTIONS = {
    "pade_sqrt": (eg.pade_sqrt, eg.matrix_sqrt, 0.5, 40),
    "pade_inv_sqrt": (eg.pade_inv_sqrt, eg.matrix_inv_sqrt, -0.5, 40),
    "taylor_sqrt": (eg.taylor_sqrt, eg.matrix_sqrt, 0.5, 600),
    "taylor_inv_sqrt": (eg.taylor_inv_sqrt, eg.matrix_inv_sqrt, -0.5, 600),
}
every = pytest.mark.parametrize("name", FUNCTIONS)
SPECTRUM = [0.2, 0.7, 1.0, 1.0]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@every
def test_a_high_degree_is_the_exact_root_with_its_gradient_ties_included(name, dtype):
    function, exact, _, degree = FUNCTIONS[name]
    A, G = matrix(SPECTRUM, dtype), hermitian(randn(4, 4, dtype=dtype))
    assert relative_error(function(A, degree), exact(A)) < 1e-13
    assert relative_error(gradient(lambda X: function(X, degree, steps=20), A, G), gradient(exact, A, G)) < 1e-12


@pytest.mark.parametrize("degree", [1, 2, 5])
@pytest.mark.parametrize("inverse", [False, True])
def test_pade_is_the_diagonal_approximant_of_the_series(degree, inverse):
    """Against the approximant that scipy solves for from the coefficients of (1 − z)^(±½)."""
    interpolate = pytest.importorskip("scipy.interpolate")
    power = -0.5 if inverse else 0.5
    coefficients = [1.0]
    for k in range(1, 2 * degree + 1):
        coefficients.append(coefficients[-1] * (k - 1 - power) / k)
    numerator, denominator = interpolate.pade(coefficients, degree)
    eigenvalues = torch.tensor([0.1, 0.6, 2.0], dtype=F64)
    c = eigenvalues.norm()
    z = (1 - eigenvalues / c).numpy()
    function = eg.pade_inv_sqrt if inverse else eg.pade_sqrt
    expected = torch.from_numpy(numerator(z) / denominator(z)) * c**power
    torch.testing.assert_close(function(torch.diag(eigenvalues), degree).diagonal(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("degree", [1, 3, 7])
@pytest.mark.parametrize("inverse", [False, True])
def test_taylor_is_the_series_cut_off(degree, inverse):
    power = -0.5 if inverse else 0.5
    eigenvalues = torch.tensor([0.3, 0.6, 2.0], dtype=F64)
    c = eigenvalues.norm()
    z = 1 - eigenvalues / c
    series, term = torch.ones(3, dtype=F64), torch.ones(3, dtype=F64)
    for k in range(1, degree + 1):
        term = term * z * (k - 1 - power) / k
        series = series + term
    function = eg.taylor_inv_sqrt if inverse else eg.taylor_sqrt
    torch.testing.assert_close(function(torch.diag(eigenvalues), degree).diagonal(), series * c**power)


def test_pade_of_half_the_degree_is_the_more_accurate():
    A = matrix([1e-2, 0.3, 1.0])
    errors = [relative_error(f(A), eg.matrix_sqrt(A)) for f in (eg.pade_sqrt, eg.taylor_sqrt)]
    assert errors[0] < 0.5 * errors[1]


def test_lyapunov_equation_is_solved():
    S, C = matrix([0.1, 0.5, 2.0]), randn(3, 3)
    X = lyapunov_by_products(S, C, 20)
    torch.testing.assert_close(S @ X + X @ S, C, rtol=1e-12, atol=1e-12)
    few = lyapunov_by_products(S, C, 4)
    assert (S @ few + few @ S - C).norm() > 1e-3 * C.norm()  # 1.5^4 has not reached 0.1


@every
def test_derivatives_of_both_orders_and_modes_are_right_where_the_approximant_is(name):
    function, _, _, degree = FUNCTIONS[name]
    A = torch.stack([matrix([0.3, 1.0, 1.0]), 3 * matrix([0.5, 1.0, 2.0], seed=1)]).requires_grad_()

    def call(X):
        return function(hermitian(X), degree, steps=16)

    assert gradcheck(call, A, check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-5)
    assert gradgradcheck(call, A[:1].detach().requires_grad_(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@every
def test_the_scale_of_the_matrix_and_its_neighbours_do_not_matter(name, scale):
    function, _, power, _ = FUNCTIONS[name]
    A = matrix(SPECTRUM, F32)
    pair = torch.stack([A * scale, A])
    expected = function(A.double())
    assert relative_error(function(pair)[0].double() / scale**power, expected) < 1e-5
    assert relative_error(function(pair)[1].double(), expected) < 1e-5
    G = randn(4, 4, dtype=F32)
    both = gradient(function, pair, torch.stack([torch.zeros_like(G), G]))
    assert relative_error(both[1].double(), gradient(function, A.double(), G.double())) < 1e-4


@every
def test_compile_and_vmap_agree_with_eager(name, dynamo):
    function = FUNCTIONS[name][0]
    A, G = torch.stack([matrix([0.3, 1.0]), matrix([0.5, 2.0], seed=1)]), randn(2, 2, 2)
    value, g = function(A, 2, steps=2), gradient(lambda X: function(X, 2, steps=2), A, G)
    compiled = torch.compile(lambda X: function(X, 2, steps=2), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A), value)
    torch.testing.assert_close(gradient(compiled, A, G), g)
    torch.testing.assert_close(torch.func.vmap(lambda X: function(X, 2, steps=2))(A), value)


@every
def test_empty_and_half_precision(name):
    function = FUNCTIONS[name][0]
    assert function(torch.empty(0, 3, 3)).shape == (0, 3, 3)
    assert function(matrix([0.5, 1.0], F32).to(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"degree": 0}, ValueError, "degree must be at least 1; got 0"),
        ({"steps": 0}, ValueError, "steps must be at least 1; got 0"),
        ({"eps": -1.0}, ValueError, "eps must"),
        ({"degree": 2.5}, TypeError, "degree must be an integer; got 2.5"),
    ],
)
@every
def test_bad_arguments_are_named(name, arguments, error, message):
    with pytest.raises(error, match=f"{name}: {message}"):
        FUNCTIONS[name][0](torch.eye(3), **arguments)


def test_what_is_not_finite_is_named():
    A = torch.eye(3).repeat(2, 1, 1)
    A[1, 2, 2] = torch.nan
    with pytest.raises(eg.NonFiniteError, match="pade_sqrt: batch element 1 "):
        eg.pade_sqrt(A)
