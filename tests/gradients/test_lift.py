"""Matrices at the bottom of the range: eigh's gradient is right as far as the type can hold it."""

import pytest
import torch

import eigengrad as eg
from eigengrad.gradients.lift import lift, lower
from eigengrad.gradients.partial import Partial
from eigengrad.testing import SPECTRA, random_hermitian
from rules_matrix import PAIR_RULES

SCALE_FREE = [case for case in PAIR_RULES if case.scale_free]
REGULAR = [case for case in PAIR_RULES if case.regular]
LARGEST = torch.finfo(torch.float32).max

quiet = pytest.mark.filterwarnings("ignore::eigengrad.GradientWarning")


def hermitian(n, generator, spectrum="separated", scale=1.0, dtype=torch.float64):
    return random_hermitian(SPECTRA[spectrum]((n,), generator) * scale, generator, dtype)


def gradient(A, **arguments):
    """Of a loss of the eigenvectors alone: the same for every multiple of A, and blind to signs."""
    A = A.detach().clone().requires_grad_()
    V = eg.eigh(A, **arguments).eigenvectors
    W = torch.sin(torch.arange(1.0, 1 + V[0].numel() if V.ndim == 3 else 1 + V.numel())).reshape(V.shape[-2:])
    return torch.autograd.grad((W.to(V.dtype) * V**2).sum(), A)[0]


@pytest.mark.sample(2)
@quiet
@pytest.mark.parametrize("scale", [1e-42, 1e-39, 3e-39, 1e-38, 1e-37, 1e-36, 1e-33, 1e-30, 1e30, 1e37], ids=str)
@pytest.mark.parametrize("case", SCALE_FREE, ids=str)
@pytest.mark.parametrize("k", [None, 2], ids=["all", "partial"])
def test_gradient_is_that_of_float64_limited_to_the_range_of_float32(k, case, scale, generator):
    n = 5
    A = hermitian(n, generator, scale=scale, dtype=torch.float32)
    expected, actual = (gradient(B, k=k, gradient=case.rule) for B in (A.double(), A))
    limits = torch.finfo(torch.float32)
    assert actual.isfinite().all()
    # Eigenvalues are known to a few ulps, and to the last denormal bit; a gap is a half of λ_max / n or more.
    error = 100 * limits.eps + 8 * n * limits.smallest_normal * limits.eps / scale
    expected = expected.clamp(limits.min, limits.max)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=error * float(expected.abs().max()))


@pytest.mark.sample(2)
@quiet
@pytest.mark.parametrize("scale", [1e-44, 1e-42, 1e-39, 1e-36], ids=str)
@pytest.mark.parametrize("spectrum", ["ties", "half rank", "identity", "indefinite", "graded", "cluster 1e-06"])
@pytest.mark.parametrize("case", REGULAR, ids=str)
def test_gradient_of_denormal_matrices_is_finite(case, spectrum, scale, generator):
    for dtype, factor in ((torch.float32, 1.0), (torch.float64, 1e-270)):
        A = hermitian(5, generator, spectrum, scale * factor, dtype)
        assert gradient(A, gradient=case.rule).isfinite().all()


def test_gradient_that_does_not_fit_is_the_largest_number_with_a_warning(generator):
    A = hermitian(4, generator)
    true = gradient(A)
    with pytest.warns(eg.GradientWarning, match=r"eigh: a matrix is so small .* torch\.float32"):
        actual = gradient((A * 1e-41).float())
    too_large = true.abs() > 1e-2
    assert (actual.abs() == LARGEST)[too_large].all()
    assert torch.equal(actual.sign()[too_large].double(), true.sign()[too_large])


