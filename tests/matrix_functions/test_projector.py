"""Projectors on eigenspaces: values, exact derivatives at ties on either side of the cut, and cuts through a tie."""

from __future__ import annotations

import itertools
import math
import warnings

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from eigengrad.errors import GradientWarning
from eigengrad.matrix_functions import spectral_projector
from eigengrad.matrix_functions.cut import Step
from eigengrad.testing import random_hermitian
from functions_matrix import gradient, hermitian, matrix, randn, relative_error

F32, F64, C128 = torch.float32, torch.float64, torch.complex128

#: Eigenvalues, k, and whether the matrix is rotated (False keeps ties exact to the last bit).
CASES = {
    "generic": ((-1.0, 0.3, 1.1, 2.0), 2, True),
    "kept tied": ((-1.0, 0.3, 2.0, 2.0), 2, False),
    "kept tied to round-off": ((-1.0, 0.3, 2.0, 2.0), 2, True),
    "dropped tied": ((0.3, 0.3, 0.3, 2.0), 1, False),
    "dropped tied to round-off": ((0.3, 0.3, 0.3, 2.0), 1, True),
    "both tied": ((1.0, 1.0, 2.0, 2.0), 2, False),
    "smallest": ((-1.0, -1.0, 1.0, 2.0), -2, True),
    "rank one": ((0.0, 0.0, 0.0, 1.0), 1, True),
    "kernel": ((0.0, 0.0, 1.0, 1.0), -2, False),
    **{f"kept gap {g}": ((-1.0, 0.3, 2.0, 2.0 + g), 2, True) for g in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)},
    **{f"dropped gap {g}": ((-1.0, -1.0 + g, 1.0, 2.0), 2, True) for g in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)},
}
every_case = pytest.mark.parametrize("case", CASES)


def of_case(case: str, dtype: torch.dtype = F64) -> tuple[torch.Tensor, int]:
    eigenvalues, k, rotate = CASES[case]
    return matrix(eigenvalues, dtype, rotate=rotate), k


def mp_projector(A: mpmath.matrix, k: int) -> mpmath.matrix:
    _, Q = mpmath.eigsy(A)
    n = A.rows
    V = Q[:, n - k :] if k > 0 else Q[:, :-k]
    return V * V.T


def mp_gradient(function, A: torch.Tensor, G: torch.Tensor) -> torch.Tensor:
    """The gradient of ⟨G, function(A)⟩ for symmetric A by central differences with 50 digits."""
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -18
        n = A.shape[-1]
        M, W = (mpmath.matrix(X.double().tolist()) for X in (A, G))
        result = torch.zeros(n, n, dtype=F64)
        for i, j in itertools.combinations_with_replacement(range(n), 2):
            E = mpmath.zeros(n)
            E[i, j] = E[j, i] = h
            D = function(M + E) - function(M - E)
            slope = sum(W[a, b] * D[a, b] for a in range(n) for b in range(n)) / (2 * h)
            result[i, j] = result[j, i] = float(slope) / (1 if i == j else 2)
        return result


@every_case
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_the_gradient_is_that_of_mpmath(case, dtype):
    A, k = of_case(case, dtype)
    G = hermitian(randn(4, 4, dtype=dtype))
    expected = mp_gradient(lambda M: mp_projector(M, k), A, G)
    got = gradient(lambda X: spectral_projector(X, k), A, G)
    assert relative_error(got, expected) < {F64: 1e-10, F32: 1e-5}[dtype]


@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12])
def test_the_gradient_is_as_accurate_as_the_gap_of_the_cut_allows(gap):
    A, G = matrix([1.0, 1.0, 1.0 + gap, 2.0 + gap]), hermitian(randn(4, 4))
    expected = mp_gradient(lambda M: mp_projector(M, 2), A, G)
    got = gradient(lambda X: spectral_projector(X, 2), A, G)
    assert relative_error(got, expected) < 1e-14 / gap


@pytest.mark.sample(1)
@every_case
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_derivatives_are_exact_everywhere(case, dtype):
    A, k = of_case(case, dtype)
    A.requires_grad_()

    def call(X):
        return spectral_projector(hermitian(X), k)

    assert gradcheck(call, A, check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-6)
    assert gradgradcheck(call, A, check_fwd_over_rev=True, atol=1e-5, rtol=1e-5)


