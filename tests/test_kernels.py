"""The compiled kernels against the torch operations they replace."""

import numba  # noqa: F401  the check for finite numbers uses its kernel once numba is loaded
import pytest
import torch

import eigengrad as eg
from eigengrad import kernels

REAL = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_kernel_finds_every_number_that_is_not_finite(dtype, bad):
    for count in (1, 2, 7, 16, 33, 100):
        for place in {0, count // 2, count - 1}:
            A = torch.linspace(-1e30, 1e30, count, dtype=dtype)
            assert kernels.all_finite(A)
            A[place] = bad
            assert not kernels.all_finite(A)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize(
    "rule", [eg.Taylor(), eg.Taylor(degree=0), eg.Taylor(degree=19, eps=0.01), eg.Taylor(degree=1000)]
)
@pytest.mark.parametrize(
    "shape", [(3, 2, 2), (5, 4, 4), (2, 8, 8), (200, 4, 4), (2, 17, 17), (2, 3, 6, 6), (7, 7)], ids=str
)
def test_kernels_give_the_gradient_of_the_torch_operations(shape, rule, dtype, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(*shape[:-1], 3, generator=generator, dtype=dtype)
    A = points @ points.mT - 0.5 * torch.eye(shape[-1], dtype=dtype)  # ties at the lower end, negative eigenvalues
    L, V = torch.linalg.eigh(A)
    gL, gV = (torch.randn(x.shape, generator=generator, dtype=dtype) for x in (L, V))
    with torch.no_grad():
        for slopes in (gL, None):
            assert kernels.usable(V)
            fast = rule.pullback(L, V, slopes, gV)
            with monkeypatch.context() as patch:
                patch.setattr(kernels, "usable", lambda X: False)
                plain = rule.pullback(L, V, slopes, gV)
            tolerance = (50 + rule.degree) * torch.finfo(dtype).eps
            assert torch.linalg.vector_norm(fast - plain) <= tolerance * torch.linalg.vector_norm(plain)
