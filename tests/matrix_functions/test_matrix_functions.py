"""Matrix functions: values, exact derivatives of every order they promise, transforms, domains and errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad import kernels
from functions_matrix import (
    BY_NAME,
    FUNCTIONS,
    SPECTRA,
    Entry,
    burg,
    gradient,
    hermitian,
    ids,
    matrix,
    randn,
    relative_error,
    rotation,
    spectrum,
)

F32, F64, C128 = torch.float32, torch.float64, torch.complex128
#: One of each kind, for what does not depend on the exponent.
KINDS = [BY_NAME[name] for name in ("sqrt", "inv_sqrt", "power(0.3)", "power(-1)", "log", "exp", "given sin")]
WITH_EPS = [entry for entry in FUNCTIONS if entry.takes_eps]

every_function = pytest.mark.parametrize("entry", FUNCTIONS, ids=ids(FUNCTIONS))
every_kind = pytest.mark.parametrize("entry", KINDS, ids=ids(KINDS))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def symmetrised(entry: Entry, **options):
    """The function of the Hermitian part: what gradcheck may perturb entry by entry."""
    return lambda X: entry.call(hermitian(X), **options)


# ---------------------------------------------------------------------------------------------------------- values


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("name", SPECTRA)
@every_function
def test_value_is_f_of_the_eigenvalues_in_the_eigenbasis(entry, name, dtype):
    eigenvalues, rotate = SPECTRA[name]
    Q = rotation(3, dtype) if rotate else torch.eye(3, dtype=dtype)
    f = torch.tensor([float(entry.exact[0](x)) for x in eigenvalues], dtype=F64)
    expected = (Q * f) @ Q.mH
    torch.testing.assert_close(entry.call(spectrum(name, dtype)), expected, rtol=1e-13, atol=1e-13)


def covariance(n: int = 6, dtype: torch.dtype = F64) -> torch.Tensor:
    X = randn(n, 3 * n, dtype=dtype)
    return hermitian(X @ X.mH) / (3 * n)


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_the_square_of_the_square_root_is_the_matrix(dtype):
    A = covariance(dtype=dtype)
    S = eg.matrix_sqrt(A)
    torch.testing.assert_close(S @ S, A, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_the_inverse_square_root_whitens(dtype):
    A = covariance(dtype=dtype)
    W = eg.matrix_inv_sqrt(A)
    torch.testing.assert_close(W @ A @ W.mH, torch.eye(6, dtype=dtype), rtol=0, atol=1e-12)


def test_whitening_with_eps_leaves_the_share_of_variance_that_eps_does_not_replace():
    A, eps = matrix([0.0, 0.5, 2.0]), 0.1
    W = eg.matrix_inv_sqrt(A, eps=eps)
    expected = torch.tensor([0.0, 0.5 / 0.6, 2.0 / 2.1], dtype=F64)
    torch.testing.assert_close(torch.linalg.eigvalsh(W @ A @ W), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_exponential_agrees_with_torch_in_value_and_gradient(name, dtype):
    A, G = spectrum(name, dtype), hermitian(randn(3, 3, dtype=dtype))
    torch.testing.assert_close(eg.matrix_exp(A), torch.linalg.matrix_exp(A), rtol=1e-12, atol=1e-12)
    expected = gradient(torch.linalg.matrix_exp, A, G)
    torch.testing.assert_close(gradient(eg.matrix_exp, A, G), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", SPECTRA)
def test_logarithm_and_exponential_are_inverse_to_each_other_with_their_gradients(name):
    A, G = spectrum(name), hermitian(randn(3, 3))
    for roundtrip in (lambda X: eg.matrix_log(eg.matrix_exp(X)), lambda X: eg.matrix_exp(eg.matrix_log(X))):
        torch.testing.assert_close(roundtrip(A), A, rtol=0, atol=1e-13)
        torch.testing.assert_close(gradient(roundtrip, A, G), G, rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", [0.3, 0.5, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("name", SPECTRA)
def test_opposite_powers_cancel_with_their_gradients(name, p):
    A, G = spectrum(name), randn(3, 3)

    def product(X):
        return eg.matrix_power(X, p) @ eg.matrix_power(X, -p)

    torch.testing.assert_close(product(A), torch.eye(3, dtype=F64), rtol=0, atol=1e-11)
    torch.testing.assert_close(gradient(product, A, G), torch.zeros(3, 3, dtype=F64), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("p", "named"), [(0.5, eg.matrix_sqrt), (-0.5, eg.matrix_inv_sqrt)], ids=["sqrt", "inv_sqrt"])
@pytest.mark.parametrize("name", SPECTRA)
def test_the_power_of_one_half_is_the_square_root_to_second_order(name, p, named):
    def three(call):
        A = spectrum(name).requires_grad_()
        S = call(A)
        (g,) = torch.autograd.grad(S, A, randn(3, 3), create_graph=True)
        (h,) = torch.autograd.grad(g, A, randn(3, 3, seed=1))
        return S.detach(), g.detach(), h

    for got, expected, tolerance in zip(
        three(lambda A: eg.matrix_power(A, p)), three(named), (1e-13, 1e-12, 1e-8), strict=True
    ):
        assert relative_error(got, expected) < tolerance


@pytest.mark.parametrize(("p", "product"), [(1, lambda A: A), (2, lambda A: A @ A), (3, lambda A: A @ A @ A)])
@pytest.mark.parametrize("eigenvalues", [(0.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 1.0, 1.0)], ids=str)
def test_whole_powers_of_singular_matrices_have_the_gradient_of_the_product(p, product, eigenvalues):
    A, G = matrix(eigenvalues, rotate=False), hermitian(randn(3, 3))
    torch.testing.assert_close(gradient(lambda X: eg.matrix_power(X, p), A, G), gradient(product, A, G))


# ----------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@pytest.mark.parametrize("name", SPECTRA)
@every_function
def test_first_derivatives_are_exact_everywhere(entry, name, dtype):
    A = spectrum(name, dtype).requires_grad_()
    assert gradcheck(symmetrised(entry), A, check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SPECTRA)
@every_function
def test_second_derivatives_are_exact_everywhere(entry, name):
    A = spectrum(name).requires_grad_()
    options = {"check_fwd_over_rev": True, "check_batched_grad": True}
    assert gradgradcheck(symmetrised(entry), A, atol=1e-5, rtol=1e-5, **options)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["generic", "identity", "(1,1,2) to round-off"])
@every_kind
def test_second_derivatives_are_exact_for_complex_matrices(entry, name):
    A = spectrum(name, C128).requires_grad_()
    assert gradgradcheck(symmetrised(entry), A, check_fwd_over_rev=True, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("eps", [1e-1, 1e-2])
@pytest.mark.parametrize("entry", WITH_EPS, ids=ids(WITH_EPS))
def test_derivatives_at_rank_one_with_eps_are_exact_on_the_positive_side(entry, eps):
    # 1e-3 keeps the perturbations of gradcheck on the side of the clamp where λ + eps is what is used.
    A = matrix([1e-3, 1e-3, 1.0]).requires_grad_()
    assert gradcheck(symmetrised(entry, eps=eps), A, check_forward_ad=True, atol=1e-4, rtol=1e-5)
    assert gradgradcheck(symmetrised(entry, eps=eps), A, atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("entry", [e for e in KINDS if e.takes_eps], ids=lambda e: e.name)
def test_a_negative_eigenvalue_counts_as_zero_in_the_gradient_too(entry):
    # λ = −0.7 is clamped to eps like λ = 0; the gradient does not tell the two apart (round-off decides which it is).
    G = hermitian(randn(3, 3))
    at = {low: gradient(lambda X: entry.call(X, eps=0.1), matrix([low, 0.4, 2.0]), G) for low in (-0.7, 0.0)}
    assert relative_error(at[-0.7], at[0.0]) < 1e-12


@pytest.mark.parametrize("entry", [e for e in KINDS if e.takes_eps], ids=lambda e: e.name)
def test_the_default_gradient_and_the_rule_exact_agree_on_separated_spectra_with_eps(entry):
    A, G = matrix([0.1, 0.4, 2.0]), hermitian(randn(3, 3))
    through_eigh = gradient(lambda X: entry.call(X, eps=0.1, gradient=eg.Exact()), A, G)
    assert relative_error(gradient(lambda X: entry.call(X, eps=0.1), A, G), through_eigh) < 1e-12


@every_function
def test_the_gradient_is_hermitian(entry):
    g = gradient(entry.call, spectrum("generic", C128), randn(3, 3, dtype=C128))
    torch.testing.assert_close(g, g.mH, rtol=0, atol=1e-14)


@every_function
def test_unchecked_only_the_lower_triangle_is_read(entry):
    A = spectrum("generic")
    noisy = A + torch.triu(randn(3, 3), 1)
    torch.testing.assert_close(entry.call(noisy, check_finite=False), entry.call(A), rtol=1e-14, atol=1e-14)


def mixed_derivatives(call, A, directions, order):
    """∂…∂ ⟨C, call(A + Σ t_k E_k)⟩ over the first ``order`` parameters, as a function of all of them."""

    def evaluate(*at):
        t = [torch.tensor(v, dtype=F64, requires_grad=True) for v in at]
        S = call(A + sum(x * E for x, E in zip(t, directions, strict=True)))
        value = (S * randn(*S.shape, seed=9)).sum()
        for x in t[:order]:
            (value,) = torch.autograd.grad(value, x, create_graph=True)
        return value.item()

    return evaluate


@pytest.mark.parametrize("name", ["identity", "diag(1,1,2)", "(1,1,2) to round-off", "generic"])
@pytest.mark.parametrize("entry", [e for e in FUNCTIONS if e.every_order], ids=lambda e: e.name)
def test_third_derivatives_of_square_roots_are_exact_at_ties(entry, name):
    A, directions = spectrum(name), [hermitian(randn(3, 3, seed=k)) for k in range(3)]
    third = mixed_derivatives(entry.call, A, directions, 3)(0.0, 0.0, 0.0)
    second, h = mixed_derivatives(entry.call, A, directions, 2), 1e-4
    differences = (second(0.0, 0.0, h) - second(0.0, 0.0, -h)) / (2 * h)
    assert third == pytest.approx(differences, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("entry", [e for e in FUNCTIONS if not e.every_order], ids=lambda e: e.name)
def test_third_derivatives_of_the_others_are_refused(entry):
    A, directions = spectrum("generic"), [hermitian(randn(3, 3, seed=k)) for k in range(3)]
    with pytest.raises(NotImplementedError, match="third derivative"):
        mixed_derivatives(entry.call, A, directions, 3)(0.0, 0.0, 0.0)


def test_the_refusal_of_a_third_derivative_names_the_function_that_was_called():
    A, directions = spectrum("generic"), [hermitian(randn(3, 3, seed=k)) for k in range(3)]
    with pytest.raises(NotImplementedError) as caught:
        mixed_derivatives(BY_NAME["given sin"].call, A, directions, 3)(0.0, 0.0, 0.0)
    assert "object at 0x" not in str(caught.value)


def test_without_d2f_the_first_derivative_works_and_the_second_names_d2f():
    A = spectrum("diag(1,1,2)").requires_grad_()

    def call(X):
        return eg.matrix_function(hermitian(X), torch.sin, torch.cos)

    assert gradcheck(call, A, check_forward_ad=True)
    (g,) = torch.autograd.grad(call(A).sum(), A, create_graph=True)
    with pytest.raises(ValueError, match="d2f"):
        torch.autograd.grad(g.sum(), A)


@pytest.mark.parametrize("condition", [1e4, 1e8])
@pytest.mark.parametrize("entry", [BY_NAME["sqrt"], BY_NAME["inv_sqrt"]], ids=lambda e: e.name)
def test_second_derivatives_keep_their_accuracy_when_ill_conditioned(entry, condition):
    # Diagonal A, so that the answer is the sum over k of f[i,k,j] (E_ik P_kj + P_ik E_kj), entry by entry.
    L = torch.tensor([1.0 / condition, 3.0 / condition, 1.0], dtype=F64)
    E, P = hermitian(randn(3, 3)), hermitian(randn(3, 3, seed=1))
    A = torch.diag(L).requires_grad_()
    (g,) = torch.autograd.grad(entry.call(A), A, E, create_graph=True)
    (got,) = torch.autograd.grad(g, A, P)
    p, q, r = torch.sqrt(L[:, None, None]), torch.sqrt(L[None, :, None]), torch.sqrt(L[None, None, :])
    pairs = (p + q) * (q + r) * (r + p)
    F = -1 / pairs if entry.name == "sqrt" else (p + q + r) / (p * q * r * pairs)
    expected = (F * (E[:, :, None] * P[None] + P[:, :, None] * E[None])).sum(1)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)


# ------------------------------------------------------------------------------------------------- single precision

GAPS = [0.0, *(10.0**k for k in range(-16, 1))]


@pytest.mark.parametrize("gap", GAPS)
@every_function
def test_the_float32_gradient_is_within_1e_5_of_float64_at_every_gap(entry, gap):
    for seed in range(4):
        A, G = matrix([1.0, 1.0 + gap, 2.0], F32, seed=seed), hermitian(randn(3, 3, dtype=F32, seed=seed))
        expected = gradient(entry.call, A.double(), G.double())
        assert relative_error(gradient(entry.call, A, G), expected) < 1e-5


def through_torch(A):
    L, V = torch.linalg.eigh(A)
    return (V * L.sqrt()) @ V.mH


def test_differentiating_through_torch_eigh_loses_the_gradient_at_a_small_gap():
    # The problem this library is for; if torch solves it, this test should tell us.
    errors = []
    for seed in range(16):
        A, G = matrix([1.0, 1.0 + 1e-6, 2.0], F32, seed=seed), hermitian(randn(3, 3, dtype=F32, seed=seed))
        errors.append(relative_error(gradient(through_torch, A, G), gradient(eg.matrix_sqrt, A.double(), G.double())))
    assert torch.tensor(errors).median() > 1e-3
    assert gradient(through_torch, torch.eye(3), hermitian(randn(3, 3, dtype=F32))).isnan().any()


@pytest.mark.parametrize("p", [0, 1])
def test_second_derivatives_of_linear_powers_vanish_at_singular_matrices(p):
    A = torch.diag(torch.tensor([0.0, 0.0, 1.0, 2.0], dtype=F64)).requires_grad_()
    (g,) = torch.autograd.grad((eg.matrix_power(A, p) * randn(4, 4)).sum(), A, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), A)
    assert torch.equal(second, torch.zeros_like(A))


@pytest.mark.parametrize("function", [eg.matrix_sqrt, eg.matrix_inv_sqrt, eg.matrix_log])
def test_compiled_what_is_outside_the_domain_is_nan(function):
    """Where nothing can be raised, a wrong number must not come out."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert compiled(torch.diag(torch.tensor([-1.0, 1.0, 4.0], dtype=F64))).isnan().any()
    round_off = torch.diag(torch.tensor([-1e-17, 1.0, 4.0], dtype=F64))
    if function is eg.matrix_sqrt:
        assert compiled(round_off).isfinite().all()