@every_case
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_it_is_the_orthogonal_projector_of_rank_k_that_commutes_with_the_matrix(case, dtype):
    A, k = of_case(case, dtype)
    P = spectral_projector(A, k)
    for got, expected in ((P @ P, P), (P.mH, P), (A @ P, P @ A)):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)
    assert P.diagonal().sum().real.item() == pytest.approx(abs(k), abs=1e-13)
    above = torch.linalg.eigvalsh(A)[-k:].sum() if k > 0 else torch.linalg.eigvalsh(A)[:-k].sum()
    assert (A @ P).diagonal().sum().real.item() == pytest.approx(above.item(), abs=1e-13)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, -1, -4])
def test_the_largest_and_the_smallest_complete_each_other(k, dtype):
    A, G = matrix([-1.0, 0.3, 1.1, 2.0], dtype), hermitian(randn(4, 4, dtype=dtype))
    rest = (4 - abs(k)) * (-1 if k >= 0 else 1)
    P, Q = spectral_projector(A, k), spectral_projector(A, rest)
    if rest == 0 or k == 0:
        assert torch.equal(spectral_projector(A, 0), torch.zeros_like(A))
    torch.testing.assert_close(P + Q, torch.eye(4, dtype=dtype), rtol=0, atol=10 * torch.finfo(dtype).eps)
    g, h = (gradient(lambda X, k=k: spectral_projector(X, k), A, G) for k in (k, rest))
    torch.testing.assert_close(g, -h, rtol=1e-5, atol=0)
    if k in (0, 4, -4):
        assert not g.any()


INTERVALS = [
    (0.0, 1.5),
    (0.3, 1.1),
    (None, 0.5),
    (0.5, None),
    (-math.inf, 0.5),
    (0.5, math.inf),
    (3.0, 4.0),
    (-9.0, 9.0),
]


@pytest.mark.parametrize("interval", [*INTERVALS, (None, None), (-1e30, 0.5), [0.3, 0.3]], ids=str)
@pytest.mark.parametrize("rotate", [False, True], ids=["diagonal", "rotated"])
def test_an_interval_is_closed_and_open_where_it_says_none(interval, rotate):
    L = torch.tensor([-1.0, 0.3, 1.1, 2.0], dtype=F64)
    A = matrix(L, rotate=rotate)
    low, high = (math.copysign(math.inf, s) if e is None else e for e, s in zip(interval, (-1, 1), strict=True))
    inside = ((low <= L) & (high >= L)).to(F64)
    Q = torch.linalg.eigh(A).eigenvectors
    torch.testing.assert_close(spectral_projector(A, interval=interval), (Q * inside) @ Q.mT, rtol=0, atol=1e-14)


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
def test_derivatives_with_an_interval_are_exact(interval):
    # (0.3, 1.1) has eigenvalues at its ends, where the rank jumps: they are moved inside.
    A = matrix([-1.0, 0.3 + 1e-3, 1.1 - 1e-3, 2.0]).requires_grad_()

    def call(X):
        return spectral_projector(hermitian(X), interval=interval)

    assert gradcheck(call, A, check_forward_ad=True)
    assert gradgradcheck(call, A)


def test_the_rank_of_an_interval_may_differ_within_a_batch():
    A = torch.stack([matrix([0.0, 1.0, 2.0]), matrix([1.0, 1.0, 1.0]), matrix([3.0, 4.0, 5.0])])
    P = spectral_projector(A, interval=(0.5, 1.5))
    torch.testing.assert_close(P.diagonal(dim1=-2, dim2=-1).sum(-1), torch.tensor([1.0, 3.0, 0.0], dtype=F64))
    torch.testing.assert_close(torch.func.vmap(lambda X: spectral_projector(X, interval=(0.5, 1.5)))(A), P)


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("rotate", [False, True])
def test_a_cut_through_a_tie_warns_and_keeps_rank_and_bound(rotate, scale, dtype):
    A = matrix([0.0, 1.0, 1.0, 2.0], dtype, rotate=rotate) * scale
    G = hermitian(randn(4, 4, dtype=dtype))
    with pytest.warns(GradientWarning, match=r"^spectral_projector: the matrix of A has two eigenvalues .* round-off"):
        P = spectral_projector(A, 2)
    assert P.diagonal().sum().item() == pytest.approx(2, abs=1e-5)
    torch.testing.assert_close(P @ P, P, rtol=0, atol=1e-5)
    with pytest.warns(GradientWarning):
        g = gradient(lambda X: spectral_projector(X, 2), A, G)
    floor = 4 * torch.finfo(dtype).eps * 2 * scale
    assert g.abs().max() <= 1.01 * torch.linalg.matrix_norm(G) / floor
    assert torch.isfinite(g).all()


