"""Best approximations of rank k: values, exact derivatives at ties and rank deficiency, and cuts through a tie."""

from __future__ import annotations

import warnings

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from eigengrad.errors import GradientWarning
from eigengrad.matrix_functions import low_rank
from functions_matrix import gradient, randn, relative_error
from singular_values import SHAPES, with_singular_values

F32, F64, C128 = torch.float32, torch.float64, torch.complex128

#: Singular values, k, and whether the matrix is rotated (False keeps ties exact to the last bit).
CASES = {
    "generic": ((2.0, 1.1, 0.3), 2, True),
    "kept tied": ((2.0, 2.0, 0.3), 2, False),
    "kept tied to round-off": ((2.0, 2.0, 0.3), 2, True),
    "dropped tied": ((2.0, 0.3, 0.3), 1, True),
    "rank one of rank one": ((1.0, 0.0, 0.0), 1, False),
    "rank one of rank one, rotated": ((1.0, 0.0, 0.0), 1, True),
    "rank two of rank two": ((1.0, 1.0, 0.0), 2, True),
    **{f"kept gap {g}": ((2.0 + g, 2.0, 0.3), 2, True) for g in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)},
    **{f"dropped gap {g}": ((2.0, 0.3 + g, 0.3), 1, True) for g in (1e-15, 1e-12, 1e-9, 1e-6, 1e-3)},
    "all": ((2.0, 1.0, 1.0), 3, True),
    "none": ((2.0, 1.0, 1.0), 0, True),
}
every_case = pytest.mark.parametrize("case", CASES)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def of_case(case: str, shape, dtype: torch.dtype = F64) -> tuple[torch.Tensor, int]:
    sigma, k, rotate = CASES[case]
    return with_singular_values(sigma, shape, dtype, rotate), k


def mp_low_rank(A: mpmath.matrix, k: int) -> mpmath.matrix:
    if A.rows < A.cols:
        return mp_low_rank(A.T, k).T
    _, Q = mpmath.eigsy(A.T * A)
    V = Q[:, A.cols - k :]
    return A * V * V.T


def mp_gradient(function, A: torch.Tensor, G: torch.Tensor) -> torch.Tensor:
    """The gradient of ⟨G, function(A)⟩ by central differences with 50 digits."""
    with mpmath.workdps(80):
        h = mpmath.mpf(10) ** -20
        m, n = A.shape
        M, W = (mpmath.matrix(X.double().tolist()) for X in (A, G))
        result = torch.zeros(m, n, dtype=F64)
        for i in range(m):
            for j in range(n):
                E = mpmath.zeros(m, n)
                E[i, j] = h
                D = function(M + E) - function(M - E)
                result[i, j] = float(sum(W[a, b] * D[a, b] for a in range(m) for b in range(n)) / (2 * h))
        return result


@pytest.mark.sample(2)
@every_case
@every_shape
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_the_gradient_is_that_of_mpmath(case, shape, dtype):
    A, k = of_case(case, shape, dtype)
    if k == 0:
        assert not gradient(lambda X: low_rank(X, k), A, randn(*shape, dtype=dtype)).any()
        return
    G = randn(*shape, dtype=dtype)
    expected = mp_gradient(lambda M: mp_low_rank(M, k), A, G)
    got = gradient(lambda X: low_rank(X, k), A, G)
    assert relative_error(got, expected) < {F64: 1e-10, F32: 1e-5}[dtype]


@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10])
@every_shape
def test_the_gradient_is_as_accurate_as_the_gap_of_the_cut_allows(gap, shape):
    A, G = with_singular_values((2.0, 1.0 + gap, 1.0), shape), randn(*shape)
    expected = mp_gradient(lambda M: mp_low_rank(M, 2), A, G)
    assert relative_error(gradient(lambda X: low_rank(X, 2), A, G), expected) < 1e-13 / gap  # the vectors of LAPACK


@pytest.mark.parametrize("small", [1e-1, 1e-3, 1e-5, 1e-7])
@every_shape
def test_the_gradient_is_as_accurate_as_the_smallest_kept_singular_value_allows(small, shape):
    A, G = with_singular_values((1.0, small, 0.0), shape), randn(*shape)
    expected = mp_gradient(lambda M: mp_low_rank(M, 2), A, G)
    assert relative_error(gradient(lambda X: low_rank(X, 2), A, G), expected) < 1e-14 / small


@pytest.mark.sample(1)
@every_case
@every_shape
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_derivatives_are_exact_everywhere(case, shape, dtype):
    A, k = of_case(case, shape, dtype)
    A.requires_grad_()

    def call(X):
        return low_rank(X, k)

    assert gradcheck(call, A, check_forward_ad=True, check_batched_grad=True, atol=1e-6, rtol=1e-6)
    assert gradgradcheck(call, A, check_fwd_over_rev=True, atol=1e-5, rtol=1e-5)


@pytest.mark.sample(2)
@every_case
@every_shape
@pytest.mark.parametrize("dtype", [F64, C128], ids=str)
def test_the_value_is_the_truncated_decomposition(case, shape, dtype):
    A, k = of_case(case, shape, dtype)
    U, S, Vh = torch.linalg.svd(A, full_matrices=False)
    torch.testing.assert_close(low_rank(A, k), (U[:, :k] * S[:k]) @ Vh[:k], rtol=0, atol=1e-14)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@every_shape
def test_scales_do_not_matter(scale, shape):
    A, G = with_singular_values((2.0, 2.0, 0.3), shape, F32), randn(*shape, dtype=F32)
    expected = gradient(lambda X: low_rank(X, 2), A.double(), G.double())
    assert relative_error(low_rank(A * scale, 2).double() / scale, low_rank(A.double(), 2)) < 1e-5
    assert relative_error(gradient(lambda X: low_rank(X, 2), A * scale, G), expected) < 1e-5


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("sigma", [(2.0, 1.0, 1.0), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)], ids=str)
@every_shape
def test_a_cut_through_a_tie_warns_and_the_gradient_is_finite(sigma, scale, shape, dtype):
    A, G = with_singular_values(sigma, shape, dtype) * scale, randn(*shape, dtype=dtype)
    with pytest.warns(GradientWarning, match="^low_rank: the matrix of A has two singular values "):
        B = low_rank(A, 2)
    assert torch.linalg.matrix_rank(B, atol=0.1 * scale) <= 2
    with pytest.warns(GradientWarning):
        g = gradient(lambda X: low_rank(X, 2), A, G)
    assert torch.isfinite(g).all()
    assert g.abs().max() <= 1e2 / torch.finfo(dtype).eps


def test_without_a_tie_at_the_cut_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in (0, 1, 2, 3):
            low_rank(with_singular_values((2.0, 1.5, 1.0), (4, 3)), k)
        low_rank(torch.zeros(3, 3), 3)


def test_tall_matrices_cost_no_square_of_their_rows():
    A = randn(20_000, 3).requires_grad_()
    (g,) = torch.autograd.grad(low_rank(A, 2).square().sum(), A, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), A)
    assert torch.isfinite(h).all()


@pytest.mark.parametrize(
    ("k", "kind", "message"),
    [
        (-1, ValueError, "k must be at least 0; got -1"),
        (4, ValueError, r"k must be at most min\(m, n\); got 4 for a matrix of shape \(5, 3\)"),
        (1.0, TypeError, "k must be an integer; got 1.0"),
        (None, TypeError, "k must be an integer; got None"),
    ],
    ids=str,
)
def test_a_rank_that_is_none_is_refused(k, kind, message):
    with pytest.raises(kind, match=f"^low_rank: {message}"):
        low_rank(torch.ones(5, 3), k)