def test_forward_mode_is_that_of_an_ordinary_matrix(generator):
    A, dA = (hermitian(4, generator, dtype=torch.float32) for _ in range(2))
    small = 2.0**-124
    (_, V), (dL, dV) = torch.func.jvp(lambda A: tuple(eg.eigh(A)), (A,), (dA,))
    (_, W), (eL, eV) = torch.func.jvp(lambda A: tuple(eg.eigh(A)), (A * small,), (dA * small,))
    signs = (V * W).sum(-2).sign()
    torch.testing.assert_close(eV * signs, dV, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(eL / small, dL, rtol=1e-3, atol=1e-3)


def test_gradient_of_values_beside_vectors_is_kept(generator):
    A = hermitian(4, generator, scale=2.0**-130, dtype=torch.float32).requires_grad_()
    L, V = eg.eigh(A)
    (L[-1] + 0 * V.sum()).backward()
    torch.testing.assert_close(A.grad, torch.outer(V[:, -1], V[:, -1]).detach())


@pytest.mark.sample(2)
@pytest.mark.parametrize("power", [-100, -98, -80, -76, -74, -60, 60, 100])
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("case", SCALE_FREE, ids=str)
def test_gradient_at_a_small_spread_is_divided_by_the_scale(case, n, power):
    """All eigenvalues are within 1e-5 of each other, and what rules compare gaps with is smaller by far."""
    A = torch.diag(1 + torch.arange(float(n)) * 2.0**-20)  # exact at all these scales
    gV = torch.sin(torch.arange(1.0, n * n + 1)).reshape(n, n)

    def backward(A, gV):
        A = A.clone().requires_grad_()
        return torch.autograd.grad(eg.eigh(A, gradient=case.rule).eigenvectors, A, gV)[0]

    expected, actual = backward(A, gV), backward(A * 2.0**power, gV * 2.0 ** (power / 2))
    torch.testing.assert_close(
        actual * 2.0 ** (power / 2), expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max())
    )


def test_second_derivative_of_a_tiny_matrix(generator):
    """Homogeneous of degree −2: within the range of float64 at 1e-100, where lifting starts at 1e-241."""
    A, W = (hermitian(3, generator) for _ in range(2))

    def product(A, power):
        A = (A * 2.0**power).requires_grad_()
        V = eg.eigh(A).eigenvectors
        (first,) = torch.autograd.grad((W * V**2).sum(), A, create_graph=True)
        return torch.autograd.grad((first * W * 2.0**power).sum(), A)[0] * 2.0**power

    torch.testing.assert_close(product(A, -980), product(A, 0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_only_tiny_matrices_are_lifted_by_a_power_of_two(dtype):
    limits = torch.finfo(dtype)
    values = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [0.0, limits.tiny * limits.eps], [-limits.tiny, 0.0]], dtype=dtype)
    factor = lift(values)[:, 0]
    assert factor[:2].tolist() == [1.0, 1.0]
    threshold = 1 / float(factor[2])
    assert 1e-6 * threshold * limits.eps >= limits.tiny  # what is not lifted has widths that are no denormal numbers,
    assert limits.tiny * limits.eps / threshold * limits.eps * 1e-6 >= limits.tiny  # and what is lifted neither
    assert (torch.frexp(factor).mantissa == 0.5).all()
    assert lift(values[:2]) is None
    assert lift(values.abs()[1:2] * limits.max) is None


def test_what_was_infinite_before_remains_infinite():
    gA = torch.tensor([[[torch.inf, 1.0], [torch.nan, -(2.0**60)]]])
    actual = lower(gA, torch.tensor([[2.0**100]]))[0]
    assert actual[0].tolist() == [torch.inf, 2.0**100]
    assert actual[1, 0].isnan()
    assert actual[1, 1] == -LARGEST


def test_rule_is_lifted_only_if_its_reciprocals_are_homogeneous():
    for case in PAIR_RULES:
        absolute = isinstance(case.rule, eg.Clip | eg.UnitNormOrNaN) or case.rule == eg.Taylor(eps=1e-2)
        assert case.rule.scale_free != absolute
        assert Partial(case.rule, 2).scale_free != absolute

    class Mine(eg.Saturate):
        def reciprocal(self, eigenvalues):
            return super().reciprocal(eigenvalues).clamp(max=7.0)

    assert not Mine().scale_free
    assert gradient(torch.tensor([[1.0, 1e-3], [1e-3, 2.0]]) * 2.0**-126, gradient=Mine()).abs().max() < 14
