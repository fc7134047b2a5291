"""``torch.compile`` and what it does not get along with by itself: transforms, forward mode, sizes that change."""

import copy
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import eigengrad as eg
from eigengrad import _transforms
from eigengrad.nn import (
    DecorrelatedBatchNorm1d,
    DecorrelatedBatchNorm2d,
    IterativeNorm,
    SecondOrderPool2d,
    WhitenColor2d,
)
from eigengrad.nn.functional import second_order_pool, whiten_color

F64 = torch.float64
pytestmark = pytest.mark.usefixtures("dynamo")
TORCH_2_6 = torch.__version__.startswith("2.6.")
whole = pytest.mark.parametrize("fullgraph", [True, False], ids=["fullgraph", "graph breaks"])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# Transforms of torch.func inside a compiled function ------------------------------------------------------------------

WEIGHTS, POINTS = draw(3, 3, seed=1), draw(6, 3, seed=2)
WHITENED = DecorrelatedBatchNorm1d(3, affine=False, track_running_stats=False)
ITERATED = IterativeNorm(3, affine=False, track_running_stats=False)


def positive(A: Tensor) -> Tensor:
    return A @ A.mT + torch.eye(3, dtype=F64)


def weigh(S: Tensor) -> Tensor:
    return (WEIGHTS * S).sum()


def eigenpairs(A: Tensor, **options) -> Tensor:
    L, V = eg.eigh((A + A.mT) / 2, **options)
    return weigh(V.square()) + (L**3).sum()


def singular(A: Tensor) -> Tensor:
    U, S, Vh = eg.svd(A)
    return weigh(U.square()) + weigh((U * S @ Vh) ** 2)


def recolored(A: Tensor) -> Tensor:
    content, style = ((points @ A).T.reshape(1, 3, 2, 3) for points in (POINTS, POINTS.flip(0)))
    return whiten_color(content, style).pow(3).sum()


LOSSES = {
    "eigh": eigenpairs,
    "taylor": lambda A: eigenpairs(A, gradient="taylor"),
    "clip": lambda A: eigenpairs(A, gradient=eg.Clip(50.0)),
    "svd": singular,
    "exp": lambda A: weigh(eg.matrix_exp((A + A.mT) / 2)),
    "sqrt": lambda A: weigh(eg.matrix_sqrt(positive(A), eps=1e-3)),
    "log": lambda A: weigh(eg.matrix_log(positive(A))),
    "inverse": lambda A: weigh(eg.matrix_power(positive(A), -1)),
    "logdet": lambda A: eg.logdet(positive(A)),
    "polar": lambda A: weigh(eg.polar(A).U ** 2),
    "whiten": lambda A: WHITENED(POINTS @ A).pow(3).sum(),
    "iternorm": lambda A: ITERATED(POINTS @ A).pow(3).sum(),
    "pool": lambda A: second_order_pool((POINTS @ A).T.reshape(3, 2, 3)).pow(2).sum(),
    "color": recolored,
}
QUICK = ("eigh", "svd", "sqrt", "log", "whiten")
DIRECTION = WEIGHTS + WEIGHTS.mT
TRANSFORMS = {
    "grad": torch.func.grad,
    "vmap": torch.func.vmap,
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f)),
    "jvp": lambda f: lambda A: torch.func.jvp(f, (A,), (DIRECTION,))[1],
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": torch.func.hessian,
    "grad of grad": lambda f: torch.func.grad(lambda A: torch.func.grad(f)(A).square().sum()),
}


def assert_right(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() < 1e-10 * expected.abs().max()


@pytest.mark.sample(1)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("name", "fullgraph"),
    [
        *(pytest.param(name, True, marks=() if name in QUICK else pytest.mark.slow) for name in LOSSES),
        ("eigh", False),
    ],
)
def test_a_transform_inside_is_what_it_is_outside(name, transform, fullgraph):
    shape = (4, 3, 3) if "vmap" in transform else (3, 3)
    f = TRANSFORMS[transform](LOSSES[name])
    compiled = torch.compile(lambda A: f(A), fullgraph=fullgraph, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="eigengrad")
        for seed in range(2):  # the graph holds no numbers of the first call
            A = draw(*shape, seed=seed)
            assert_right(compiled(A), f(A))


@pytest.mark.slow
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_inside_is_right_by_inductor_too(transform):
    A = draw(4, 3, 3) if "vmap" in transform else draw(3, 3)
    for name in ("eigh", "sqrt"):
        f = TRANSFORMS[transform](LOSSES[name])
        assert_right(torch.compile(lambda A, f=f: f(A), fullgraph=True)(A), f(A))


