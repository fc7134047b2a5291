"""Newton–Schulz square roots: convergence, a backward pass that is each matrix's own, scales and errors."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from functions_matrix import gradient, hermitian, matrix, randn, relative_error

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
PAIRS = {
    "sqrt": (eg.newton_schulz_sqrt, eg.matrix_sqrt, 0.5),
    "inv_sqrt": (eg.newton_schulz_inv_sqrt, eg.matrix_inv_sqrt, -0.5),
}
both = pytest.mark.parametrize("kind", PAIRS)
each_norm = pytest.mark.parametrize("normalize", ["trace", "frobenius"])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@each_norm
@both
def test_it_converges_to_the_exact_root_with_its_gradient(kind, normalize, dtype):
    newton, exact, _ = PAIRS[kind]
    A, G = matrix([0.4, 0.7, 1.0, 1.0], dtype), hermitian(randn(4, 4, dtype=dtype))

    def call(X):
        return newton(X, 20, normalize=normalize)

    assert relative_error(call(A), exact(A)) < 1e-12
    # The iteration knows no symmetry, so its gradient is compared as a function of Hermitian matrices.
    assert relative_error(hermitian(gradient(call, A, G)), gradient(exact, A, G)) < 1e-10


@each_norm
@both
def test_every_step_is_the_textbook_iteration(kind, normalize):
    newton, _, _ = PAIRS[kind]
    A = matrix([0.2, 0.9, 2.0])
    c = {"trace": 0.2 + 0.9 + 2.0, "frobenius": (0.2**2 + 0.9**2 + 2.0**2) ** 0.5}[normalize]
    # On each eigenvalue the coupled iteration is scalar: y ← y (3 − z y)/2, z ← z (3 − z y)/2.
    y, z = torch.tensor([0.2, 0.9, 2.0], dtype=F64) / c, torch.ones(3, dtype=F64)
    for steps in range(1, 6):
        t = (3 - z * y) / 2
        y, z = y * t, z * t
        expected = y * c**0.5 if kind == "sqrt" else z / c**0.5
        got = torch.linalg.eigvalsh(newton(A, steps, normalize=normalize))
        torch.testing.assert_close(got, expected.sort().values, rtol=1e-12, atol=1e-12)


@both
def test_the_default_is_five_steps_normalised_by_the_trace(kind):
    newton, A = PAIRS[kind][0], matrix([0.2, 0.9, 2.0])
    torch.testing.assert_close(newton(A), newton(A, 5, normalize="trace", eps=0.0), rtol=1e-14, atol=1e-14)


def test_five_steps_leave_an_error_at_a_condition_number_of_a_thousand_that_the_exact_root_does_not():
    A = matrix([1e-3, 0.5, 1.0])
    root = matrix([1e-3**0.5, 0.5**0.5, 1.0])
    assert relative_error(eg.newton_schulz_sqrt(A), root) > 1e-3
    assert relative_error(eg.matrix_sqrt(A), root) < 1e-13


@each_norm
@both
def test_derivatives_are_those_of_the_iteration(kind, normalize):
    newton, A = PAIRS[kind][0], torch.stack([matrix([0.5, 1.0, 1.0]), 3 * matrix([0.3, 1.0, 2.0], seed=1)])
    A.requires_grad_()

    def call(X):
        return newton(X, 3, normalize=normalize)

    assert gradcheck(call, A, check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-6)
    assert gradgradcheck(call, A[:1].detach().requires_grad_(), check_fwd_over_rev=True, atol=1e-5, rtol=1e-5)


@each_norm
@both
def test_derivatives_are_right_for_complex_matrices(kind, normalize):
    A = matrix([0.5, 1.0, 2.0], C128).requires_grad_()
    assert gradcheck(lambda X: PAIRS[kind][0](X, 3, normalize=normalize), A, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("neighbour", [1e20, 1e-20, 1.0], ids=str)
@each_norm
@both
def test_a_matrix_does_not_notice_its_neighbours(kind, normalize, neighbour):
    # A published backward pass divides by the norm of the whole batch.
    newton, A, G = PAIRS[kind][0], matrix([0.5, 1.0, 2.0]), randn(3, 3)

    def call(X):
        return newton(X, 5, normalize=normalize)

    pair = torch.stack([neighbour * matrix([0.1, 0.1, 1.0], seed=1), A])
    assert relative_error(call(pair)[1], call(A)) < 1e-15
    assert relative_error(gradient(call, pair, torch.stack([G, G]))[1], gradient(call, A, G)) < 1e-14


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
@each_norm
@both
def test_the_scale_of_the_matrix_does_not_matter(kind, normalize, scale, dtype):
    newton, _, power = PAIRS[kind]
    A, G = matrix([0.5, 1.0, 1.0, 2.0], dtype), randn(4, 4, dtype=dtype)

    def call(X):
        return newton(X, 5, normalize=normalize)

    tolerance = 64 * torch.finfo(dtype).eps
    assert relative_error(call(A * scale).double() / scale**power, call(A.double())) < tolerance
    factor = scale ** (power - 1)
    if factor < torch.finfo(dtype).max / 100 and factor > torch.finfo(dtype).tiny * 100:
        got = gradient(call, A * scale, G).double() / factor
        assert relative_error(got, gradient(call, A.double(), G.double())) < tolerance


@both
def test_eps_is_added_to_the_diagonal(kind):
    newton, A = PAIRS[kind][0], matrix([0.0, 0.0, 1.0])
    torch.testing.assert_close(newton(A, eps=0.25), newton(A + 0.25 * torch.eye(3, dtype=F64)))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("spectrum", [(0.0, 0.0, 0.0), (0.0, 0.0, 1.0), (1.0, 1.0, 1.0)], ids=str)
@each_norm
def test_with_eps_no_gradient_is_non_finite(spectrum, scale, normalize):
    A = matrix(spectrum, rotate=False) * scale
    for newton, _, _ in PAIRS.values():
        g = gradient(lambda X, f=newton: f(X, normalize=normalize, eps=1e-3 * scale), A, randn(3, 3))
        assert torch.isfinite(g).all()


@each_norm
def test_the_square_root_of_zero_is_zero(normalize):
    zero = torch.zeros(2, 2)
    assert torch.equal(eg.newton_schulz_sqrt(zero, normalize=normalize), zero)


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (1, 1), (2, 2), (2, 1, 3, 2, 2)], ids=str)
@each_norm
@both
def test_every_batch_shape_and_size_works(kind, shape, normalize):
    A = (4 * torch.eye(shape[-1], dtype=F64)).expand(shape)

    def call(X):
        return PAIRS[kind][0](X, 20, normalize=normalize)

    torch.testing.assert_close(call(A), A / 2 if kind == "sqrt" else A / 8)
    assert gradient(call, A, torch.ones_like(A)).shape == shape


@both
def test_vmap_jvp_and_compile_agree_with_eager(kind):
    torch._dynamo.reset()

    def newton(X):
        return PAIRS[kind][0](X, 2)

    A = torch.stack([matrix([0.5, 1.0, 2.0], seed=k) * (k + 1) for k in range(3)])
    E, G = randn(3, 3, 3), randn(3, 3, 3, seed=1)
    value, g = newton(A), gradient(newton, A, G)
    torch.testing.assert_close(torch.func.vmap(newton)(A), value)
    _, dS = torch.func.jvp(newton, (A,), (E,))
    assert (dS * G).sum().item() == pytest.approx((g * E).sum().item(), rel=1e-11)
    compiled = torch.compile(newton, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A), value)
    torch.testing.assert_close(gradient(compiled, A, G), g)


@both
def test_autocast_changes_neither_value_nor_gradient(kind):
    newton, A, G = PAIRS[kind][0], matrix([0.5, 1.0, 2.0], F32), randn(3, 3, dtype=F32)
    value, g = newton(A), gradient(newton, A, G)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relative_error(newton(A), value) < 1e-6
        assert relative_error(gradient(newton, A, G), g) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@both
def test_half_precision_is_computed_in_float32_and_cast_back(kind, dtype):
    newton, A = PAIRS[kind][0], matrix([0.5, 1.0, 2.0], dtype)
    assert newton(A).dtype == dtype
    expected = newton(A.float())
    torch.testing.assert_close(newton(A), expected, rtol=torch.finfo(dtype).eps, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (([[1.0]],), TypeError, "A must be a torch.Tensor; got list"),
        ((torch.ones(2, 3),), ValueError, r"square.*\(2, 3\)"),
        ((torch.eye(2, dtype=torch.int64),), TypeError, "torch.int64"),
        ((torch.eye(2), 0), ValueError, "steps must be at least 1; got 0"),
        ((torch.eye(2), 2.0), TypeError, r"steps must be an integer; got 2\.0"),
        ((torch.eye(2), True), TypeError, "steps must be an integer; got True"),
        ((torch.eye(2), 5, {"eps": -1.0}), ValueError, r"eps must not be negative; got -1\.0"),
        ((torch.eye(2), 5, {"eps": "1"}), TypeError, "eps must be a number; got '1'"),
        ((torch.eye(2), 5, {"normalize": "spectral"}), ValueError, "normalize.*'spectral'.*'frobenius', 'trace'"),
    ],
    ids=["list", "rectangular", "integer", "no step", "float steps", "bool steps", "eps < 0", "eps text", "norm"],
)
@pytest.mark.parametrize("function", [eg.newton_schulz_sqrt, eg.newton_schulz_inv_sqrt], ids=["sqrt", "inv_sqrt"])
def test_misuse_names_the_argument_and_what_came(function, arguments, kind, message):
    *positional, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(kind, match=message):
        function(*positional, **options)