# ------------------------------------------------------------------------------------------------------ gradient=

SEPARATED = [0.5, 1.0, 3.0]
RULES = {
    "Taylor(9)": (eg.Taylor(degree=9), lambda a, b: 1 - (b / a) ** 10),
    "Taylor(2)": (eg.Taylor(degree=2), lambda a, b: 1 - (b / a) ** 3),
    "Clip(0.6)": (eg.Clip(threshold=0.6), lambda a, b: min(1.0, 0.6 * (a - b))),
    "Exact": (eg.Exact(), lambda a, b: 1.0),
    "Truncate(2)": (eg.Truncate(rank=2), lambda a, b: float(b > 0.5)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
@every_function
def test_a_rule_multiplies_the_divided_differences_by_the_share_it_keeps(entry, rule, dtype):
    A, G = matrix(SEPARATED, dtype, rotate=False), hermitian(randn(3, 3, dtype=dtype))
    L = torch.tensor(SEPARATED, dtype=F64)
    share = torch.eye(3, dtype=F64)
    for i in range(3):
        for j in range(i):
            share[i, j] = share[j, i] = RULES[rule][1](SEPARATED[i], SEPARATED[j])
    expected = share * entry.scalar.first(L[:, None], L[None, :]) * G
    got = gradient(lambda X: entry.call(X, gradient=RULES[rule][0]), A, G)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("entry", WITH_EPS, ids=ids(WITH_EPS))
def test_a_rule_is_given_the_eigenvalues_with_eps(entry, rule):
    """As in the paper, which decomposes M + εI: with q = (b + ε)/(a + ε) Taylor keeps less than with b/a."""
    A, G, eps = matrix(SEPARATED, rotate=False), hermitian(randn(3, 3)), 0.7
    got = gradient(lambda X: entry.call(X, gradient=RULES[rule][0], eps=eps), A, G)
    want = gradient(lambda X: entry.call(X, gradient=RULES[rule][0]), A + eps * torch.eye(3, dtype=F64), G)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@every_function
def test_at_a_tie_taylor_loses_the_off_diagonal_gradient_that_exact_keeps(entry):
    A, G = matrix([1.0, 1.0, 2.0], rotate=False), hermitian(randn(3, 3))
    slope = float(entry.exact[1](1.0))
    kept, lost = (gradient(lambda X, g=g: entry.call(X, gradient=g), A, G) for g in ("exact", "taylor"))
    assert kept[0, 1].item() == pytest.approx(slope * G[0, 1].item(), rel=1e-12)
    assert lost[0, 1].item() == pytest.approx(0.0, abs=1e-12)
    assert lost[0, 0].item() == pytest.approx(slope * G[0, 0].item(), rel=1e-12, abs=1e-12)


@every_function
def test_the_string_exact_is_the_default(entry):
    A, G = spectrum("(1,1,2) to round-off"), randn(3, 3)
    got = gradient(lambda X: entry.call(X, gradient="exact"), A, G)
    assert relative_error(got, gradient(entry.call, A, G)) < 1e-14


@every_kind
def test_a_bad_rule_lists_the_choices(entry):
    with pytest.raises(ValueError, match=r"gradient.*'tailor'.*'taylor'"):
        entry.call(torch.eye(2), gradient="tailor")
    with pytest.raises(TypeError, match=r"gradient.*3"):
        entry.call(torch.eye(2), gradient=3)


# ------------------------------------------------------------------------------------------------- eps and domains


@pytest.mark.parametrize("entry", WITH_EPS, ids=ids(WITH_EPS))
def test_eps_is_added_and_the_spectrum_clamped_there(entry):
    Q = rotation(4)
    L, eps = torch.tensor([-2.0, -0.05, 0.0, 1.5], dtype=F64), 0.1
    f = torch.tensor([float(entry.exact[0](max(x + eps, eps))) for x in L.tolist()], dtype=F64)
    got = entry.call(hermitian((Q * L) @ Q.mH), eps=eps)
    torch.testing.assert_close(got, (Q * f) @ Q.mH, rtol=1e-12, atol=1e-12)


DEFINITE = [entry for entry in FUNCTIONS if not entry.given and not entry.indefinite]
POSITIVE = [entry for entry in DEFINITE if entry.domain == "positive"]
NON_NEGATIVE = [entry for entry in DEFINITE if entry.domain == "non-negative"]


@pytest.mark.parametrize("entry", POSITIVE + NON_NEGATIVE, ids=ids(POSITIVE + NON_NEGATIVE))
def test_a_negative_eigenvalue_is_refused_by_batch_element_and_value(entry):
    A = torch.stack([matrix([1.0, 2.0, 3.0]), matrix([-0.25, 2.0, 3.0])])
    with pytest.raises(eg.DomainError, match=r"batch element 1\b.*-0\.25\b.*eps") as caught:
        entry.call(A)
    assert caught.value.index == (1,)
    assert isinstance(caught.value, torch.linalg.LinAlgError)
    assert str(caught.value).startswith("matrix_")


TRANSFORMED = {
    "grad": torch.func.grad(lambda X: eg.matrix_sqrt(X).sum()),
    "jvp": lambda X: torch.func.jvp(eg.matrix_sqrt, (X,), (X,)),
    "vmap": torch.func.vmap(eg.matrix_sqrt),
}


@pytest.mark.parametrize("transform", TRANSFORMED)
def test_a_negative_eigenvalue_is_refused_inside_transforms_too(transform):
    A = torch.stack([matrix([1.0, 2.0]), matrix([-0.25, 2.0])])
    with pytest.raises(eg.DomainError, match=r"-0\.25\b"):
        TRANSFORMED[transform](A)


def test_the_batch_element_is_named_by_all_its_indices():
    A = torch.eye(2).expand(2, 3, 2, 2).clone()
    A[1, 2, 0, 0] = -1.0
    with pytest.raises(eg.DomainError, match=r"batch element \(1, 2\)") as caught:
        eg.matrix_sqrt(A)
    assert caught.value.index == (1, 2)


@pytest.mark.parametrize("entry", POSITIVE, ids=ids(POSITIVE))
def test_a_zero_eigenvalue_is_refused_where_the_function_is_infinite(entry):
    with pytest.raises(eg.DomainError, match=r"eigenvalue 0;.*positive"):
        entry.call(torch.diag(torch.tensor([0.0, 1.0])))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_square_root_accepts_the_round_off_of_singular_covariances(scale, dtype):
    refused = 0
    for seed in range(50):
        X = randn(8, 3, dtype=dtype, seed=seed)
        A = (X @ X.mH) * scale
        refused += int(torch.linalg.eigvalsh(A)[0] >= 0)
        S = eg.matrix_sqrt(A)
        assert relative_error(S.double() @ S.double() / scale, A.double() / scale) < 20 * torch.finfo(dtype).eps ** 0.5
    assert refused < 50, "no matrix of the sample had a negative eigenvalue: the test would show nothing"


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_clearly_negative_eigenvalue_is_not_round_off(dtype):
    A = matrix([-1e-4, 1.0, 2.0], dtype)
    with pytest.raises(eg.DomainError):
        eg.matrix_sqrt(A)


@every_kind
def test_a_non_finite_matrix_is_named_as_such(entry):
    A = torch.eye(2).expand(3, 2, 2).clone()
    A[2, 1, 0] = torch.nan
    with pytest.raises(eg.NonFiniteError, match="batch element 2"):
        entry.call(A)


@every_kind
@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ([[1.0]], TypeError, r"A must be a torch\.Tensor; got list"),
        (torch.ones(3), ValueError, r"shape.*got \(3,\)"),
        (torch.ones(2, 3), ValueError, r"square.*got \(2, 3\)"),
        (torch.eye(2, dtype=torch.int64), TypeError, r"floating-point.*torch\.int64"),
        (torch.eye(2, dtype=torch.bool), TypeError, r"floating-point.*torch\.bool"),
    ],
    ids=["list", "vector", "rectangular", "integer", "boolean"],
)
def test_what_is_no_square_matrix_of_numbers_is_refused(entry, bad, kind, message):
    with pytest.raises(kind, match=f"^matrix_.*{message}"):
        entry.call(bad)


