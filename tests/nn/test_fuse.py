"""A whitening layer folded into the layer before it: the same function, and what cannot be folded."""

import copy

import pytest
import torch
from torch import nn

from eigengrad.nn import DecorrelatedBatchNorm2d, fuse_conv_dbn
from layers_matrix import BY_NDIM, DEFAULTS, F32, F64, ZCA, features, over, randomize

BEFORE = {
    "linear": (lambda **o: nn.Linear(6, 8, **o), (5, 6)),
    "conv1d": (lambda **o: nn.Conv1d(6, 8, 3, padding=1, **o), (2, 6, 9)),
    "conv2d": (lambda **o: nn.Conv2d(6, 8, 3, stride=2, padding=1, dilation=2, **o), (2, 6, 9, 9)),
    "conv2d reflect": (lambda **o: nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect", **o), (2, 6, 5, 5)),
    "conv2d in 2 groups": (lambda **o: nn.Conv2d(6, 8, 3, groups=2, **o), (2, 6, 5, 5)),
    "conv3d": (lambda **o: nn.Conv3d(6, 8, 2, **o), (2, 6, 3, 4, 3)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("before", BEFORE)
@over(DEFAULTS)
def test_folded_layer_is_the_same_function(layer, before, bias, affine):
    torch.manual_seed(0)
    make, shape = BEFORE[before]
    linear = make(bias=bias, dtype=F64)
    norm = randomize(layer.make(8, len(shape), affine=affine, group_size=4)).eval()
    x = features(*shape)
    fused = fuse_conv_dbn(linear, norm)
    assert type(fused) is type(linear)
    torch.testing.assert_close(fused(x), norm(linear(x)), rtol=1e-11, atol=1e-11)


def test_arguments_are_not_changed_and_nothing_is_shared():
    linear, norm = nn.Conv2d(6, 8, 3, dtype=F64), randomize(ZCA.make(8)).eval()
    before = copy.deepcopy((linear.state_dict(), norm.state_dict()))
    fused = fuse_conv_dbn(linear, norm)
    with torch.no_grad():
        for p in fused.parameters():
            p.zero_()
    for state, old in zip((linear.state_dict(), norm.state_dict()), before, strict=True):
        for name, value in state.items():
            assert torch.equal(value, old[name])


def test_folded_layer_trains_and_has_a_state():
    fused = fuse_conv_dbn(nn.Conv2d(6, 8, 3, bias=False, dtype=F64), ZCA.make(8).eval())
    assert set(dict(fused.named_parameters())) == {"weight", "bias"}
    fused(features(2, 6, 5, 5)).sum().backward()
    assert fused.weight.grad is not None
    assert fused.bias.grad is not None
    target = nn.Conv2d(6, 8, 3, dtype=F64)
    target.load_state_dict(fused.state_dict())


def test_float32_statistics_fold_into_float32_weights_to_round_off():
    torch.manual_seed(0)
    linear, norm = nn.Conv2d(6, 8, 3), randomize(ZCA.make(8, dtype=F32)).eval()
    x = features(2, 6, 5, 5, dtype=F32)
    torch.testing.assert_close(fuse_conv_dbn(linear, norm)(x), norm(linear(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_groups_of_the_convolution_may_hold_several_groups_of_the_norm(d):
    linear, norm = nn.Conv2d(8, 8, 3, groups=2, dtype=F64), randomize(ZCA.make(8, group_size=d)).eval()
    x = features(2, 8, 5, 5)
    torch.testing.assert_close(fuse_conv_dbn(linear, norm)(x), norm(linear(x)), rtol=1e-11, atol=1e-11)


def test_groups_of_the_norm_that_cross_those_of_the_convolution_are_refused():
    with pytest.raises(ValueError, match="groups of 4 outputs, dbn mixes groups of 8"):
        fuse_conv_dbn(nn.Conv2d(8, 8, 3, groups=2), DecorrelatedBatchNorm2d(8).eval())


def test_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"training mode.*eval\(\)"):
        fuse_conv_dbn(nn.Conv2d(3, 8, 3), DecorrelatedBatchNorm2d(8))


def test_a_wrong_number_of_channels_is_refused():
    with pytest.raises(ValueError, match="6 outputs, but dbn expects 8"):
        fuse_conv_dbn(nn.Conv2d(3, 6, 3), DecorrelatedBatchNorm2d(8).eval())


def test_a_layer_without_statistics_is_refused():
    with pytest.raises((ValueError, RuntimeError), match="track_running_stats=False"):
        fuse_conv_dbn(nn.Conv2d(3, 8, 3), DecorrelatedBatchNorm2d(8, track_running_stats=False).eval())


@pytest.mark.parametrize(
    "other",
    [nn.ConvTranspose2d(8, 8, 3), nn.Embedding(8, 4), nn.Bilinear(8, 8, 8), nn.ReLU()],
    ids=lambda m: type(m).__name__,
)
def test_what_is_no_convolution_or_linear_layer_is_refused(other):
    """A transposed convolution has its outputs in the second dimension: folding over the first is silently wrong."""
    with pytest.raises(TypeError, match=type(other).__name__):
        fuse_conv_dbn(other, DecorrelatedBatchNorm2d(8).eval())


def test_every_kind_of_norm_can_be_folded():
    for ndim, kind in BY_NDIM.items():
        linear = {2: nn.Linear(3, 8), 3: nn.Conv1d(3, 8, 1), 4: nn.Conv2d(3, 8, 1), 5: nn.Conv3d(3, 8, 1)}[ndim]
        x = torch.randn(4, 3, *[2] * (ndim - 2), generator=torch.Generator().manual_seed(0))
        norm = randomize(kind(8)).eval()
        torch.testing.assert_close(fuse_conv_dbn(linear, norm)(x), norm(linear(x)), rtol=1e-4, atol=1e-4)


def test_what_is_fused_is_in_full_precision_as_frozen_and_as_it_lies_in_memory():
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    dbn = randomize(ZCA.make(8, dtype=F32)).eval()
    with torch.autocast("cpu"):
        fused = fuse_conv_dbn(conv, dbn)
    assert fused.weight.dtype == fused.bias.dtype == F32
    assert fused.weight.is_contiguous(memory_format=torch.channels_last)
    assert fused.weight.requires_grad
    x = features(2, 3, 9, 9, dtype=F32)
    torch.testing.assert_close(fused(x), dbn(conv(x)), rtol=1e-4, atol=1e-5)
    for parameter in (*conv.parameters(), *dbn.parameters()):
        parameter.requires_grad_(False)
    assert not fuse_conv_dbn(conv, dbn).weight.requires_grad
    nn.utils.parametrize.register_parametrization(conv, "bias", nn.Identity())
    with pytest.raises(ValueError, match="the bias of conv is computed"):
        fuse_conv_dbn(conv, dbn)
