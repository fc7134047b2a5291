"""What a decomposition cannot have at a tie: the functions that have it, and the warnings that say so."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad.matrix_functions import low_rank
from eigengrad.testing import random_hermitian, random_matrix
from mp_oracles import F64, every_dtype, gradient, randn, relative_error, symmetric


def sqrt_by_hand(A: Tensor) -> Tensor:
    L, V = eg.eigh(A)
    return (V * L.sqrt().unsqueeze(-2)) @ V.mT


def rank_two_by_hand(A: Tensor) -> Tensor:
    U, S, Vh = eg.svd(A, k=2)
    return (U * S) @ Vh


@every_dtype
def test_at_a_tie_the_gradient_of_v_f_vh_is_not_in_that_of_the_vectors_and_matrix_functions_have_it(dtype):
    """At 4 I the square root has the gradient G/4. What eigh is given has no trace of what is off the diagonal."""
    A, G = 4 * torch.eye(3, dtype=dtype), symmetric(randn(3, 3, dtype=dtype))
    torch.testing.assert_close(gradient(eg.matrix_sqrt, A, G), G / 4)
    torch.testing.assert_close(gradient(sqrt_by_hand, A, G), torch.diag(G.diagonal()) / 4)


@every_dtype
def test_at_a_tie_among_the_kept_low_rank_has_the_gradient_that_svd_has_not(dtype):
    A, G = torch.diag(torch.tensor([2.0, 2.0, 1.0], dtype=dtype)), randn(3, 3, dtype=dtype)
    right, by_hand = gradient(lambda A: low_rank(A, 2), A, G), gradient(rank_two_by_hand, A, G)
    torch.testing.assert_close(right[:2, :2], G[:2, :2])
    torch.testing.assert_close(by_hand[2], right[2])
    torch.testing.assert_close(by_hand[:, 2], right[:, 2])
    # The antisymmetric part turns both bases oppositely, which svd sees; the symmetric one turns them together.
    lost = (G[0, 1] + G[1, 0]) / 2
    torch.testing.assert_close(right[:2, :2] - by_hand[:2, :2], lost * torch.tensor([[0.0, 1], [1, 0]], dtype=dtype))


def warned(function) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    return [w for w in caught if issubclass(w.category, eg.GradientWarning)]


@pytest.mark.parametrize("gap", [1e-6, 1e-7, 1e-9, 1e-11])
def test_beside_a_tie_a_warning_says_that_the_gradient_of_v_f_vh_is_lost(gap, generator):
    A = random_hermitian(torch.tensor([1.0, 4.0, 4.0 + gap], dtype=F64), generator)
    V = torch.linalg.eigh(A).eigenvectors[:, 1:]
    G = V @ torch.tensor([[1.0, 5.0], [5.0, 2.0]], dtype=F64) @ V.mT  # only what is inside the tied block
    assert len(warned(lambda: gradient(sqrt_by_hand, A, G))) == 1
    assert relative_error(gradient(sqrt_by_hand, A, G), gradient(eg.matrix_sqrt, A, G)) > 0.5
    assert not warned(lambda: gradient(eg.matrix_sqrt, A, G))


@pytest.mark.parametrize("gap", [1e-6, 1e-7, 1e-9, 1e-11])
def test_beside_a_tie_a_warning_says_that_the_gradient_of_a_low_rank_approximation_is_lost(gap, generator):
    A = random_matrix(torch.tensor([2.0 + gap, 2.0, 1.0], dtype=F64), 3, 3, generator)
    U, _, Vh = torch.linalg.svd(A)
    G = U[:, :2] @ torch.tensor([[1.0, 5.0], [5.0, 2.0]], dtype=F64) @ Vh[:2]
    assert len(warned(lambda: gradient(rank_two_by_hand, A, G))) == 1
    assert relative_error(gradient(rank_two_by_hand, A, G), gradient(lambda A: low_rank(A, 2), A, G)) > 0.5
    assert not warned(lambda: gradient(lambda A: low_rank(A, 2), A, G))