@pytest.mark.parametrize(
    ("eps", "kind"),
    [(-1e-3, ValueError), (float("nan"), ValueError), (float("inf"), ValueError), ("1", TypeError), (True, TypeError)],
    ids=str,
)
@pytest.mark.parametrize("entry", [e for e in KINDS if e.takes_eps], ids=lambda e: e.name)
def test_a_bad_eps_is_refused(entry, eps, kind):
    with pytest.raises(kind, match=r"^matrix_\w+: eps must .*; got "):
        entry.call(torch.eye(2), eps=eps)


@pytest.mark.parametrize(
    ("exponent", "kind"),
    [("2", TypeError), (None, TypeError), (True, TypeError), (1j, TypeError), (float("nan"), ValueError)],
    ids=str,
)
def test_a_bad_exponent_is_refused(exponent, kind):
    with pytest.raises(kind, match=r"^matrix_power: exponent must .*; got "):
        eg.matrix_power(torch.eye(2), exponent)


@pytest.mark.parametrize("position", ["f", "df", "d2f"])
def test_what_cannot_be_called_is_refused_by_name(position):
    functions = {"f": torch.sin, "df": torch.cos, "d2f": torch.sin} | {position: 3}
    with pytest.raises(TypeError, match=rf"^matrix_function: {position} must be callable; got 3"):
        eg.matrix_function(torch.eye(2), **functions)


