"""The fused whitening against its composed form, in every layout and mode, and on inputs that break others."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import functional_call, grad, jacrev, jvp, vmap

from eigengrad.nn.group_whitening import _GroupWhiten
from layers_matrix import (
    DEFAULTS,
    DETERMINISTIC,
    DIFFERENTIATES,
    F32,
    F64,
    FORMATS,
    LAYERS,
    REGULAR,
    SHAPES,
    WHITENINGS,
    ZCA,
    features,
    over,
    randomize,
    wavy,
)

GROUPS = 2


def composed(layer, x: Tensor) -> Tensor:
    return _GroupWhiten.composed(x, layer.weight, layer.bias, layer.num_groups, layer.whitening_matrices, None, None)[0]


def gradients(f, layer, x: Tensor) -> tuple[Tensor, ...]:
    wanted = [x, *layer.parameters()]
    return torch.autograd.grad(wavy(f(x)), wanted)


def relative(a: Tensor, b: Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


# Fused and composed ---------------------------------------------------------------------------------------------------


def assert_fused_is_composed(module, x: Tensor) -> None:
    torch.testing.assert_close(module(x), composed(module, x), rtol=1e-10, atol=1e-10)
    pairs = zip(gradients(module, module, x), gradients(lambda x: composed(module, x), module, x), strict=True)
    for got, expected in pairs:  # of points that are all one, the gradient is zero, and in the composed form round-off
        assert (got - expected).norm() < 1e-10 * max(expected.norm(), 1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("memory", [name for name in FORMATS if name != "expanded"])
@pytest.mark.parametrize("ndim", SHAPES)
@over(DEFAULTS)
def test_fused_and_composed_agree_in_every_layout(layer, ndim, memory, affine):
    module = randomize(layer.make(8, ndim, affine=affine, num_groups=GROUPS))
    assert_fused_is_composed(module, FORMATS[memory](features(*SHAPES[ndim])).requires_grad_())


@pytest.mark.parametrize("ndim", SHAPES)
@over(REGULAR)
def test_fused_and_composed_agree_on_expanded_input(layer, ndim):
    module = randomize(layer.make(8, ndim, num_groups=GROUPS))
    assert_fused_is_composed(module, FORMATS["expanded"](features(*SHAPES[ndim])).requires_grad_())


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@over(DETERMINISTIC)
def test_fused_and_composed_agree_for_every_gradient(layer, memory):
    module = randomize(layer.make(8, num_groups=GROUPS))
    assert_fused_is_composed(module, FORMATS[memory](features(*SHAPES[4])).requires_grad_())


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("groups", [1, 6, 32, 64, 96, 192])
def test_groups_merged_into_blocks_do_not_mix(groups, memory):
    module = randomize(ZCA.make(192, num_groups=groups))
    x = FORMATS[memory](features(8, 192, 6, 6)).requires_grad_()
    assert_fused_is_composed(module, x)


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
def test_output_and_gradient_keep_the_memory_format_of_the_input(memory):
    x = FORMATS[memory](features(3, 8, 4, 5)).requires_grad_()
    y = ZCA.make(8)(x)
    wavy(y).backward()
    assert y.stride() == x.stride() == x.grad.stride()


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
def test_an_incoming_gradient_of_another_format_is_understood(memory):
    module = ZCA.make(8)
    x = FORMATS[memory](features(3, 8, 4, 5)).requires_grad_()
    g = features(3, 8, 4, 5, seed=3)
    results = [torch.autograd.grad(module(x), x, f(g))[0] for f in (*FORMATS.values(),) if f is not FORMATS["expanded"]]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("wanted", [("x",), ("weight",), ("bias",), ("x", "bias"), ("weight", "bias")], ids="+".join)
def test_only_what_needs_a_gradient_gets_one(wanted):
    module = ZCA.make(8, num_groups=GROUPS)
    x = features(3, 8, 4, 5)
    leaves = {"x": x, "weight": module.weight, "bias": module.bias}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in wanted)
    chosen = [leaves[name] for name in wanted]
    got = torch.autograd.grad(wavy(module(x)), chosen)
    expected = torch.autograd.grad(wavy(composed(module, x)), chosen)
    for a, b in zip(got, expected, strict=True):
        assert relative(a, b) < 1e-10


def test_backward_twice_through_a_retained_graph_gives_the_same():
    x = features(3, 8, 4, 5).requires_grad_()
    loss = wavy(ZCA.make(8)(x))
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_several_backward_passes_at_once():
    module = ZCA.make(4, 2)
    x = features(6, 4).requires_grad_()
    y = module(x)
    each = torch.eye(y.numel(), dtype=F64).reshape(-1, *y.shape)
    (batched,) = torch.autograd.grad(y, x, each, is_grads_batched=True, retain_graph=True)
    looped = torch.stack([torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in each])
    torch.testing.assert_close(batched, looped, rtol=1e-10, atol=1e-10)


# Derivatives of every order and mode ----------------------------------------------------------------------------------


def function(layer, ndim: int, **options):
    """The layer as a function of x, γ and β, with inputs for it."""
    module = randomize(layer.make(4, ndim, num_groups=GROUPS, track_running_stats=False, **options))
    names = [name for name, _ in module.named_parameters()]

    def f(x, *parameters):
        torch.manual_seed(0)  # for power iteration
        return functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    shape = {2: (7, 4), 4: (2, 4, 2, 2)}[ndim]
    return f, (features(*shape).requires_grad_(), *[p.detach().clone().requires_grad_() for p in module.parameters()])


@pytest.mark.parametrize(("ndim", "affine"), [(2, False), (4, True)], ids=["2-plain", "4-affine"])
@over(DIFFERENTIATES)
def test_gradcheck(layer, ndim, affine):
    assert gradcheck(*function(layer, ndim, affine=affine), fast_mode=layer not in DEFAULTS)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@over([layer for layer in DIFFERENTIATES if layer.deterministic])
def test_gradgradcheck(layer, affine):
    assert gradgradcheck(*function(layer, 2, affine=affine), fast_mode=True)


@over(DETERMINISTIC)
def test_forward_mode_agrees_with_reverse_mode(layer):
    f, inputs = function(layer, 2)
    tangents = tuple(torch.cos(torch.arange(t.numel(), dtype=F64)).reshape(t.shape) for t in inputs)
    y = f(*inputs)
    cotangent = torch.sin(torch.arange(y.numel(), dtype=F64)).reshape(y.shape)
    pulled = torch.autograd.grad(y, inputs, cotangent)
    backward = sum((a * b).sum() for a, b in zip(pulled, tangents, strict=True))
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(t, v) for t, v in zip(inputs, tangents, strict=True)]
        eager = (forward_ad.unpack_dual(f(*duals)).tangent * cotangent).sum()
    functional = (jvp(f, inputs, tangents)[1] * cotangent).sum()
    torch.testing.assert_close(eager, backward, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(functional, backward, rtol=1e-9, atol=1e-9)


@over(DETERMINISTIC)
def test_transforms_of_torch_func_agree_with_autograd(layer):
    f, inputs = function(layer, 2)

    def loss(*args):
        return wavy(f(*args))

    for i in range(len(inputs)):  # also with respect to the parameters alone, where x is a plain tensor
        (expected,) = torch.autograd.grad(loss(*inputs), inputs[i])
        torch.testing.assert_close(grad(loss, i)(*inputs), expected, rtol=1e-9, atol=1e-9)
    x, *parameters = inputs
    stacked = torch.stack([x.detach(), features(*x.shape, seed=5)])
    each = torch.stack([torch.autograd.grad(loss(z.requires_grad_(), *parameters), z)[0] for z in stacked.clone()])
    batched = vmap(lambda z: grad(loss)(z, *parameters))(stacked)
    torch.testing.assert_close(batched, each, rtol=1e-9, atol=1e-9)


def test_jacobian_of_the_layer():
    f, inputs = function(ZCA, 2)
    expected = torch.autograd.functional.jacobian(f, inputs)[0]
    torch.testing.assert_close(jacrev(f)(*inputs), expected, rtol=1e-9, atol=1e-9)


# What breaks others ---------------------------------------------------------------------------------------------------


def plain_autograd(x: Tensor, eps: float) -> Tensor:
    """The layer in plain torch around torch.linalg.eigh."""
    centred = x.T - x.T.mean(1, keepdim=True)
    L, V = torch.linalg.eigh(centred @ centred.T / x.shape[0] + eps * torch.eye(x.shape[1], dtype=x.dtype))
    return (((V * L.clamp(min=eps).rsqrt()) @ V.T) @ centred).T


def one_hot_samples(dtype: torch.dtype) -> Tensor:
    """16 samples of 64 channels, most of them silent in all samples: the null space is exact."""
    x = torch.zeros(16, 64, dtype=dtype)
    x[:, :16] = features(16, 16, dtype=dtype)
    return x


RANK_DEFICIENT = {"random": lambda dtype: features(16, 64, dtype=dtype), "silent channels": one_hot_samples}


@pytest.mark.parametrize("kind", RANK_DEFICIENT)
@over(REGULAR)
def test_gradient_of_16_samples_in_64_channels_is_right_in_float32(layer, kind):
    x = RANK_DEFICIENT[kind](F32)
    options = {"eps": 1e-2}
    found = []
    for dtype in (F32, F64):
        z = x.to(dtype, copy=True).requires_grad_()
        found.append(gradients(layer.make(64, 2, dtype, **options), layer.make(64, 2, dtype, affine=False), z))
    assert relative(found[0][0], found[1][0]) < 1e-4


def test_autograd_through_torch_linalg_eigh_misses_the_same_bar():
    """The reason for this layer: nan where a tie is exact, fewer digits where round-off breaks it."""
    x = one_hot_samples(F32).requires_grad_()
    assert torch.autograd.grad(wavy(plain_autograd(x, 1e-2)), x)[0].isnan().any()
    x = RANK_DEFICIENT["random"](F32)
    found = []
    for dtype in (F32, F64):
        z = x.to(dtype, copy=True).requires_grad_()
        (g,) = torch.autograd.grad(wavy(plain_autograd(z, 1e-2)), z)
        found.append(g)
    assert relative(found[0], found[1]) > 1e-4


DEGENERATE = {
    "zero": lambda x: torch.zeros_like(x),
    "constant": lambda x: torch.full_like(x, 3.0),
    "constant and far": lambda x: torch.full_like(x, 1e4),
    "duplicated channels": lambda x: x[:, :1].expand_as(x).contiguous(),
    "duplicated channels, large": lambda x: 1e3 * x[:, :1].expand_as(x).contiguous(),
    "one silent channel": lambda x: x * (torch.arange(x.shape[1]) > 0).reshape(1, -1, 1, 1),
    "tiny": lambda x: 1e-15 * x,
    "isotropic": lambda x: torch.eye(8).repeat(2, 1).reshape(16, 8, 1, 1),
}


@pytest.mark.parametrize("kind", DEGENERATE)
@over([layer for layer in LAYERS if layer.name not in ("zca-svd", "pca-svd")])
def test_degenerate_inputs_have_finite_outputs_and_gradients(layer, kind):
    if layer.name == "zca-pi" and kind == "duplicated channels, large":
        pytest.skip("plain power iteration has nothing to iterate on when ε is below round-off: the paper's failure")
    x = DEGENERATE[kind](features(4, 8, 3, 3, dtype=F32)).requires_grad_()
    module = layer.make(8, dtype=F32)
    torch.manual_seed(0)
    y = module(x)
    wavy(y).backward()
    for t in (y, x.grad, module.weight.grad, module.bias.grad):
        assert t.isfinite().all()


@over(REGULAR)
@pytest.mark.parametrize("kind", ["constant", "duplicated channels", "one silent channel", "isotropic"])
def test_gradients_at_ties_are_those_of_float64(layer, kind):
    x = DEGENERATE[kind](features(4, 8, 3, 3, dtype=F32))
    found = []
    for dtype in (F32, F64):
        z = x.to(dtype, copy=True).requires_grad_()
        module = layer.make(8, dtype=dtype, eps=1e-2)
        found.append(torch.autograd.grad(wavy(module(z)), z)[0])
    assert relative(*found) < 1e-4


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("mean", [0.0, 3.0, 7.0, 30.0, 1e3])
@over(REGULAR)
def test_a_mean_far_from_zero_costs_no_more_than_its_own_round_off(layer, mean, memory):
    """Against float64 on the same numbers: to 1e-5, or 1e-6 of the mean, of which 6e-8 is the round-off."""
    tolerance = 1e-6 * max(10.0, mean)
    x = FORMATS[memory](features(16, 8, 12, 12, dtype=F32, mean=mean))
    outputs, grads = [], []
    for dtype in (F32, F64):
        z = x.to(dtype, copy=True).requires_grad_()
        module = randomize(layer.make(8, dtype=dtype))
        outputs.append(module(z))
        grads.append(torch.autograd.grad(wavy(outputs[-1]), [z, *module.parameters()]))
    assert relative(*outputs) < tolerance
    for a, b in zip(*grads, strict=True):
        assert relative(a, b) < tolerance


# Memory ---------------------------------------------------------------------------------------------------------------


def kept_for_backward(module, x: Tensor) -> int:
    """Bytes that the graph keeps alive besides the input and the parameters: saved tensors and attributes of nodes."""
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = module(x)
    for value in vars(y.grad_fn).values():
        if isinstance(value, Tensor):
            note(value)
    for known in (x, *module.parameters(), *module.buffers()):
        kept.pop(known.untyped_storage().data_ptr(), None)
    return sum(kept.values())


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("d", [1, 4, 16, 64])
@over(WHITENINGS)
def test_kept_for_backward_are_the_input_and_a_few_matrices_of_size_d(layer, d, memory):
    x = FORMATS[memory](features(8, 64, 16, 16, dtype=F32)).requires_grad_()
    kept = kept_for_backward(layer.make(64, dtype=F32, group_size=d), x)
    assert 0 < kept <= 4 * (8 * 64 * d + 8 * 64)
    if d < 64:
        assert kept < x.nbytes / 4


def test_kept_for_backward_does_not_grow_with_the_batch():
    module = ZCA.make(16, dtype=F32, group_size=4)
    small, large = (kept_for_backward(module, features(n, 16, 8, 8, dtype=F32).requires_grad_()) for n in (2, 32))
    assert small == large


def test_a_parameter_changed_before_backward_is_noticed():
    module = ZCA.make(8)
    y = wavy(module(features(3, 8, 4, 5).requires_grad_()))
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
