"""The GPU kernels in compiled functions: operators that run what was chosen before, in the interpreter."""

import logging
import os

import pytest
import torch

pytest.importorskip("triton")

import eigengrad as eg
from eigengrad import gpu_operators
from eigengrad.gradients import from_kernel
from eigengrad.kernels import gpu
from eigengrad.kernels.gpu import selection
from eigengrad.kernels.gpu.selection import Choice, Selector

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="tensors on the CPU"),
    pytest.mark.usefixtures("dynamo"),
]
RULES = [eg.Saturate(rtol=0.01), eg.Exact(), eg.Taylor(degree=7), eg.Taylor(eps=0.01), eg.Clip(3.0)]
RULES += [eg.Lorentzian(broadening=1e-3), eg.Mask(), eg.Mask(rtol=0.1)]


@pytest.fixture
def everywhere(monkeypatch):
    """A process in which nothing has been decided, and the CPU counts as a device for kernels."""
    monkeypatch.setattr(gpu, "_failure", None)
    monkeypatch.setattr(gpu, "_off_the_cpu", lambda A: True)
    monkeypatch.setattr(selection, "_selectors", {})
    monkeypatch.setattr(eg.kernels.gpu, "mode", lambda: "measure")
    return monkeypatch


def choose(operations, dtype="float64", n=3):
    """Let the kernel have been chosen for operations on n × n matrices in batches of 2."""
    selector = Selector(lambda call: 1.0, None)
    selector.choices = {f"{name} {dtype} n={n} batch<4": Choice("triton") for name in operations}
    selection._selectors[torch.device("cpu")] = selector


def definite(n=3):
    A = torch.randn(2, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return A @ A.mT + torch.eye(n, dtype=torch.float64)


def compiled(function, A):
    """The result, the gradient, and the names of the operators in the graphs of both passes."""
    from torch._dynamo.backends.common import aot_autograd

    names = set()

    def look(graph, example_inputs):
        names.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch._dynamo.reset()
    A = A.clone().requires_grad_()
    y = torch.compile(function, backend=aot_autograd(fw_compiler=look, bw_compiler=look), fullgraph=True)(A)
    y.backward(torch.ones_like(y))
    return y.detach(), A.grad, {name.split(".")[1] for name in names if name.startswith("eigengrad.")}


def eager(function, A):
    A = A.clone().requires_grad_()
    y = function(A)
    y.backward(torch.ones_like(y))
    return y.detach(), A.grad


def by_vectors(A):
    L, V = eg.eigh(A, driver="triton")
    return (V**4)[..., 0].sum(-1) * L[..., 2]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule_is_found_again_by_its_kernel(rule, generator):
    again, L = from_kernel(*rule.kernel()), torch.randn(3, 5, generator=generator).sort().values
    assert type(again) is type(rule)
    torch.testing.assert_close(again.reciprocal(L), rule.reciprocal(L), equal_nan=True)


def test_operators_are_well_formed():
    """What torch checks of an operator: its schema, its fake, and that it traces."""
    A = definite()
    L, V = torch.linalg.eigh(A)
    for asked in (True, False):
        torch.library.opcheck(gpu_operators.eigh, (A, asked))
    for gL in (L, None):
        torch.library.opcheck(gpu_operators.eigh_vjp, ("saturate", 1e-5, 0.0, True, L, V, gL, V))
    torch.library.opcheck(gpu_operators.function_vjp, ("sqrt", L, V, A))


def test_driver_that_is_asked_for_is_an_operator_of_the_graph(everywhere):
    found = compiled(by_vectors, definite())
    assert found[2] == {"gpu_eigh"}  # nothing was chosen for the backward pass
    for x, expected in zip(found, eager(by_vectors, definite()), strict=False):
        torch.testing.assert_close(x, expected)


def test_what_was_chosen_before_is_used_and_nothing_is_measured(everywhere):
    choose(["eigh_vjp saturate", "function_vjp inv_sqrt"])
    before = dict(selection.choices()["cpu"])
    expected = eager(by_vectors, definite())
    found = compiled(by_vectors, definite())
    assert found[2] == {"gpu_eigh", "gpu_eigh_vjp"}
    for x, y in zip(found, expected, strict=False):
        torch.testing.assert_close(x, y)
    root = lambda A: eg.matrix_inv_sqrt(A, driver="triton")  # noqa: E731
    expected = eager(root, definite())
    found = compiled(root, definite())
    assert found[2] == {"gpu_eigh", "gpu_function_vjp"}
    for x, y in zip(found, expected, strict=False):
        torch.testing.assert_close(x, y)
    assert selection.choices()["cpu"] == before


@pytest.mark.parametrize("n", [3, 5])
def test_what_was_not_chosen_is_not_in_the_graph(everywhere, n):
    choose(["eigh", "eigh_vjp saturate"], n=4)
    assert not gpu.is_operator("eigh", definite(4)), "outside of a compiled function there is no operator"
    assert compiled(by_vectors, definite(n))[2] == {"gpu_eigh"}
    assert list(selection.choices()) == ["cpu"]
    assert len(selection.choices()["cpu"]) == 2


def test_kernel_that_fails_in_a_compiled_function_leaves_the_work_to_torch(everywhere, caplog):
    choose(["eigh_vjp saturate"])
    expected = eager(by_vectors, definite())
    everywhere.setattr(gpu, "_attempt", lambda name, *arguments, **options: gpu.disable_after(f"{name} fails"))
    with caplog.at_level(logging.WARNING, "eigengrad"):
        found = compiled(by_vectors, definite())
    assert found[2] == {"gpu_eigh", "gpu_eigh_vjp"}
    for x, y in zip(found, expected, strict=False):
        torch.testing.assert_close(x, y)
    assert len(caplog.records) == 1
