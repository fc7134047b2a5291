"""The compiled kernels against the torch operations they replace."""

import pytest
import torch

import eigengrad as eg
from eigengrad import kernels
from kernel_rules import RULES

REAL = [torch.float32, torch.float64]


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (3, 2, 2),
        (5, 4, 4),
        (2, 8, 8),
        (200, 4, 4),
        (33, 17, 17),
        (2, 3, 6, 6),
        (7, 7),
        (1, 16, 16),
        (3, 32, 32),
        (20, 32, 32),
        (3, 33, 33),
        (64, 64),
        (2, 70, 70),
        (2, 3, 48, 48),
        (96, 96),
    ],
    ids=str,
)
def test_kernels_give_the_gradient_of_the_torch_operations(shape, rule, dtype):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(*shape[:-1], 3, generator=generator, dtype=dtype)
    A = points @ points.mT - 0.5 * torch.eye(shape[-1], dtype=dtype)  # ties at the lower end, negative eigenvalues
    L, V = torch.linalg.eigh(A)
    gL, gV = (torch.randn(x.shape, generator=generator, dtype=dtype) for x in (L, V))
    with torch.no_grad():
        for slopes in (gL, None):
            assert kernels.usable(V)
            fast = rule.pullback(L, V, slopes, gV)
            by_columns = rule.pullback(L, V, slopes, gV.mT.contiguous().mT)
            with kernels.disable():
                plain = rule.pullback(L, V, slopes, gV)
            tolerance = (50 + getattr(rule, "degree", 0)) * torch.finfo(dtype).eps
            for found in (fast, by_columns):
                assert torch.linalg.vector_norm(found - plain) <= tolerance * torch.linalg.vector_norm(plain)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-30])
@pytest.mark.parametrize("used", ["USV", "UV", "U"])
@pytest.mark.parametrize(
    "shape", [(3, 2, 2), (200, 4, 4), (2, 3, 6, 6), (5, 9, 4), (5, 4, 9), (33, 17, 17), (70, 70)], ids=str
)
def test_kernels_give_the_gradient_of_svd(shape, used, scale, rule, dtype):
    generator = torch.Generator().manual_seed(0)
    U, S, Vh = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=dtype), full_matrices=False)
    S[..., 1] = S[..., 0]  # a tie at the upper end
    S[..., 3:] = 0  # and at zero, among many
    A = (scale * (U * S.unsqueeze(-2)) @ Vh).requires_grad_()

    def gradient():
        parts = dict(zip("USV", eg.svd(A, full_matrices=False, gradient=rule), strict=True))
        loss = sum((x * incoming[name]).sum() for name, x in parts.items() if name in used)
        return torch.autograd.grad(loss, A)[0]

    incoming = {
        name: torch.randn(x.shape, generator=generator, dtype=dtype) for name, x in zip("USV", (U, S, Vh), strict=True)
    }
    fast = gradient()
    with kernels.disable():
        plain = gradient()
    size = plain.abs().amax()
    tolerance = (100 + 2 * getattr(rule, "degree", 0)) * torch.finfo(dtype).eps
    assert torch.linalg.vector_norm((fast - plain) / size) <= tolerance * torch.linalg.vector_norm(plain / size)


@pytest.mark.parametrize("dtype", REAL, ids=str)
@pytest.mark.parametrize("function", [eg.matrix_sqrt, eg.matrix_inv_sqrt])
@pytest.mark.parametrize(
    "shape",
    [(3, 2, 2), (20, 4, 4), (9, 7, 7), (2, 3, 17, 17), (5, 32, 32), (20, 32, 32), (2, 33, 33), (64, 64), (3, 70, 70)],
    ids=str,
)
def test_kernels_give_the_gradient_of_a_matrix_function(shape, function, dtype):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(*shape[:-1], 3, generator=generator, dtype=dtype)
    A = (points @ points.mT).requires_grad_()  # rank 3: the others tied at eps
    G = torch.randn(shape, generator=generator, dtype=dtype)  # not symmetric
    S = function(A, eps=1e-2)
    by_rows, by_columns = (
        torch.autograd.grad(S, A, given, retain_graph=True)[0] for given in (G, G.mT.contiguous().mT)
    )
    with kernels.disable():  # at the same eigenvectors: other ones differ by round-off times the condition of A
        (plain,) = torch.autograd.grad(S, A, G)
    for fast in (by_rows, by_columns):
        assert torch.linalg.vector_norm(fast - plain) <= 100 * torch.finfo(dtype).eps * torch.linalg.vector_norm(plain)
