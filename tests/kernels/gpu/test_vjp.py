"""The one-kernel backward passes, in the interpreter or on a GPU, against torch operations and the CPU kernels."""

import pytest
import torch

import eigengrad as eg
import kernel_rules
import triton_launches as launch
from eigengrad.kernels.vjp import function_vjp
from eigengrad.matrix_functions.divided_differences import ScalarFunction
from eigengrad.matrix_functions.inv_sqrt import InvSqrt
from eigengrad.matrix_functions.spectral import directional_of
from eigengrad.matrix_functions.sqrt import Sqrt

REAL = [torch.float32, torch.float64]
RULES = [*kernel_rules.RULES, eg.Exact()]

dtypes = pytest.mark.parametrize("dtype", REAL, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns of what a GPU does in silence


def hard_matrices(n, dtype, generator):
    """Half of the eigenvalues tied; all of them tied; at the bottom of float32's range; well apart."""
    points = torch.randn(4, n, max(1, n // 2), generator=generator, dtype=dtype)
    A = points @ points.mT - 0.5 * torch.eye(n, dtype=dtype)
    A[1] = torch.eye(n, dtype=dtype)
    A[2] *= 1e-30
    A[3] = torch.diag(torch.arange(n, dtype=dtype)) + 0.01
    return A


def assert_equal_to_round_off(found, expected, factor=20.0):
    """Matrix by matrix, against the largest entry."""
    n, eps = expected.shape[-1], torch.finfo(expected.dtype).eps
    assert torch.equal(found.isfinite(), expected.isfinite())
    found, expected = found.nan_to_num(0, 0, 0), expected.nan_to_num(0, 0, 0)
    size = expected.abs().amax((-2, -1))
    assert ((found - expected).abs().amax((-2, -1)) <= factor * n**0.5 * eps * size).all()


@pytest.mark.sample(2)
@torch.no_grad()
@dtypes
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("n", [2, 3, 5, 8, 17, pytest.param(64, marks=pytest.mark.slow)])
def test_rule_has_the_gradient_of_torch_operations(n, rule, dtype):
    generator = torch.Generator().manual_seed(n)
    L, V = torch.linalg.eigh(hard_matrices(n, dtype, generator))
    gL, gV = (torch.randn(x.shape, generator=generator, dtype=dtype) for x in (L, V))
    for slopes in (gL, None):
        found = launch.eigh_vjp(*rule.kernel(), rule.scale_free, L, V, slopes, gV)
        with eg.kernels.disable():
            assert_equal_to_round_off(found, rule.pullback(L, V, slopes, gV))


@torch.no_grad()
@dtypes
def test_round_off_between_tied_vectors_is_removed(dtype):
    """A loss of the projector on a tied space has X = Xᵀ there; what round-off leaves is not divided by the gap."""
    n, rule = 6, eg.Saturate()
    generator = torch.Generator().manual_seed(0)
    A = torch.eye(n, dtype=dtype).repeat(2, 1, 1)
    L, V = torch.linalg.eigh(A)
    V = torch.linalg.qr(torch.randn(2, n, n, generator=generator, dtype=dtype)).Q
    G = torch.randn(2, n, n, generator=generator, dtype=dtype)
    gA = launch.eigh_vjp(*rule.kernel(), True, L, V, None, (G + G.mT) @ V)
    assert torch.equal(gA, torch.zeros_like(gA))


@torch.no_grad()
@dtypes
def test_nan_in_a_gradient_stays_in_its_matrix_and_is_not_removed(dtype):
    L, V = torch.linalg.eigh(hard_matrices(4, dtype, torch.Generator().manual_seed(0)))
    gV = torch.ones_like(V)
    gV[1, 0, 2] = torch.nan
    gA = launch.eigh_vjp("saturate", (1e-5, 0.0), True, L, V, None, gV)
    assert gA.isnan().any(-1).any(-1).tolist() == [False, True, False, False]


@torch.no_grad()
@dtypes
@pytest.mark.parametrize("f", [Sqrt(), InvSqrt()], ids=["sqrt", "inv_sqrt"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 17, pytest.param(64, marks=pytest.mark.slow)])
def test_matrix_roots_have_the_gradient_of_torch_operations_and_of_the_cpu_kernels(n, f: ScalarFunction, dtype):
    generator = torch.Generator().manual_seed(n)
    points, G = (torch.randn(3, n, 2 * n, generator=generator, dtype=dtype) for _ in range(2))
    A, G = points @ points.mT, G[..., :n]
    A[1] = 4 * torch.eye(n, dtype=dtype)
    A[2] *= 1e-18
    L, V = torch.linalg.eigh(A)
    found = launch.function_vjp(f.kernel, L, V, G.mT)
    assert_equal_to_round_off(found, directional_of((G + G.mT) * 0.5, L, V, f))
    if eg.kernels.available():
        assert_equal_to_round_off(found, function_vjp(f.kernel, L, V, G.mT))


@torch.no_grad()
def test_gradient_that_its_type_cannot_hold_is_the_largest_number():
    L, V = torch.linalg.eigh(torch.diag(torch.tensor([0.0, 1e-42])))
    rule, gV = eg.Saturate(), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    gA = launch.eigh_vjp(*rule.kernel(), True, L, V, None, gV)
    assert gA.isfinite().all()
    assert torch.equal(gA, rule.pullback(L, V, None, gV))


def test_empty_batches():
    L, V = torch.empty(0, 3), torch.empty(0, 3, 3)
    assert launch.eigh_vjp("saturate", (1e-5, 0.0), True, L, V, L, V).shape == (0, 3, 3)
    assert launch.function_vjp("sqrt", L, V, V).shape == (0, 3, 3)
