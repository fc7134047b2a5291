"""The numbers that the paper prints (its appendix on the direction of the gradient), from the rules themselves."""

import math

import pytest
import torch

import eigengrad as eg


def last_column(rule, eigenvalues):
    """(R_13, R_23) in the paper's descending order, as the derivative of the eigenvectors has it, through eigh.

    A symmetric change of a diagonal matrix by 1 in every place turns eigenvector j towards i by R_ij.
    """
    A = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
    _, dV = torch.func.jvp(lambda A: tuple(eg.eigh(A, gradient=rule)), (A,), (torch.ones_like(A),))[1]
    V = eg.eigh(A).eigenvectors
    R = (V.mT @ dV).flip(-2, -1).abs()  # descending
    return R[0, 2].item(), R[1, 2].item()


def angle(x, y):
    return math.degrees(math.atan2(y, x))


def test_entries_of_the_expansion_are_99_90_and_1000():
    R13, R23 = last_column(eg.Taylor(degree=9, eps=1e-6), [0.02, 0.01, 0.01])
    assert pytest.approx(99.90, abs=0.005) == R13
    assert pytest.approx(1000, rel=1e-12) == R23
    A = torch.diag(torch.tensor([0.02, 0.01, 0.01], dtype=torch.float64))
    L = torch.linalg.eigvalsh(A)
    R = eg.Taylor(degree=9).pushforward(L, torch.eye(3, dtype=L.dtype), torch.ones(3, 3, dtype=L.dtype))[1]
    assert torch.equal(R, -R.mT)  # the paper prints +1000 twice, its released code computes it: a wrong sign


@pytest.mark.parametrize(("q", "degrees"), [(0.5, -5.71), (0.01, -0.06)])
def test_direction_error_of_taylor_at_a_tie(q, degrees):
    """λ = (1, q, q): the true direction is 90°, because the tied entry is infinite."""
    assert angle(*last_column(eg.Taylor(degree=9), [1.0, q, q])) - 90 == pytest.approx(degrees, abs=0.005)


def test_direction_error_of_clipping_at_100_is_45_degrees():
    R13, R23 = last_column(eg.Clip(threshold=100.0), [0.02, 0.01, 0.01])
    assert pytest.approx(100, rel=1e-12) == R13
    assert angle(R13, R23) - 90 == pytest.approx(-45, abs=1e-9)


def test_direction_error_of_taylor_is_worst_where_three_eigenvalues_are_close():
    q3 = 1 - 1e-6
    q2 = q3 + 1e-10
    exact, taylor = (last_column(rule, [1.0, q2, q3]) for rule in (eg.Exact(), eg.Taylor(degree=9)))
    assert angle(*taylor) - angle(*exact) == pytest.approx(-44.99, abs=0.005)


@pytest.mark.parametrize("degree", [3, 9, 19])
def test_direction_is_kept_where_all_eigenvalues_are_equal(degree):
    assert angle(*last_column(eg.Taylor(degree=degree), [1.0, 1.0, 1.0])) == pytest.approx(45, abs=1e-9)
