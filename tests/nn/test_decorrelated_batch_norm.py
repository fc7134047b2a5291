"""Decorrelated batch norm: the paper's Algorithm 2, its running statistics, and what users of nn.BatchNorm expect."""

import copy
import inspect

import pytest
import torch
from torch import Tensor, nn

from eigengrad import Taylor
from eigengrad.gradients import RULES
from eigengrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from layers_matrix import (
    BATCH_NORM,
    BY_NDIM,
    CHOLESKY,
    DEFAULTS,
    F32,
    F64,
    LAYERS,
    PCA,
    SHAPES,
    WHITENINGS,
    ZCA,
    features,
    group_covariance,
    over,
    randomize,
    textbook,
    wavy,
)

spatial = pytest.mark.parametrize("ndim", SHAPES)


def deviation(y: Tensor, groups: int = 1) -> float:
    """‖cov(y) − I‖, the largest over groups."""
    M = group_covariance(y, groups)
    return torch.linalg.matrix_norm(M - torch.eye(M.shape[-1], dtype=F64)).max().item()


# The algorithm --------------------------------------------------------------------------------------------------------


@spatial
@over(WHITENINGS)
def test_training_output_is_algorithm_2(layer, ndim):
    x = features(*SHAPES[ndim])
    module = randomize(layer.make(8, ndim, group_size=4))
    shape = (1, -1, *[1] * (ndim - 2))
    expected = textbook(x, 4, module.eps, layer.options.get("whitening", "zca"))
    y = (module(x) - module.bias.view(shape)) / module.weight.view(shape)
    if layer.name == "pca":  # rows are determined up to their sign
        y, expected = (t * t.transpose(0, 1).flatten(1)[:, 0].sign().view(shape) for t in (y, expected))
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("d", range(1, 65))
@over(WHITENINGS)
def test_whitening_matrix_whitens_covariance_plus_eps_for_every_group_size(layer, d):
    groups = 128 // d
    x = features(16, groups * d, 8, 8, dtype=F32, seed=d)
    module = layer.make(groups * d, dtype=F32, group_size=d, momentum=1.0)
    module(x)
    S = module.whitening_matrices(module.running_covariance).double()
    identity = torch.eye(d, dtype=F64)
    assert (S @ (group_covariance(x, groups) + 1e-2 * identity) @ S.mT - identity).abs().max() < 1e-4


@pytest.mark.parametrize("d", [1, 7, 64])
@over(WHITENINGS)
def test_output_is_centred_and_white_up_to_eps(layer, d):
    x = features(32, d, 8, 8, dtype=F32, mean=5)
    y = layer.make(d, dtype=F32, eps=1e-6)(x)
    assert y.mean((0, 2, 3)).abs().max() < 1e-4
    assert deviation(y) < 1e-4 * d


def test_zca_turns_the_data_less_than_any_rotation_of_it():
    x = features(64, 8)
    y = {layer.name: textbook(x, 8, 1e-9, layer.name) for layer in WHITENINGS}
    found = {layer.name: layer.make(8, 2, eps=1e-9)(x) for layer in WHITENINGS}
    centred = x - x.mean(0)
    distance = {name: (z - centred).norm().item() for name, z in found.items()}
    assert distance["zca"] < distance["pca"]
    assert distance["zca"] < distance["cholesky"]
    assert distance["zca"] == pytest.approx((y["zca"] - centred).norm().item())


def test_pca_components_come_in_order_of_variance():
    x = features(64, 8)
    S = PCA.make(8, 2).whitening_matrices(group_covariance(x, 1))
    variance = 1 / S.square().sum(-1).squeeze(0)  # rows are λ^(−½) vᵀ
    assert (variance.diff() < 0).all()


def test_cholesky_whitening_is_lower_triangular():
    S = CHOLESKY.make(8).whitening_matrices(group_covariance(features(64, 8), 1))
    assert torch.equal(S, S.tril())
    assert (torch.diagonal(S, dim1=-2, dim2=-1) > 0).all()


def test_a_small_eps_still_clamps_the_spectrum():
    x = features(4, 16)
    S = ZCA.make(16, 2, eps=1e-2).whitening_matrices(group_covariance(x, 1))
    assert torch.linalg.eigvalsh(S).max() <= 10 * (1 + 1e-9)


