"""Batch norms replaced by decorrelated ones: the same function in evaluation, and the ones that were asked for."""

import pytest
import torch
from torch import nn

from eigengrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d
from layers_matrix import BATCH_NORM, F64, SHAPES, features

OURS = (DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, DecorrelatedBatchNorm3d)
convert = DecorrelatedBatchNorm2d.convert_batchnorm


def model(dtype: torch.dtype = F64) -> nn.Module:
    """Batch norms at several depths, with statistics and parameters of their own."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12, momentum=None), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6, affine=False))
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU(), block, head).to(dtype)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    for seed in range(4):
        net(features(6, 3, 7, 7, dtype=dtype, seed=seed))
    return net


NAMES = ["1", "3.1", "4.3"]


def converted(net: nn.Module) -> list[str]:
    return [name for name, m in net.named_modules() if isinstance(m, OURS)]


@pytest.mark.parametrize("group_size", [None, 1, 4, 5])
@pytest.mark.parametrize("whitening", ["zca", "cholesky"])
def test_converted_model_is_the_same_function_in_evaluation(whitening, group_size):
    x = features(5, 3, 7, 7)
    net = model().eval()
    expected = net(x)
    found = convert(net, whitening=whitening, group_size=group_size)
    assert converted(found) == NAMES
    torch.testing.assert_close(found(x), expected, rtol=1e-10, atol=1e-10)


def test_converted_layer_keeps_what_the_batch_norm_had():
    net = model()
    old = dict(net.named_modules())
    old = {name: old[name] for name in NAMES}
    found = convert(net)
    for name, norm in old.items():
        layer = found.get_submodule(name)
        for option in ("num_features", "eps", "momentum", "affine", "track_running_stats", "training"):
            assert getattr(layer, option) == getattr(norm, option)
        assert torch.equal(layer.running_mean, norm.running_mean)
        assert torch.equal(torch.diagonal(layer.running_covariance, dim1=-2, dim2=-1).flatten(), norm.running_var)
        assert layer.num_batches_tracked == norm.num_batches_tracked == 4
        assert layer.running_mean.dtype == F64
        if norm.affine:
            assert torch.equal(layer.weight, norm.weight)
            assert torch.equal(layer.bias, norm.bias)


def test_frozen_parameters_stay_frozen():
    net = model()
    net[1].requires_grad_(False)
    found = convert(net)
    assert not any(p.requires_grad for p in found[1].parameters())
    assert all(p.requires_grad for p in found[3].parameters())


def test_an_optimizer_made_before_still_trains_the_converted_model():
    """As after SyncBatchNorm.convert_sync_batchnorm, which keeps the parameters themselves."""
    net = model()
    parameters = set(map(id, net.parameters()))
    assert set(map(id, convert(net).parameters())) == parameters


@pytest.mark.parametrize("names", [[], ["3.1"], ["4.3", "1"], NAMES])
def test_names_choose(names):
    assert converted(convert(model(), names=names)) == sorted(names)


@pytest.mark.parametrize("first", [0, 1, 2, 3, 9])
def test_first_chooses_by_position(first):
    assert converted(convert(model(), first=first)) == NAMES[:first]


def test_first_counts_among_the_names():
    assert converted(convert(model(), names=["4.3", "3.1"], first=1)) == ["3.1"]


def test_a_name_that_does_not_exist_lists_those_that_do():
    with pytest.raises(ValueError, match=r"'3.2'.*'1', '3.1', '4.3'"):
        convert(model(), names=["3.2", "1"])


@pytest.mark.parametrize("ndim", SHAPES)
def test_a_batch_norm_alone_is_converted_to_its_kind(ndim):
    norm = BATCH_NORM[ndim](8)
    found = convert(norm)
    assert type(found).__name__ == f"Decorrelated{type(norm).__name__}"
    assert found(features(*SHAPES[ndim], dtype=torch.float32)).shape == SHAPES[ndim]


def test_a_group_size_that_does_not_divide_falls_back_to_the_common_divisor():
    found = convert(model(), group_size=8)
    assert [found.get_submodule(name).group_size for name in NAMES] == [8, 4, 2]


def test_options_reach_the_new_layers():
    found = convert(model(), names=["1"], eps=1e-2, whitening="pca", gradient="clip", process_group="world")[1]
    assert (found.eps, found.whitening, found.gradient, found.process_group) == (1e-2, "pca", "clip", "world")


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
def test_batch_norms_without_parameters_or_statistics_are_converted(track, affine):
    norm = nn.BatchNorm2d(8, affine=affine, track_running_stats=track, dtype=F64)
    layer = convert(norm)
    assert (layer.affine, layer.track_running_stats) == (affine, track)
    x = features(4, 8, 5, 5)
    assert layer(x).dtype == F64


def test_a_batch_norm_used_in_two_places_stays_one_layer():
    norm = nn.BatchNorm2d(8)
    found = convert(nn.Sequential(norm, nn.ReLU(), norm))
    assert isinstance(found[0], DecorrelatedBatchNorm2d)
    assert found[2] is found[0]


def test_other_modules_are_left_alone():
    net = model()
    others = {name: m for name, m in net.named_modules() if name and name not in NAMES}
    found = dict(convert(net).named_modules())
    assert all(found[name] is m for name, m in others.items())
    assert convert(nn.ReLU()).__class__ is nn.ReLU


def test_a_converted_model_trains():
    net = convert(model(), group_size=4, eps=1e-2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, target = features(16, 3, 7, 7), torch.arange(16) % 6
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_a_batch_norm_without_bias_stays_without():
    norm = nn.BatchNorm2d(8)
    norm.bias = None  # what BatchNorm2d(8, bias=False) is in a torch that has the argument
    converted = DecorrelatedBatchNorm2d.convert_batchnorm(norm, group_size=4)
    assert converted.bias is None
    assert converted.weight is norm.weight


def test_what_fails_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(9))
    with pytest.raises(ValueError, match="does not divide num_features=9"):
        DecorrelatedBatchNorm2d.convert_batchnorm(model, num_groups=4)
    assert [type(layer) for layer in model] == [nn.BatchNorm2d] * 2


def test_what_was_done_to_a_batch_norm_after_it_was_made_is_kept():
    frozen, bare = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    frozen.running_mean.fill_(3)
    frozen.track_running_stats = False
    converted = DecorrelatedBatchNorm2d.convert_batchnorm(frozen)
    assert not converted.track_running_stats
    assert torch.equal(converted.running_mean, torch.full((4,), 3.0))
    bare.running_mean = bare.running_var = None
    assert DecorrelatedBatchNorm2d.convert_batchnorm(bare).running_mean is None