def test_an_unknown_driver_lists_the_choices():
    with pytest.raises(ValueError, match=r"driver.*'lapak'.*'lapack'"):
        eg.matrix_sqrt(torch.eye(2), driver="lapak")


# -------------------------------------------------------------------------------------------------------- transforms


def batch_of_three(dtype=F64):
    return torch.stack([matrix(L, dtype, seed=k) for k, L in enumerate([[0.6, 1.3, 2.1], [1, 1, 1], [1, 1, 2]])])


@every_kind
def test_vmap_is_the_batched_function(entry):
    A = batch_of_three()
    torch.testing.assert_close(torch.func.vmap(entry.call)(A), entry.call(A), rtol=1e-13, atol=1e-13)
    A4 = torch.stack([A, 2 * A], 2)
    torch.testing.assert_close(torch.func.vmap(entry.call, in_dims=2)(A4), entry.call(A4.movedim(2, 0)))


@every_kind
def test_per_sample_gradients_by_vmap_over_grad(entry):
    A, G = batch_of_three(), hermitian(randn(3, 3))
    got = torch.func.vmap(torch.func.grad(lambda X: (entry.call(X) * G).sum()))(A)
    torch.testing.assert_close(got, gradient(entry.call, A, G.expand(3, 3, 3)), rtol=1e-12, atol=1e-12)


