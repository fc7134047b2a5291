"""The compiled eigensolvers against LAPACK, on matrices on which eigensolvers fail."""

import pytest
import torch

import eigengrad as eg
from eigengrad.testing import decomposition_errors, hard_matrices

REAL = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16, 17, 24, 33, 64, 100])
@pytest.mark.parametrize("batch", [1, 17])
def test_errors_over_hard_matrices_are_at_most_twice_those_of_lapack(n, batch, dtype, generator):
    ours, lapack = [], []
    for A in hard_matrices(n, dtype, generator).values():
        A = A.expand(batch, n, n).contiguous()
        L, V = eg.eigh(A, driver="batched")
        assert (L.diff(dim=-1) >= 0).all()
        ours.append([error.max() for error in decomposition_errors(A, L, V)])
        lapack.append([error.max() for error in decomposition_errors(A, *torch.linalg.eigh(A))])
    ours, lapack = torch.tensor(ours).amax(0), torch.tensor(lapack).amax(0)
    assert (ours <= 2 * lapack).all(), f"{ours} against {lapack}"


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("n", [1, 3, 4, 7, 16, 32, 40, 64])
def test_result_depends_neither_on_neighbours_nor_on_threads(n, dtype, generator):
    A = torch.randn(70, n, n, dtype=dtype, generator=generator)
    A = A @ A.mT
    L, V = eg.eigh(A, driver="batched")
    others = A.clone()
    others[1::2] = torch.eye(n, dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = eg.eigh(A, driver="batched")
    finally:
        torch.set_num_threads(before)
    L2, V2 = eg.eigh(others, driver="batched")
    assert torch.equal(again.eigenvalues, L)
    assert torch.equal(again.eigenvectors, V)
    assert torch.equal(L2[::2], L[::2])
    assert torch.equal(V2[::2], V[::2])