def test_a_transform_inside_of_a_function_outside_its_domain_is_nan():
    """A graph has no numbers that a check could look at and name, with a transform or without."""
    f = torch.func.grad(lambda A: weigh(eg.matrix_sqrt((A + A.mT) / 2)))
    compiled = torch.compile(lambda A: f(A), fullgraph=True, backend="aot_eager")
    assert compiled(torch.diag(torch.tensor([1.0, -1.0, 2.0], dtype=F64))).isnan().any()


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(name, marks=() if name in ("grad", "vmap of grad", "jvp") else pytest.mark.slow)
        for name in TRANSFORMS
    ],
)
def test_functions_of_the_user_run_uncompiled(transform):
    """matrix_function takes functions that no graph can hold."""
    if TORCH_2_6 and transform == "jacrev":
        pytest.skip("jacrev of a function that torch 2.6 does not compile whole is zero, of torch's own functions too")
    A = draw(4, 3, 3) if "vmap" in transform else draw(3, 3)
    f = TRANSFORMS[transform](
        lambda A: weigh(eg.matrix_function((A + A.mT) / 2, torch.sin, torch.cos, lambda x: -x.sin()))
    )
    assert_right(torch.compile(lambda A: f(A), backend="aot_eager")(A), f(A))


@pytest.mark.sample(1)
@whole
@pytest.mark.parametrize("name", ["eigh", "exp", "whiten"])
def test_the_result_of_a_transform_inside_is_differentiated_from_outside(name, fullgraph):
    def f(A: Tensor) -> Tensor:
        return torch.func.grad(LOSSES[name])(A).square().sum()

    A, other = (draw(3, 3).requires_grad_() for _ in range(2))
    torch.compile(f, fullgraph=fullgraph, backend="aot_eager")(A).backward()
    f(other).backward()
    assert_right(A.grad, other.grad)


class ByTaylor(nn.Module):
    def __init__(self, degree: int) -> None:
        super().__init__()
        self.rule = eg.Taylor(degree=degree)

    def forward(self, A: Tensor) -> Tensor:
        return torch.func.grad(lambda A: eigenpairs(A, gradient=self.rule))(A)


def test_another_rule_makes_another_graph():
    """The compiler does not look into the call, but it does look at what is passed to it."""
    for degree in (1, 5, 9):
        module = ByTaylor(degree)
        # torch 2.6 makes a symbol of the degree, which it then refuses
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=False if TORCH_2_6 else None)
        assert_right(compiled(draw(3, 3)), module(draw(3, 3)))


@pytest.mark.parametrize("kind", [eg.Clip, eg.Lorentzian])
def test_a_rule_made_inside_of_a_number_that_changes_runs_uncompiled_or_is_refused(kind, monkeypatch):
    """From the second value on, the compiler makes a number a symbol."""
    monkeypatch.setattr(_transforms, "_warned", False)

    def f(A: Tensor, number: float) -> Tensor:
        return torch.func.grad(lambda A: eigenpairs(A, gradient=kind(number)))(A)

    compiled, whole = (torch.compile(f, fullgraph=g, backend="aot_eager") for g in (False, True))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in (1.0, 2.0, 3.0):
            assert_right(compiled(draw(3, 3), number), f(draw(3, 3), number))
    if TORCH_2_6:
        pytest.skip("torch 2.6 makes no symbol of the number, but a graph for each")
    assert sum("right, but slower" in str(warning.message) for warning in caught) == 1
    torch._dynamo.reset()
    whole(draw(3, 3), 1.0)
    with pytest.raises(Exception, match="make it outside the compiled function"):
        whole(draw(3, 3), 2.0)


def test_forward_mode_within_forward_mode_inside_is_refused():
    """Torch 2.13 refuses it for every function, and leaves its own state in disorder: in a process of its own."""
    program = """
        import torch, eigengrad as eg
        f = torch.func.jacfwd(torch.func.jacfwd(lambda A: eg.eigh((A + A.mT) / 2).eigenvectors.square().sum()))
        try:
            torch.compile(lambda A: f(A), fullgraph=True, backend="aot_eager")(torch.eye(3))
        except Exception:
            print("refused")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr[-2000:]


# Forward mode without torch.func --------------------------------------------------------------------------------------


def tangent(f, A: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(A, DIRECTION))).tangent


@pytest.mark.sample(1)
@whole
@pytest.mark.parametrize("name", ["eigh", "svd", "exp", "whiten"])
def test_forward_mode_inside_is_right(name, fullgraph):
    A, f = draw(3, 3), LOSSES[name]
    compiled = torch.compile(lambda A: tangent(f, A), fullgraph=fullgraph, backend="aot_eager")
    assert_right(compiled(A), tangent(f, A))


@pytest.mark.parametrize("name", ["eigh", "svd", "exp", "whiten"])
def test_forward_mode_around_runs_uncompiled_or_is_refused(name, monkeypatch):
    """By us, or by torch itself, which from 2.15 on refuses the tangents before our functions are called."""
    monkeypatch.setattr(_transforms, "_warned", False)
    A, f = draw(3, 3), LOSSES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_right(tangent(torch.compile(f, backend="aot_eager"), A), tangent(f, A))
    torch._dynamo.reset()
    reason = r"forward mode around torch\.compile\(fullgraph=True\)|wrap a dual tensor input"
    with pytest.raises(Exception, match=None if TORCH_2_6 else reason) as refused:  # 2.6 keeps the reason to itself
        tangent(torch.compile(f, fullgraph=True, backend="aot_eager"), A)
    by_torch = "wrap a dual tensor input" in str(refused.value)
    assert by_torch or any("right, but slower" in str(warning.message) for warning in caught)


# Sizes that change ----------------------------------------------------------------------------------------------------


class Recolor(nn.Module):
    """Content in the colours of what is made of it, so that networks can be sequential."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.layer = WhitenColor2d(8, groups=2, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, 2 * x.flip(0).transpose(2, 3) + 1)