# Batch norm -----------------------------------------------------------------------------------------------------------


def test_arguments_are_those_of_batch_norm_in_the_same_order():
    ours = inspect.signature(DecorrelatedBatchNorm2d).parameters
    positional = [name for name, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    reference = list(inspect.signature(nn.BatchNorm2d).parameters)
    assert positional == [name for name in reference if name in positional]
    assert {"num_features", "eps", "momentum", "affine", "track_running_stats", "device", "dtype"} <= set(positional)
    first = reference[: reference.index("track_running_stats") + 1]
    assert positional[: len(first)] == first


@spatial
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@over(WHITENINGS)
def test_groups_of_one_are_batch_norm(layer, training, ndim):
    x = features(*SHAPES[ndim])
    ours, theirs = layer.make(8, ndim, eps=1e-5, group_size=1), BATCH_NORM[ndim](8, dtype=F64)
    randomize(ours)
    with torch.no_grad():
        theirs.load_state_dict(
            {**ours.state_dict(), "running_var": ours.running_covariance.flatten().clone()}, strict=False
        )
    found = []
    for module in (ours.train(training), theirs.train(training)):
        z = x.clone().requires_grad_()
        y = module(z)
        found.append((y, *torch.autograd.grad(wavy(y), [z, *module.parameters()])))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)


@pytest.mark.parametrize("kind", [DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d])
@pytest.mark.parametrize("ndim", [1, 2, 3, 4, 5, 6])
def test_dimensions_are_those_of_batch_norm(kind, ndim):
    accepted = [n for n, other in BY_NDIM.items() if other is kind]
    x = torch.randn(5, *[8] * (ndim - 1))
    if ndim in accepted:
        assert kind(8)(x).shape == x.shape
    else:
        with pytest.raises(ValueError, match=f"{kind.__name__}: expected .*{accepted[0]}D.* got {ndim}D"):
            kind(8)(x)


@over(DEFAULTS)
def test_a_wrong_number_of_channels_is_named(layer):
    with pytest.raises(ValueError, match=r"expected 8 channels; got input of shape \(2, 6, 3, 3\)"):
        layer.make(8)(torch.randn(2, 6, 3, 3, dtype=F64))


@pytest.mark.sample(2)
@over(LAYERS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.complex64])
def test_what_is_not_real_is_refused_in_both_modes(layer, training, dtype):
    with pytest.raises(TypeError, match=f"input must be of a floating-point type; got {dtype}"):
        layer.make(8).train(training)(torch.ones(2, 8, 3, 3, dtype=dtype))


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match=r"DecorrelatedBatchNorm2d: input must be a torch\.Tensor; got list"):
        DecorrelatedBatchNorm2d(8)([1.0])


@pytest.mark.parametrize("name", ["group_size", "num_groups"])
def test_groups_that_do_not_divide_list_what_does(name):
    with pytest.raises(ValueError, match=rf"{name}=5 does not divide num_features=12; .*\[1, 2, 3, 4, 6, 12\]"):
        DecorrelatedBatchNorm2d(12, **{name: 5})


