"""A training step captured in a CUDA graph does what it does uncaptured. Needs a GPU, as ``make test-gpu`` has it."""

import pytest
import torch

import eigengrad as eg
from eigengrad.nn import DecorrelatedBatchNorm2d

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def kernels_alone(monkeypatch):
    """Kernels without measurement: torch.linalg.eigh waits for the device, and cannot be captured."""
    from eigengrad.kernels import gpu

    if gpu.why_not() is not None:
        pytest.skip(gpu.why_not())
    monkeypatch.setattr(gpu, "mode", lambda: "triton")


def captured(step, x):
    """What a step leaves in x.grad when it is replayed on other numbers than it was captured with."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # kernels are compiled before
        for _ in range(3):
            step(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    x.grad = None
    with torch.cuda.graph(graph):
        step(x)
    with torch.no_grad():
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    graph.replay()
    return x.grad.clone()


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize("n", [3, 16, 64])
def test_eigh_and_its_gradient(n):
    def step(x):
        L, V = eg.eigh(x @ x.mT)
        ((V**4)[..., 0].sum() + (L**2).sum()).backward()

    x = torch.randn(8, n, n, device="cuda", requires_grad=True)
    found, y = captured(step, x), x.detach().clone().requires_grad_()
    step(y)
    torch.testing.assert_close(found, y.grad, rtol=1e-3, atol=1e-3 * float(y.grad.abs().max()))


@pytest.mark.usefixtures("kernels_alone")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_whitening_layer(layout):
    norm = DecorrelatedBatchNorm2d(16, group_size=8).cuda()

    def step(x):
        (norm(x) ** 3).sum().backward()

    x = torch.randn(4, 16, 8, 8, device="cuda").contiguous(memory_format=layout).requires_grad_()
    found, y = captured(step, x), x.detach().clone().requires_grad_()
    step(y)
    torch.testing.assert_close(found, y.grad, rtol=1e-3, atol=1e-3 * float(y.grad.abs().max()))
