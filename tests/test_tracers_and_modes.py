"""Everything under what looks on: tracers, watchers, forward mode around backward. (The compiler: test_compile.)"""

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import eigengrad as eg
from eigengrad.nn import DecorrelatedBatchNorm1d
from eigengrad.nn.functional import second_order_pool, whiten_color

WHITENED = DecorrelatedBatchNorm1d(2, affine=False, track_running_stats=False)
TRACED = {
    "eigh": lambda A: eg.eigh(A).eigenvalues,
    "vectors": lambda A: eg.eigh(A).eigenvectors.square(),
    "exp": lambda A: eg.matrix_exp(A),  # make_fx counts the arguments
    "sqrt": lambda A: eg.matrix_sqrt(A @ A.mT),
    "polar": lambda A: eg.polar(A).U,
    "pool": lambda A: second_order_pool(A.reshape(1, 2, 3, 3)),
    "whiten": lambda A: WHITENED(A.reshape(3, 2, 3)),
    "color": lambda A: whiten_color(A.reshape(1, 2, 3, 3), A.flip(0).reshape(1, 2, 3, 3)),
}
BY_TRACER = {
    "jit.trace": lambda f, A: torch.jit.trace(f, A, check_trace=False),
    "make_fx": lambda f, A: make_fx(f)(A),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracer", BY_TRACER)
@pytest.mark.parametrize("name", TRACED)
def test_what_records_operations_records_the_decomposition(name, tracer):
    """The kernels write to memory that a tracer sees nobody write to."""
    A, other = (torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(s)) for s in range(2))
    A, other = A + A.mT, other + other.mT
    recorded = BY_TRACER[tracer](TRACED[name], A)
    torch.testing.assert_close(recorded(other), TRACED[name](other), rtol=1e-4, atol=1e-4)


def test_a_linearised_function_is_its_derivative():
    A, E = (torch.randn(4, 4, generator=torch.Generator().manual_seed(s)) for s in range(2))
    for f in (TRACED["exp"], TRACED["eigh"]):
        _, push = torch.func.linearize(f, A + A.mT)
        _, expected = torch.func.jvp(f, (A + A.mT,), (E + E.mT,))
        torch.testing.assert_close(push(E + E.mT), expected, rtol=1e-4, atol=1e-4)


SECOND = {
    "eigh": lambda x: eg.eigh(x @ x.mT).eigenvectors.pow(4).sum(),
    "sqrt": lambda x: eg.matrix_sqrt(x @ x.mT).pow(3).sum(),
    "exp": lambda x: eg.matrix_exp(x @ x.mT).pow(2).sum(),
    "function": lambda x: eg.matrix_function(x @ x.mT, torch.sin, torch.cos, lambda x: -x.sin()).pow(2).sum(),
    "whiten": lambda x: WHITENED(x.reshape(8, 2, 2)).pow(3).sum(),
    "color": lambda x: whiten_color(x.reshape(1, 2, 4, 4), x.mT.reshape(1, 2, 4, 4)).pow(3).sum(),
    "pool": lambda x: second_order_pool(x.reshape(2, 4, 4)).pow(3).sum(),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", SECOND)
def test_a_backward_pass_in_forward_mode_is_the_second_derivative(name, create_graph):
    """Also without a graph to record: the tangent of the gradient is asked for all the same."""
    x, t = (torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in range(2))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), t)
        (gradient,) = torch.autograd.grad(SECOND[name](dual), dual, create_graph=create_graph)
        found = forward_ad.unpack_dual(gradient).tangent
    _, expected = torch.func.jvp(torch.func.grad(SECOND[name]), (x,), (t,))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_what_only_watches_takes_away_no_check():
    with FlopCounterMode(display=False):
        with pytest.raises(eg.NonFiniteError):
            eg.eigh(torch.full((2, 2), torch.nan))
        with pytest.raises(eg.DomainError):
            eg.matrix_sqrt(torch.diag(torch.tensor([-1.0, 1.0])))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracer", BY_TRACER)
def test_what_records_operations_records_the_whitening_of_evaluation_as_a_constant(tracer):
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)) @ torch.randn(6, 6)
    layer = DecorrelatedBatchNorm1d(6, whitening="pca", affine=False, momentum=1.0)
    layer(x)
    layer.eval()
    assert torch.equal(BY_TRACER[tracer](layer, x)(x), layer(x))