@pytest.mark.parametrize("driver", ["lapack", None])
@pytest.mark.parametrize("n", [3, 5])
def test_every_tie_warns_however_far_apart_it_was_computed(n, driver):
    """LAPACK computes one of a hundred ties at n = 3 more than n · finfo.eps apart; the kernels one of 400 at n = 5."""
    values = torch.cat([torch.full((1,), 0.5), torch.ones(n - 1)]).expand(1500, n)
    tied = random_hermitian(values, torch.Generator().manual_seed(n), F32)
    for A in tied:
        with pytest.warns(GradientWarning, match="equal to round-off"):
            spectral_projector(A, 1, driver=driver)


def test_the_warning_names_the_batch_element_also_inside_transforms():
    A = torch.stack([matrix([0.0, 1.0, 2.0]), matrix([1.0, 1.0, 2.0])])
    for call in (lambda A: spectral_projector(A, 2), lambda A: torch.func.vmap(lambda X: spectral_projector(X, 2))(A)):
        with pytest.warns(GradientWarning, match="batch element 1 "):
            call(A)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spectral_projector(A, 1)
        spectral_projector(A, 3)
        spectral_projector(torch.zeros(2, 2), 0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scales_do_not_matter(scale):
    A, G = matrix([0.3, 0.3, 2.0, 2.0], F32), hermitian(randn(4, 4, dtype=F32))
    reference = gradient(lambda X: spectral_projector(X, 2), A.double(), G.double())
    torch.testing.assert_close(spectral_projector(A * scale, 2), spectral_projector(A, 2), rtol=0, atol=1e-6)
    got = gradient(lambda X: spectral_projector(X, 2), A * scale, G)
    assert relative_error(got.double() * scale, reference) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({}, ValueError, "either k or interval"),
        ({"k": 1, "interval": (0, 1)}, ValueError, "either k or interval"),
        ({"k": 4}, ValueError, "k must be at most n = 3; got 4"),
        ({"k": -4}, ValueError, "k must be at least -3; got -4"),
        ({"k": 1.0}, TypeError, "k must be an integer; got 1.0"),
        ({"k": True}, TypeError, "k must be an integer; got True"),
        ({"interval": 1.0}, TypeError, r"interval must be a pair \(low, high\); got 1.0"),
        ({"interval": (1.0,)}, TypeError, "interval must be a pair"),
        ({"interval": "ab"}, TypeError, "interval must be a pair"),
        ({"interval": (1.0, "2")}, TypeError, "interval must have numbers"),
        ({"interval": (math.nan, 2)}, TypeError, "interval must have numbers"),
        ({"interval": (2.0, 1.0)}, ValueError, "low ≤ high"),
    ],
    ids=str,
)
def test_what_chooses_no_eigenvalues_is_refused(arguments, kind, message):
    with pytest.raises(kind, match=f"^spectral_projector: .*{message}"):
        spectral_projector(torch.eye(3), **arguments)


@pytest.mark.parametrize("falling", [False, True])
def test_the_differences_of_the_step_are_its_difference_quotients(falling):
    f = Step(falling)
    values = torch.tensor([-3.0, -2.0, -1e-3, 0.5, 1.0, 4.0], dtype=F64)
    for x, y, z in itertools.permutations(values, 3):
        first = (f.value(x) - f.value(y)) / (x - y)
        torch.testing.assert_close(f.first(x, y), first)
        torch.testing.assert_close(f.second(x, y, z), (first - f.first(y, z)) / (x - z))
        assert f.second(x, x, y).item() == pytest.approx(((f.first(x, x) - f.first(x, y)) / (x - y)).item())
