"""Taylor's R against mpmath at 50 digits, near ties and far from them, and its derivative, for second derivatives."""

from functools import cache

import mpmath
import pytest
import torch

import eigengrad as eg
from eigengrad.testing import SPECTRA, random_hermitian

GAPS = [0.0, 2.0**-53, 1e-16, 3e-16, 1e-15, 1e-13, 1e-11, 1e-9, 3e-9, 1e-8, 1e-7, 1e-5, 1e-3, 0.1, 0.5, 0.9, 0.999]
DEGREES = [0, 1, 2, 9, 99, 1000]
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


def pairs(dtype, scale):
    """Ascending pairs (b, a) with a = scale and every gap, as the type rounds them: float64 tensor (gaps, 2)."""
    a = torch.full((len(GAPS),), scale, dtype=dtype)
    return torch.stack([(a * (1 - torch.tensor(GAPS, dtype=torch.float64))).to(dtype), a], -1)


@cache
def reference(b, a, degree):
    """(R, ∂R/∂b, ∂R/∂a) of R = Σ b^k / a^(k+1), term by term."""
    b, a = mpmath.mpf(b), mpmath.mpf(a)
    terms = range(degree + 1)
    R = mpmath.fsum(b**k / a ** (k + 1) for k in terms)
    db = mpmath.fsum(k * b ** (k - 1) / a ** (k + 1) for k in terms if k)
    da = -mpmath.fsum((k + 1) * b**k / a ** (k + 2) for k in terms)
    return float(R), float(db), float(da)


@pytest.mark.parametrize("recorded", [False, True], ids=["plain", "with derivatives recorded"])
@pytest.mark.parametrize("scale", [0.7, 1e-20])
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reciprocal_is_accurate_to_round_off_at_every_gap(degree, dtype, scale, recorded):
    L = pairs(dtype, scale)
    with torch.set_grad_enabled(recorded):
        R = eg.Taylor(degree=degree).reciprocal(L.requires_grad_(recorded))[..., 0, 1].detach()
    expected = torch.tensor([reference(b, a, degree)[0] for b, a in L.tolist()], dtype=torch.float64)
    error = (R.double() / expected - 1).abs()
    # q itself, where it is rounded, moves R by K·eps/2 at most.
    assert error.max() < (8 + degree) * torch.finfo(dtype).eps, GAPS[int(error.argmax())]


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradient_of_an_eigenvector_is_accurate_at_every_gap(degree, dtype):
    """The same through eigh of a diagonal matrix, whose gradient is ½ R (X − Xᵀ) itself."""
    L = pairs(dtype, 0.7)
    A = torch.diag_embed(L).requires_grad_()
    V = eg.eigh(A, gradient=eg.Taylor(degree=degree)).eigenvectors
    V[..., 0, 1].sum().backward()
    expected = torch.tensor([reference(b, a, degree)[0] / 2 for b, a in L.tolist()], dtype=torch.float64)
    error = A.grad[..., 0, 1].double().abs() / expected - 1  # the sign is that of the eigenvectors
    assert error.abs().max() < (8 + degree) * torch.finfo(dtype).eps


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_derivative_by_the_eigenvalues_is_accurate_at_every_gap(degree, dtype):
    """To √eps of its largest size (K+1)²/a²: what the change from the series to the closed form costs."""
    L = pairs(dtype, 0.7)[1:].requires_grad_()
    L = L[(L[:, 0] < L[:, 1])].detach().requires_grad_()  # at a tie there is a kink
    eg.Taylor(degree=degree).reciprocal(L)[..., 0, 1].sum().backward()
    expected = torch.tensor([reference(b, a, degree)[1:] for b, a in L.tolist()], dtype=torch.float64)
    error = (L.grad.double() - expected).abs().amax(-1) * (0.7 / (degree + 1)) ** 2
    assert error.max() < 8 * torch.finfo(dtype).eps ** 0.5


@pytest.mark.parametrize("degree", [0, 9, 1000])
def test_degree_1000_is_as_scale_free_as_degree_0(degree, generator):
    L = SPECTRA["half rank"]((6,), generator)
    for c in (2.0**-100, 2.0**100):
        R, scaled = (eg.Taylor(degree=degree).reciprocal(x) for x in (L, c * L))
        torch.testing.assert_close(scaled * c, R, rtol=1e-14, atol=0)


@pytest.mark.parametrize("shift", [-3.0, -1e-3, 0.5])
def test_spectrum_that_is_not_positive_is_shifted(shift):
    """Eigenvectors do not feel a shift: all spectra with a negative eigenvalue behave as λ − λ_min + ε."""
    L = torch.tensor([0.0, 0.1, 0.35, 1.0], dtype=torch.float64)
    ones, eye = torch.ones(4, 4, dtype=L.dtype), torch.eye(4, dtype=L.dtype)
    rule = eg.Taylor(degree=9, eps=1e-2)
    actual = rule.pushforward(L + shift, eye, ones)[1]
    base = L + 1e-2 if shift < 0 else L + shift
    a, b = torch.maximum(base[:, None], base), torch.minimum(base[:, None], base)
    expected = sum(b**k / a ** (k + 1) for k in range(10))
    torch.testing.assert_close(actual.abs().triu(1), expected.triu(1), rtol=1e-12, atol=1e-12)


def test_negative_round_off_is_clamped_and_not_shifted():
    """A covariance with an eigenvalue −1e-17 is a covariance: the others stay where they are."""
    clean, noisy = (torch.tensor([x, 0.5, 1.0], dtype=torch.float64) for x in (0.0, -1e-17))
    R, S = (eg.Taylor().reciprocal(L) for L in (clean, noisy))
    torch.testing.assert_close(R, S, rtol=1e-14, atol=0)


@pytest.mark.parametrize("degree", [0, 9, 50])
@pytest.mark.parametrize("eps", [1e-6, 1e-2, 1.0])
def test_gradient_norm_is_at_most_n_times_k_plus_1_over_eps(degree, eps, generator):
    """‖gA‖ ≤ n(K+1)/ε ‖gV‖ for every spectrum, ties and zeros included."""
    n = 6
    for name, spectrum in SPECTRA.items():
        A = random_hermitian(spectrum((20, n), generator), generator).requires_grad_()
        V = eg.eigh(A, gradient=eg.Taylor(degree=degree, eps=eps)).eigenvectors
        gV = torch.randn(V.shape, generator=generator, dtype=V.dtype)
        (gA,) = torch.autograd.grad(V, A, gV)
        bound = n * (degree + 1) / eps * torch.linalg.matrix_norm(gV)
        assert (torch.linalg.matrix_norm(gA) <= bound).all(), name