def between(middle) -> nn.Sequential:
    """Two strides make sizes such as (H − 3)//4, which the compiler can say little about; a convolution follows."""
    first = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2)
    return nn.Sequential(*first, middle, nn.ReLU(), nn.Conv2d(8, 4, 1))


NETWORKS = {
    "zca": lambda: between(DecorrelatedBatchNorm2d(8, group_size=4)),
    "zca, unit stride": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), DecorrelatedBatchNorm2d(8, group_size=4), nn.ReLU(), nn.Conv2d(8, 4, 3)
    ),
    "without parameters": lambda: between(DecorrelatedBatchNorm2d(8, affine=False)),
    "pca": lambda: between(DecorrelatedBatchNorm2d(8, group_size=4, whitening="pca")),
    "cholesky": lambda: between(DecorrelatedBatchNorm2d(8, group_size=4, whitening="cholesky")),
    "iternorm": lambda: between(IterativeNorm(8, group_size=4)),
    "evaluation": lambda: between(DecorrelatedBatchNorm2d(8, group_size=4)).eval(),
    "color": lambda: between(Recolor()),
    "color of the batch": lambda: between(Recolor(per_sample=False, alpha=0.5)),
    "pooled features": lambda: between(SecondOrderPool2d(8, output="features")),
    "pool": lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), SecondOrderPool2d(8, 6)),
    "pool of few positions": lambda: nn.Sequential(nn.Conv2d(3, 64, 3, stride=4), SecondOrderPool2d(64)),
}
SIZES = [(4, 32, 32), (6, 40, 24), (3, 28, 44)]
dynamic = pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "automatic"])
layout = pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])
networks = pytest.mark.parametrize("name", NETWORKS)


def assert_follows_sizes(name: str, dynamic: bool | None, layout: torch.memory_format, backend: str) -> None:
    """Outputs, gradients and statistics of a compiled network are those of the same network uncompiled."""
    torch.manual_seed(0)
    reference = NETWORKS[name]().to(F64, memory_format=layout)
    network = copy.deepcopy(reference)
    compiled = torch.compile(network, fullgraph=True, dynamic=dynamic, backend=backend)
    for seed, (samples, height, width) in enumerate(SIZES):
        results = []
        for net in (compiled, reference):
            x = draw(samples, 3, height, width, seed=seed).contiguous(memory_format=layout).requires_grad_()
            net.zero_grad()
            y = net(x)
            y.sin().sum().backward()
            parameters = {key: p.grad for key, p in net.named_parameters()}
            results.append([y.detach(), x.grad, *parameters.values(), *net.state_dict().values()])
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_graph_of_a_whitening_layer_follows_sizes():
    assert_follows_sizes("zca", True, torch.contiguous_format, "aot_eager")


@pytest.mark.slow
@dynamic
@layout
@networks
def test_a_graph_follows_sizes(name, dynamic, layout):
    torch._dynamo.utils.counters.clear()
    assert_follows_sizes(name, dynamic, layout, "aot_eager")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # H = W to begin with, or one size


@pytest.mark.slow
@dynamic
@layout
@networks
def test_inductor_follows_sizes(name, dynamic, layout):
    """(In torch 2.13 convolutions alone have Inductor compile again for each H and W.)"""
    assert_follows_sizes(name, dynamic, layout, "inductor")


@pytest.mark.slow
@dynamic
@pytest.mark.parametrize("layer", [DecorrelatedBatchNorm1d, IterativeNorm])
def test_inductor_follows_lengths_and_batches(layer, dynamic):
    for shapes in ([(16, 8), (24, 8), (40, 8)], [(4, 8, 9), (6, 8, 7), (5, 8, 12)]):
        torch._dynamo.reset()
        reference = layer(8, group_size=4, dtype=F64)
        compiled = torch.compile(copy.deepcopy(reference), fullgraph=True, dynamic=dynamic)
        for shape in shapes:
            x, other = (draw(*shape).requires_grad_() for _ in range(2))
            compiled(x).sin().sum().backward()
            reference(other).sin().sum().backward()
            torch.testing.assert_close(x.grad, other.grad, rtol=1e-9, atol=1e-9)
