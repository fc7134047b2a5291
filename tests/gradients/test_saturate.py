"""The default rule, against mpmath and torch: exact at healthy gaps, bounded at ties, with kernels and without."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.gradients import resolve
from eigengrad.testing import random_hermitian, random_matrix, random_unitary
from mp_oracles import (
    F64,
    differences,
    entrywise,
    errors,
    every_dtype,
    fifty_digits,  # noqa: F401 - used by every test
    gradient,
    mp,
    randn,
    relative_error,
    symmetric,
)

# Exact at healthy gaps ------------------------------------------------------------------------------------------------

SIZES = [2, 3, 4, 5, 8, 13, 16, 31, 32, 33, 48, 64]


def separated(n: int, generator: torch.Generator, gap: float = 2e-3, batch: int = 1) -> Tensor:
    """Ascending values from 0 to 1, (batch, n), no two closer than ``gap``, one pair at ``gap`` if n > 2."""
    steps = torch.rand(batch, n - 1, generator=generator, dtype=F64) ** 3
    if n > 2:
        steps[:, 0] = 0
    steps = steps / steps.sum(-1, keepdim=True) * (1 - gap * (n - 1)) + gap
    return torch.cat([torch.zeros(batch, 1, dtype=F64), steps.cumsum(-1)], -1)


def vector_loss(V: Tensor) -> Tensor:
    """A random function of the vectors that does not change with their sign: quadratic and of fourth order."""
    W, Z = randn(*V.shape[-2:], dtype=V.dtype, seed=5), randn(*V.shape[-2:], dtype=V.dtype, seed=6)
    pairs = torch.einsum("...ij,...kj,ik->...", V, V, randn(V.shape[-2], V.shape[-2], dtype=V.dtype, seed=7))
    return ((W * V**2).sum((-2, -1)) + (Z * V**4).sum((-2, -1)) + 0.1 * pairs).sum()


def gradient_of_vectors(A: Tensor, eigh=eg.eigh, **options) -> Tensor:
    A = A.detach().clone().requires_grad_()
    return torch.autograd.grad(vector_loss(eigh(A, **options)[1]), A)[0]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("gap", [2e-3, 4e-3, 1e-2])
def test_the_default_gradient_is_that_of_torch_at_gaps_from_two_thousandths_on(n, gap, generator):
    A = random_hermitian(separated(n, generator, gap, batch=8), generator)
    assert errors(gradient_of_vectors(A), symmetric(gradient_of_vectors(A, torch.linalg.eigh))) < 1e-6


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_default_gradient_is_that_of_mpmath_at_healthy_gaps(n, generator):
    A = random_hermitian(separated(n, generator)[0], generator)

    def square(X):
        _, Q = mpmath.eigsy(X)
        return entrywise(n, n, lambda i, j: Q[i, j] ** 2)

    G = randn(n, n)
    expected = differences(square, mp(A), mp(G), symmetric=True)
    assert relative_error(gradient(lambda A: eg.eigh(A).eigenvectors ** 2, A, G), expected) < 1e-6


@pytest.mark.parametrize("n", SIZES)
def test_the_default_gradient_of_svd_is_that_of_torch_at_healthy_gaps(n, generator):
    """Relative to the spread of the singular values, which are not small either."""
    S = (separated(n, generator, batch=4) + 0.5).flip(-1)
    A = random_matrix(S, n + 1, n, generator)

    def of(svd):
        X = A.clone().requires_grad_()
        U, _, Vh = svd(X, full_matrices=False)
        return torch.autograd.grad(vector_loss(U) + vector_loss(Vh), X)[0]

    assert errors(of(eg.svd), of(torch.linalg.svd)) < 1e-6


@pytest.mark.parametrize("n", [2, 3, 5, 16, 64])
@pytest.mark.parametrize("c", [10.0, -10.0, 1e3, -1e3])
def test_the_default_gradient_does_not_feel_a_multiple_of_the_identity(n, c, generator):
    """A + cI is rounded by eps |c|, and decomposed to n eps |c|: over the smallest gap, this turns eigenvectors, and
    changes 1/gap, by as much."""
    gap = 2e-3
    A = random_hermitian(separated(n, generator, gap, batch=4), generator)
    tolerance = 4 * n * torch.finfo(F64).eps * (1 + abs(c)) / gap
    shifted = A + c * torch.eye(n, dtype=F64)
    assert errors(gradient_of_vectors(shifted), gradient_of_vectors(A)) < tolerance


@pytest.mark.parametrize("c", [0.0, 10.0, -10.0, 1e3, -1e3])
@pytest.mark.parametrize("spectrum", [(0.0, 0.0, 1.0), (0.0, 1e-5, 1.0), (0.0, 5e-5, 2e-4, 1.0), (0.0, 1.0, 1.0, 1.0)])
@every_dtype
def test_what_stands_for_the_reciprocal_does_not_feel_a_shift_at_ties_either(spectrum, c, dtype):
    """To eps |c|/τ: so much the gaps of the shifted eigenvalues are off in units of τ."""
    L = torch.tensor(spectrum, dtype=dtype)
    R, shifted = eg.Saturate().reciprocal(L), eg.Saturate().reciprocal(L + c)
    tau = eg.Saturate().rtol
    off = torch.finfo(dtype).eps * (4 + 2 * abs(c)) / tau
    relative = ((R - shifted).abs() / R).triu(1).max()
    if off < 1:
        assert relative <= off
    assert shifted.triu(1).max() <= 1.01 / tau * (1 + torch.finfo(dtype).eps * abs(c))


@pytest.mark.sample(2)
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1e-3, 1e3, 1e10, 1e20, 1e30])
@pytest.mark.parametrize("n", [2, 3, 5, 16, 64])
@every_dtype
def test_the_default_gradient_is_scale_free(n, scale, dtype, generator):
    """By powers of two exactly; else to the round-off of c A, which the smallest gap enlarges."""
    gap = 2e-3
    A = random_hermitian(separated(n, generator, gap, batch=4), generator, dtype)
    two = 2.0 ** round(math.log2(scale))
    eps = torch.finfo(dtype).eps
    assert errors(gradient_of_vectors(A * two) * two, gradient_of_vectors(A)) < 10 * n * eps / gap
    assert errors(gradient_of_vectors(A * scale) * scale, gradient_of_vectors(A)) < 10 * n * eps / gap


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@every_dtype
def test_the_default_gradient_is_scale_free_at_ties(scale, dtype):
    A = torch.diag(torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0], dtype=dtype))
    two = 2.0 ** round(math.log2(scale))
    torch.testing.assert_close(gradient_of_vectors(A * two) * two, gradient_of_vectors(A))
    torch.testing.assert_close(
        gradient_of_vectors(torch.eye(4, dtype=dtype) * two) * two, gradient_of_vectors(torch.eye(4, dtype=dtype))
    )


# Bounded at ties ------------------------------------------------------------------------------------------------------

DEGENERATE = {
    "a tie": torch.tensor([1.0, 1.0, 2.0, 3.0], dtype=F64),
    "two ties": torch.tensor([1.0, 1.0, 3.0, 3.0], dtype=F64),
    "almost a tie": torch.tensor([1.0, 1.0 + 1e-13, 2.0, 3.0], dtype=F64),
    "identity": torch.ones(4, dtype=F64),
    "minus identity": -torch.ones(4, dtype=F64),
    "almost identity": 1 + torch.arange(4, dtype=F64) * 1e-15,
    "zeros": torch.zeros(4, dtype=F64),
    "rank one": torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=F64),
    "rank one, negative": torch.tensor([-1.0, 0.0, 0.0, 0.0], dtype=F64),
    "two zeros": torch.tensor([-1.0, 0.0, 0.0, 1.0], dtype=F64),
    "shifted tie": 1e6 + torch.tensor([0.0, 0.0, 1.0, 2.0], dtype=F64),
}


def width(L: Tensor, rtol: float = eg.Saturate().rtol) -> float:
    """τ as it is documented: of the spread, or of max|λ| where that is round-off, or of 1."""
    eps, largest = torch.finfo(L.dtype).eps, L.abs().max().item()
    difference = (L.max() - L.min()).item()
    size = difference if difference > len(L) * eps * largest else largest
    return max(rtol * (size or 1.0), eps * largest)


every_degenerate = pytest.mark.parametrize("name", DEGENERATE)


@pytest.mark.sample(2)
@every_dtype
@every_degenerate
@pytest.mark.parametrize("rtol", [1e-6, 1e-4, 1e-2])
def test_the_bound_is_one_over_tau(name, rtol, dtype):
    L, rule = DEGENERATE[name].to(dtype), eg.Saturate(rtol)
    tau = width(L, rtol)
    R = rule.reciprocal(L)
    assert torch.isfinite(R).all()
    assert R.max() <= (1 + 4 * torch.finfo(dtype).eps) / tau
    assert torch.equal(R, R.mT)
    tied = (L.unsqueeze(-1) == L).fill_diagonal_(False)
    torch.testing.assert_close(R[tied], torch.full_like(R[tied], 1 / tau))


@every_dtype
@every_degenerate
@pytest.mark.parametrize("rotate", [True, False], ids=["rotated", "diagonal"])
def test_the_gradient_is_bounded_by_that_of_the_vectors_over_tau(name, rotate, dtype, generator):
    A = random_hermitian(DEGENERATE[name], generator, dtype, rotate=rotate).requires_grad_()
    L, V = eg.eigh(A)
    gV = randn(4, 4, dtype=dtype)
    (gA,) = torch.autograd.grad(V, A, gV)
    tau = width(L.detach())
    assert torch.linalg.norm(gA) <= 1.001 * torch.linalg.norm(gV) / tau


@pytest.mark.sample(2)
@every_dtype
@every_degenerate
@pytest.mark.parametrize("rotate", [True, False], ids=["rotated", "diagonal"])
@pytest.mark.parametrize("function", ["eigh", "svd", "eigh(k=)", "svd(k=)"])
def test_second_derivatives_are_finite(name, function, rotate, dtype, generator):
    A = random_hermitian(DEGENERATE[name], generator, dtype, rotate=rotate).requires_grad_()
    outputs = {
        "eigh": lambda: tuple(eg.eigh(A)),
        "svd": lambda: tuple(eg.svd(A)),
        "eigh(k=)": lambda: tuple(eg.eigh(A, k=2)),
        "svd(k=)": lambda: tuple(eg.svd(A, k=-3)),
    }[function]()
    loss = sum((x**2 * randn(*x.shape, dtype=dtype)).sum() for x in outputs)
    (g,) = torch.autograd.grad(loss, A, create_graph=True)
    assert torch.isfinite(g).all()
    (h,) = torch.autograd.grad((g * randn(4, 4, dtype=dtype, seed=9)).sum(), A)
    assert torch.isfinite(h).all()


# With kernels and without ---------------------------------------------------------------------------------------------


def with_and_without_kernels(rule, *arguments) -> tuple[Tensor, Tensor, Tensor]:
    """The pullback with no derivative to record, with one, and under a monitor, which sees the torch path."""
    with torch.no_grad():
        by_kernel = rule.pullback(*arguments)
    with torch.enable_grad():
        recorded = rule.pullback(*arguments)
    with torch.no_grad(), eg.GradientMonitor():
        observed = rule.pullback(*arguments)
    return by_kernel, recorded.detach(), observed


def mixed_spectra(batch: int, n: int, generator: torch.Generator) -> Tensor:
    """Healthy gaps, exact ties, gaps around τ, and multiples of the identity, one after the other."""
    L = torch.rand(batch, n, generator=generator, dtype=F64).sort(-1).values
    for b in range(batch):
        if b % 4 == 1:
            L[b] = (L[b] * max(2, n // 3)).round()
        elif b % 4 == 2:
            L[b, : n // 2] = L[b, 0] + 1e-4 * torch.rand(n // 2, generator=generator, dtype=F64).sort().values
        elif b % 4 == 3:
            L[b] = 1.0
    return L.sort(-1).values


@every_dtype
@pytest.mark.parametrize("n", [*range(2, 71), 100])
def test_kernels_and_torch_agree_for_every_size(n, dtype, generator):
    batch = {0: 1, 1: 2, 2: 7, 3: 16, 4: 40}[n % 5]
    check_kernels(batch, n, dtype, generator)


@pytest.mark.sample(2)
@every_dtype
@pytest.mark.parametrize("batch", [*range(1, 20), 24, 31, 32, 33, 40])
@pytest.mark.parametrize("n", [3, 8, 33])
def test_kernels_and_torch_agree_for_every_batch(n, batch, dtype, generator):
    check_kernels(batch, n, dtype, generator)


def check_kernels(batch: int, n: int, dtype: torch.dtype, generator: torch.Generator) -> None:
    L = mixed_spectra(batch, n, generator).to(dtype)
    V = random_unitary((batch, n), generator).to(dtype)
    gV, gL = randn(batch, n, n, dtype=dtype), randn(batch, n, dtype=dtype)
    for values in (None, gL):
        first, *others = with_and_without_kernels(eg.Saturate(), L, V, values, gV)
        for other in others:
            assert errors(first, other) < 20 * math.sqrt(n) * torch.finfo(dtype).eps


@every_dtype
@pytest.mark.parametrize("rule", ["saturate", "mask", "taylor", "clip", "lorentzian"])
def test_kernels_and_torch_agree_in_leaving_out_what_is_round_off(rule, dtype, generator):
    """A gradient that is symmetric in the basis of the vectors leaves nothing but round-off of ½ (X − Xᵀ)."""
    rule = resolve(rule)
    for n in (3, 8, 20, 64):
        V = random_unitary((5, n), generator)
        S = randn(5, n, n)
        gV = (V @ (S + S.mT)).to(dtype)
        L = torch.ones(5, n, dtype=dtype)
        for found in with_and_without_kernels(rule, L, V.to(dtype), None, gV):
            assert found.abs().max() <= 100 * torch.finfo(dtype).eps * gV.abs().max()


# The rule's own derivatives -------------------------------------------------------------------------------------------

#: Gaps in units of τ.
DISTANCES = [0.0, 1e-12, 1e-8, 1e-5, 1e-3, 5e-3, 1e-2, 1.05e-2, 1.2e-2, 2e-2, 5e-2, 0.1, 0.13, 0.14, 0.2, 0.5, 1.0, 2.0]
DISTANCES += [5.0, 10.0, 20.0, 40.0, 70.0, 100.0]
RTOL = 1e-4


def mp_reciprocal(*eigenvalues):
    """R of the second and third of four eigenvalues, for Saturate(RTOL)."""
    gap = eigenvalues[2] - eigenvalues[1]
    tau = mpmath.mpf(RTOL) * (eigenvalues[3] - eigenvalues[0])
    x = gap / tau
    # The series is what −expm1(−x)/x is; at x = 0 it has derivatives where the quotient has none.
    if mpmath.fabs(x) < mpmath.mpf(10) ** -3:
        return mpmath.fsum((-x) ** k / mpmath.factorial(k + 1) for k in range(16)) / tau
    return -mpmath.expm1(-x) / gap


def derivatives(L: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Derivatives of R_12 by the eigenvalues, of the first or second order: ours and those of mpmath."""

    def ours(L):
        return eg.Saturate(RTOL).reciprocal(L)[..., 1, 2]

    points = [mpmath.mpf(x) for x in L.double().tolist()]
    with mpmath.workdps(60):
        indices = list(itertools.combinations_with_replacement(range(4), order))
        exact = []
        for index in indices:
            orders = tuple(index.count(i) for i in range(4))
            exact.append(float(mpmath.diff(mp_reciprocal, tuple(points), orders, h=mpmath.mpf(10) ** -14)))
    with torch.enable_grad():
        X = L.clone().requires_grad_()
        (g,) = torch.autograd.grad(ours(X), X, create_graph=True)
        if order == 1:
            found = [g[i].item() for (i,) in indices]
        else:
            H = [torch.autograd.grad(g[i], X, retain_graph=True)[0] for i in range(4)]
            found = [H[i][j].item() for i, j in indices]
    return torch.tensor(found, dtype=F64), torch.tensor(exact, dtype=F64)


@pytest.mark.sample(2)
@every_dtype
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("order", [1, 2])
def test_the_derivatives_of_the_rule_are_those_of_mpmath(order, distance, dtype):
    """Relative to the largest of that order, which is of the size of its bound near the tie.

    Powers of two as τ, so that the distance is what it says; the second eigenvalue is 0, so no gap is rounded.
    """
    L = torch.tensor([-0.375, 0.0, RTOL * distance, 0.625], dtype=dtype)
    found, exact = derivatives(L, order)
    tolerance = 100 * torch.finfo(dtype).eps ** (1 - order / 8)
    assert (found - exact).abs().max() <= tolerance * exact.abs().max()


@every_dtype
@pytest.mark.parametrize("distance", DISTANCES)
def test_the_rule_itself_is_that_of_mpmath_recorded_or_not(distance, dtype):
    L = torch.tensor([-0.375, 0.0, RTOL * distance, 0.625], dtype=dtype)
    exact = float(mp_reciprocal(*(mpmath.mpf(x) for x in L.double().tolist())))
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            assert eg.Saturate(RTOL).reciprocal(L)[1, 2].item() == pytest.approx(exact, rel=8 * torch.finfo(dtype).eps)