@every_kind
def test_forward_mode_is_the_adjoint_of_backward(entry):
    A, G, E = (
        spectrum("(1,1,2) to round-off", C128),
        randn(3, 3, dtype=C128),
        hermitian(randn(3, 3, dtype=C128, seed=1)),
    )
    _, dS = torch.func.jvp(entry.call, (A,), (E,))
    g = gradient(entry.call, A, G)
    assert (G.conj() * dS).sum().real.item() == pytest.approx((g.conj() * E).sum().real.item(), rel=1e-12)


@every_kind
def test_the_hessian_by_torch_func_is_that_of_autograd(entry):
    A, G = spectrum("diag(1,1,2)"), randn(3, 3)

    def loss(X):
        return (entry.call(hermitian(X)) * G).sum()

    expected = torch.autograd.functional.hessian(loss, A)
    torch.testing.assert_close(torch.func.hessian(loss)(A), expected, rtol=1e-9, atol=1e-9)
    assert expected.abs().max() > 1e-2


@pytest.mark.sample(1)
@pytest.mark.parametrize("rule", ["exact", "taylor"])
@every_kind
def test_compiled_without_graph_breaks_it_is_the_same(entry, rule):
    torch._dynamo.reset()
    A, G = batch_of_three(), randn(3, 3, 3)

    def call(X):
        return entry.call(X, gradient=rule)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(A), call(A), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(gradient(compiled, A, G), gradient(call, A, G), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", ["exact", "taylor"])
@every_kind
def test_autocast_changes_neither_value_nor_gradient(entry, rule):
    A, G = batch_of_three(F32), randn(3, 3, 3, dtype=F32)

    def call(X):
        return entry.call(X, gradient=rule)

    S, g = call(A), gradient(call, A, G)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert relative_error(call(A), S) < 1e-6
        assert relative_error(gradient(call, A, G), g) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@every_kind
def test_half_precision_is_computed_in_float32_and_cast_back(entry, dtype):
    A, G = batch_of_three(dtype), randn(3, 3, 3, dtype=dtype)
    S, g = entry.call(A), gradient(entry.call, A, G)
    assert S.dtype == g.dtype == dtype
    same = {"rtol": torch.finfo(dtype).eps, "atol": 1e-6, "check_dtype": False}
    torch.testing.assert_close(S, entry.call(A.float()), **same)
    torch.testing.assert_close(g, gradient(entry.call, A.float(), G.float()), **same)


@pytest.mark.parametrize("dtype", [F32, F64, torch.complex64, C128], ids=str)
@every_kind
def test_the_type_is_kept(entry, dtype):
    A = batch_of_three(dtype)
    S, g = entry.call(A), gradient(entry.call, A, randn(3, 3, 3, dtype=dtype))
    assert S.dtype == g.dtype == dtype


@every_kind
def test_strides_do_not_matter(entry):
    A, G = batch_of_three(), randn(3, 3, 3)
    S, g = entry.call(A), gradient(entry.call, A, G)
    strided = torch.stack([A, A], -1)[..., 0]
    assert not strided.is_contiguous()
    torch.testing.assert_close(entry.call(strided), S, rtol=0, atol=1e-14)
    torch.testing.assert_close(gradient(entry.call, strided, G.mT.contiguous().mT), g, rtol=1e-13, atol=1e-13)
    one = A[:1].clone().requires_grad_()
    (expanded,) = torch.autograd.grad(entry.call(one.expand(3, 3, 3)), one, G)
    torch.testing.assert_close(expanded[0], gradient(entry.call, A[:1].expand(3, 3, 3), G).sum(0))


@pytest.mark.parametrize(
    "shape", [(0, 0), (2, 0, 0), (0, 3, 3), (0, 0, 0), (1, 1), (4, 1, 1), (2, 2), (2, 1, 3, 2, 2)], ids=str
)
@every_kind
def test_every_batch_shape_and_size_works_to_second_order(entry, shape):
    A = (torch.eye(shape[-1], dtype=F64) * 2).expand(shape).clone().requires_grad_()
    S = entry.call(A)
    assert S.shape == shape
    f, df, d2f = (float(part(2.0)) for part in entry.exact)
    identity = torch.eye(shape[-1], dtype=F64).expand(shape)
    torch.testing.assert_close(S.detach(), f * identity)
    (g,) = torch.autograd.grad(S, A, identity, create_graph=True)
    torch.testing.assert_close(g.detach(), df * identity)
    (h,) = torch.autograd.grad(g, A, identity)
    torch.testing.assert_close(h, d2f * identity)


NEIGHBOURS = {
    "tied": [1.0, 1.0, 1.0],
    "huge": [1e20, 2e20, 5e20],
    "tiny": [1e-20, 1e-20, 3e-20],
    "clustered": [1, 1, 9],
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("entry", [e for e in KINDS if e.name != "exp"], ids=lambda e: e.name)
def test_a_matrix_does_not_notice_its_neighbours(entry, neighbour):
    A, G, P = matrix([0.6, 0.6 + 1e-4, 2.1]), randn(3, 3), randn(3, 3, seed=1)
    pair = torch.stack([matrix(NEIGHBOURS[neighbour]), A])

    def orders(X, G, P):
        X = X.clone().requires_grad_()
        S = entry.call(X)
        (g,) = torch.autograd.grad(S, X, G, create_graph=True)
        (h,) = torch.autograd.grad(g, X, P)
        return S.detach(), g.detach(), h

    together = orders(pair, torch.stack([G, G]), torch.stack([P, P]))
    for got, alone in zip(together, orders(A, G, P), strict=True):
        assert relative_error(got[1], alone) < 1e-14


# -------------------------------------------------------------------------------------------------- finite gradients

ADVERSARIES = {
    "identity": lambda n: torch.ones(n),
    "rank one": lambda n: torch.cat([torch.zeros(n - 1), torch.ones(1)]),
    "zero": lambda n: torch.zeros(n),
    "half zero": lambda n: torch.cat([torch.zeros(n // 2), torch.ones(n - n // 2)]),
    "cluster 1e-16": lambda n: 1 + 1e-16 * torch.arange(n, dtype=F64),
    "cluster 1e-7": lambda n: 1 + 1e-7 * torch.arange(n, dtype=F64),
    "geometric": lambda n: 10.0 ** -torch.arange(n, dtype=F64),
}
SCALES = [1e-30, 1e-20, 1e-8, 1.0, 1e8, 1e20, 1e30]


def representable(entry: Entry, scale: float, dtype: torch.dtype) -> bool:
    """Whether f and f′ fit the type with room to spare, from eps = scale/1000 to 8 · scale."""
    numbers = [abs(float(part(x))) for part in entry.exact[:2] for x in (scale / 1000, 8 * scale)]
    return max(numbers) < torch.finfo(dtype).max / 1e3


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("entry", WITH_EPS, ids=ids(WITH_EPS))
def test_with_eps_no_gradient_is_ever_non_finite(entry, adversary, dtype):
    tried = 0
    for scale in SCALES:
        if not representable(entry, scale, dtype):
            continue
        for n in (2, 3, 8):
            for rotate in (False, True):
                A = matrix(ADVERSARIES[adversary](n) * scale, dtype, rotate=rotate)
                g = gradient(lambda X, s=scale: entry.call(X, eps=s / 1000), A, randn(n, n, dtype=dtype))
                assert torch.isfinite(g).all(), f"scale {scale}, n {n}, rotated {rotate}"
                tried += 1
    assert tried >= 6


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("adversary", ["identity", "cluster 1e-7", "rank one"])
@pytest.mark.parametrize("entry", [e for e in WITH_EPS if e.degree is not None], ids=lambda e: e.name)
def test_the_gradient_scales_as_the_function_does(entry, adversary, dtype):
    A = matrix(ADVERSARIES[adversary](4), dtype)
    G = randn(4, 4, dtype=dtype)
    reference = gradient(lambda X: entry.call(X, eps=1e-3), A.double(), G.double())
    # Eigenvalues are known to eps · max λ: relative to the smallest, eps at rank one, a thousand times less well.
    tolerance = {F32: 1e-5, F64: 1e-13}[dtype] * (100 if adversary == "rank one" else 1)
    tried = 0
    for scale in SCALES:
        factor = scale**entry.degree
        info = torch.finfo(dtype)
        if not (info.tiny * 1e6 < factor < info.max / 1e6):
            continue
        tried += 1
        g = gradient(lambda X, s=scale: entry.call(X, eps=1e-3 * s), A * scale, G)
        assert relative_error(g.double() / factor, reference) < tolerance, scale
    assert tried >= 3


def test_burg_divergence_at_the_identity_has_no_gradient_and_unit_curvature():
    # tr(A − log A) has its minimum at I: gradient 0 there and Hessian P ↦ P, rotated, with ties only to round-off.
    A = spectrum("identity to round-off").requires_grad_()
    P = hermitian(randn(3, 3))
    S = eg.matrix_function(A, burg, lambda x: 1 - 1 / x, lambda x: x**-2)
    (g,) = torch.autograd.grad(S.trace(), A, create_graph=True)
    (h,) = torch.autograd.grad(g, A, P)
    torch.testing.assert_close(g.detach(), torch.zeros(3, 3, dtype=F64), rtol=0, atol=1e-12)
    torch.testing.assert_close(h, P, rtol=1e-8, atol=1e-8)


def test_hessian_vector_products_are_told_how():
    A, E = (hermitian(randn(3, 3, seed=s)) for s in range(2))

    def f(A):
        return eg.matrix_exp(A).square().sum()

    with pytest.raises(NotImplementedError, match=r"use torch\.func\.jvp of torch\.func\.grad"):
        torch.autograd.functional.hvp(f, A, E)
    _, product = torch.func.jvp(torch.func.grad(f), (A,), (E,))
    expected = torch.func.hessian(f)(A).flatten(2) @ E.flatten()
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-26, 1e26])
def test_the_inverse_root_is_differentiated_where_the_cube_of_the_root_leaves_float32(scale, monkeypatch):
    """In the kernels, for few and for larger matrices, and without them."""
    for n in (3, 40):
        A = hermitian(randn(n, n, seed=n)).float()
        A, G = (A @ A.mT / n + torch.eye(n)) * scale, hermitian(randn(n, n, seed=1)).float() * scale**0.5
        wide = gradient_of(A.double(), G.double())
        assert relative_error(gradient_of(A, G).double(), wide) < 1e-4
        with monkeypatch.context() as without:
            without.setattr(kernels, "usable", lambda *_: False)
            assert relative_error(gradient_of(A, G).double(), wide) < 1e-4


def gradient_of(A: Tensor, G: Tensor) -> Tensor:
    X = A.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(eg.matrix_inv_sqrt(X), X, G)
    return gradient