BAD = {
    "both": ({"group_size": 2, "num_groups": 2}, "group_size or num_groups, not both"),
    "zero": ({"group_size": 0}, "group_size"),
    "real": ({"num_groups": 2.0}, "num_groups"),
    "eps": ({"eps": 0.0}, "eps"),
    "whitening": ({"whitening": "zac"}, "zac.*zca"),
    "gradient": ({"gradient": "tailor"}, "tailor.*'pi'.*'svd'.*taylor"),
    "cholesky": ({"whitening": "cholesky", "gradient": "taylor"}, "cholesky"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_refused_at_construction(case):
    options, message = BAD[case]
    with pytest.raises((ValueError, TypeError), match=message):
        DecorrelatedBatchNorm2d(4, **options)


@pytest.mark.parametrize(
    ("option", "groups", "size"), [({}, 1, 12), ({"group_size": 3}, 4, 3), ({"num_groups": 3}, 3, 4)]
)
def test_group_size_and_number_of_groups_are_two_ways_to_say_it(option, groups, size):
    module = DecorrelatedBatchNorm2d(12, **option)
    assert (module.num_groups, module.group_size) == (groups, size)
    assert module.running_covariance.shape == (groups, size, size)


@pytest.mark.sample(2)
@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [None, 0.3])
@over(LAYERS)
def test_repr_names_every_option(layer, momentum, affine, track):
    text = repr(layer.make(8, momentum=momentum, affine=affine, track_running_stats=track, group_size=2))
    for part in (f"momentum={momentum}", f"affine={affine}", f"track_running_stats={track}", "group_size=2"):
        assert part in text
    assert str(layer.options.get("whitening", "")) in text
    assert str(layer.options.get("gradient", "")) in text


@pytest.mark.parametrize("gradient", [*RULES, "svd", "pi", Taylor(degree=3)], ids=str)
@pytest.mark.parametrize("whitening", ["zca", "pca"])
def test_every_gradient_is_accepted_by_name_or_as_a_rule(whitening, gradient):
    x = features(32, 4, dtype=F32).requires_grad_()
    module = DecorrelatedBatchNorm1d(4, whitening=whitening, gradient=gradient)
    wavy(module(x)).backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() > 0


def test_default_gradient_is_exact_but_a_rule_for_pca():
    x = features(32, 4)
    for whitening, rule in {"zca": "exact", "pca": "saturate"}.items():
        found = []
        for gradient in (None, rule):
            z = x.clone().requires_grad_()
            module = DecorrelatedBatchNorm1d(4, dtype=F64, whitening=whitening, gradient=gradient)
            found.append(torch.autograd.grad(wavy(module(z)), z)[0])
        assert torch.equal(*found)


# Few points -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 8), (1, 8, 1), (1, 8, 1, 1), (1, 8, 1, 1, 1)])
def test_a_single_element_in_training_raises_as_batch_norm(shape):
    x = torch.randn(*shape)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training") as theirs:
        BATCH_NORM[len(shape)](8)(x)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training") as ours:
        BY_NDIM[len(shape)](8)(x)
    assert str(tuple(shape)) in str(ours.value)
    assert type(ours.value) is type(theirs.value)


def test_a_single_element_in_evaluation_is_fine():
    assert ZCA.make(8).eval()(features(1, 8, 1, 1)).shape == (1, 8, 1, 1)


@over(WHITENINGS)
def test_one_sample_of_several_positions_is_enough(layer):
    x = features(1, 4, 9, 9)
    y = layer.make(4, eps=1e-9)(x)
    assert deviation(y) < 1e-6


@spatial
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("track", [True, False], ids=["tracked", "no stats"])
@over([ZCA])
def test_an_empty_batch_passes_through_and_leaves_the_statistics_alone(layer, track, training, ndim):
    module = randomize(layer.make(8, ndim, group_size=4, track_running_stats=track)).train(training)
    before = copy.deepcopy(module.state_dict())
    x = torch.empty(0, *SHAPES[ndim][1:], dtype=F64, requires_grad=True)
    y = module(x)
    y.sum().backward()
    assert y.shape == x.shape == x.grad.shape
    assert module.weight.grad is None or not module.weight.grad.any()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_non_finite_input_is_named():
    x = features(4, 8, 3, 3)
    x[0, 0] = torch.inf
    with pytest.raises(torch.linalg.LinAlgError, match="non-finite"):
        ZCA.make(8)(x)


# Running statistics ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0, None])
@over(DEFAULTS)
def test_running_mean_and_covariance_are_averages_of_those_of_the_batches(layer, momentum):
    module = layer.make(8, momentum=momentum, group_size=4)
    mean, covariance = torch.zeros(8, dtype=F64), torch.eye(4, dtype=F64).repeat(2, 1, 1)
    for t in range(1, 6):
        x = features(2, 8, 3, 3, seed=t)
        module(x)
        share = 1 / t if momentum is None else momentum
        mean = (1 - share) * mean + share * x.mean((0, 2, 3))
        covariance = (1 - share) * covariance + share * group_covariance(x, 2)
        assert module.num_batches_tracked == t
    torch.testing.assert_close(module.running_mean, mean)
    torch.testing.assert_close(module.running_covariance, covariance)


@over(DEFAULTS)
def test_evaluation_uses_the_matrix_of_the_running_covariance(layer):
    module = randomize(layer.make(8, group_size=4)).eval()
    x = features(3, 8, 4, 5)
    S = module.whitening_matrices(module.running_covariance)
    centred = (x - module.running_mean.view(-1, 1, 1)).reshape(3, 2, 4, 20)
    shape = (1, -1, 1, 1)
    expected = (S @ centred).reshape(x.shape) * module.weight.view(shape) + module.bias.view(shape)
    torch.testing.assert_close(module(x), expected, rtol=1e-10, atol=1e-10)


@over(DEFAULTS)
def test_evaluation_does_not_change_the_state(layer):
    module = randomize(layer.make(8)).eval()
    before = copy.deepcopy(module.state_dict())
    module(features(3, 8, 4, 5))
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("d", [4, 16])
def test_held_out_data_is_whiter_by_the_averaged_covariance_than_by_averaged_whitening_matrices(d):
    """Small batches of 2d points, a cumulative average of 200 of them; the rival averages S, as some code does."""
    module = ZCA.make(d, 2, momentum=None, affine=False, eps=1e-3)
    x = features(400 * d + 20_000, d)
    batches, held_out = x[: 400 * d].split(2 * d), x[400 * d :]
    S = torch.zeros(d, d, dtype=F64)
    for batch in batches:
        module(batch)
        S += module.whitening_matrices(group_covariance(batch, 1))[0] / len(batches)
    ours = deviation(module.eval()(held_out))
    rival = deviation((held_out - module.running_mean) @ S.T)
    print(f"d={d}: |cov − I| by averaged covariance {ours:.3f}, by averaged whitening matrices {rival:.3f}")
    assert ours < 0.25 * d**0.5  # about ½ would be the bias of 2d points in each batch, per direction
    assert 4 * ours < rival


@over(DEFAULTS)
def test_without_statistics_evaluation_is_by_the_batch(layer):
    module = layer.make(8, track_running_stats=False)
    x = features(3, 8, 4, 5)
    assert torch.equal(module.train()(x), module.eval()(x))
    assert not dict(module.named_buffers())
    assert module.running_mean is module.running_covariance is module.num_batches_tracked is None


def test_without_statistics_there_is_no_evaluation_map():
    with pytest.raises(RuntimeError, match="track_running_stats=False"):
        ZCA.make(8, track_running_stats=False).eval().evaluation_map()


@over(DEFAULTS)
def test_frozen_statistics_train_the_rest(layer):
    """Evaluation mode inside training, as for a pretrained backbone: gradients of a fixed affine map."""
    module = randomize(layer.make(8)).eval()
    x = features(3, 8, 4, 5).requires_grad_()
    A, c = module.evaluation_map()
    expected = torch.einsum("cd,ndhw->nchw", A[0], x) + c.view(-1, 1, 1)
    y = module(x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    wanted = [x, module.weight, module.bias]
    pairs = zip(torch.autograd.grad(wavy(y), wanted), torch.autograd.grad(wavy(expected), wanted), strict=True)
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_reset_forgets_statistics_and_parameters():
    module = randomize(ZCA.make(8))
    module(features(3, 8, 4, 5))
    module.reset_parameters()
    fresh = ZCA.make(8).state_dict()
    for name, value in module.state_dict().items():
        assert torch.equal(value, fresh[name])


def test_affine_false_has_no_parameters_and_multiplies_by_nothing():
    module = ZCA.make(8, affine=False)
    x = features(3, 8, 4, 5)
    assert not list(module.parameters())
    assert torch.equal(module(x), ZCA.make(8)(x).detach())


# Evaluation numerics --------------------------------------------------------------------------------------------------


def test_evaluation_far_from_zero_is_accurate_in_float32():
    x = features(16, 8, 12, 12, dtype=F32, mean=1e3)
    found = []
    for dtype in (F32, F64):
        module = ZCA.make(8, dtype=dtype, momentum=1.0)
        module(x.to(dtype))
        found.append(module.eval()(x.to(dtype)).double())
    assert (found[0] - found[1]).abs().max() < 1e-3


def test_statistics_of_the_meta_device_are_made_by_reset_parameters():
    with torch.device("meta"):
        module = DecorrelatedBatchNorm2d(4)
    assert module.running_covariance.is_meta
    module.to_empty(device="cpu").reset_parameters()
    x = features(2, 4, 3, 3, dtype=F32)
    torch.testing.assert_close(module.eval()(x), x / 1.01**0.5)
