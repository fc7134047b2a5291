"""The networks: their sizes, where the normalisation under test sits, and that gradients reach every weight."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from eigengrad.gradients import PowerIteration, Taylor
from eigengrad.lab.models import MODELS, POOLINGS, build, normalisation
from eigengrad.nn import DecorrelatedBatchNorm2d, IterativeNorm, SecondOrderPool2d
from eigengrad.nn.second_order_pool import METHODS

#: Input channels and image size at which each model is tried, slim.
INPUTS = {"convnet": (1, 8), "resnet18": (3, 32), "resnet50": (3, 32), "alexnet": (3, 128), "alexnet_mpncov": (3, 99)}

BATCHNORM = normalisation("batchnorm")
NONE = normalisation("none")


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def slim(name: str, classes: int = 5, **options) -> nn.Module:
    channels, size = INPUTS[name]
    options = {"norm": normalisation("dbn", group_size=4, gradient="exact")} | options
    return build(name, classes, stem_width=16, width=8, in_channels=channels, image_size=size, **options)


def without_dropout(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def images(name: str, count: int = 4) -> torch.Tensor:
    channels, size = INPUTS[name]
    return torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_every_model_is_tried():
    assert set(INPUTS) == set(MODELS)


# Sizes. torchvision's totals for 1000 classes are public: 11,689,512 (ResNet-18), 25,557,032 (ResNet-50), 61,100,840
# (AlexNet). Ours differ by the stem, 3·3·3·64 where theirs is 7·7·3·64, and by the classes.


@pytest.mark.parametrize(("name", "total", "features"), [("resnet18", 11_689_512, 512), ("resnet50", 25_557_032, 2048)])
@pytest.mark.parametrize("classes", [10, 100])
def test_resnets_have_torchvisions_parameters_but_for_the_stem_and_the_classes(name, total, features, classes):
    stem = (7 * 7 - 3 * 3) * 3 * 64
    fewer_classes = (1000 - classes) * (features + 1)
    assert parameters(build(name, classes, norm=BATCHNORM)) == total - stem - fewer_classes


def test_alexnet_with_its_own_head_has_torchvisions_parameters():
    assert parameters(build("alexnet", 1000, norm=NONE, pooling="average", image_size=224)) == 61_100_840


def test_alexnet_pools_256_channels_of_256_pixel_images():
    model = build("alexnet", 1000, norm=NONE, pooling="svd_taylor", image_size=256)
    assert isinstance(model.pool, SecondOrderPool2d)
    assert model.pool.reduction.weight.shape == (256, 256, 1, 1)
    assert model.classifier.weight.shape == (1000, 256 * 257 // 2)
    # torchvision's convolutions have 2,469,696 parameters.
    assert parameters(model) == 2_469_696 + 256 * 256 + 1000 * (256 * 257 // 2 + 1)
    with torch.no_grad():
        assert model.features(torch.zeros(1, 3, 256, 256)).shape == (1, 256, 15, 15)


def test_mpn_cov_trains_alexnet_with_groups_batch_norm_and_all_fully_connected_layers():
    model = build("alexnet_mpncov", 1000, norm=BATCHNORM, pooling="mpn_cov", stem_width=96, image_size=227)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [(m.out_channels, m.groups) for m in convolutions] == [(96, 1), (256, 2), (384, 1), (384, 2), (256, 2)]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 5
    assert model.pool.reduction is None
    linear = [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]
    assert linear == [(256 * 257 // 2, 4096), (4096, 4096), (4096, 1000)]
    with torch.no_grad():
        assert model.features(torch.zeros(1, 3, 227, 227)).shape == (1, 256, 13, 13)
    own = build("alexnet_mpncov", 1000, norm=BATCHNORM, pooling="average", stem_width=96, image_size=227)
    assert next(m for m in own.modules() if isinstance(m, nn.Linear)).in_features == 9216


@pytest.mark.parametrize(("pooling", "size"), [("exact", 35), ("average", 67)])
def test_the_smallest_image_of_mpn_covs_alexnet_works(pooling, size):
    options = {"norm": BATCHNORM, "pooling": pooling, "stem_width": 8, "width": 4}
    assert build("alexnet_mpncov", 3, **options, image_size=size)(torch.randn(2, 3, size, size)).shape == (2, 3)
    with pytest.raises(ValueError, match=f"image_size must be at least {size}"):
        build("alexnet_mpncov", 3, **options, image_size=size - 1)


def test_decorrelation_has_as_many_parameters_as_batch_norm():
    norms = [normalisation(name, group_size=8) for name in ("dbn", "batchnorm", "iternorm")]
    assert len({parameters(slim("resnet18", norm=norm)) for norm in norms}) == 1


def test_table_2_of_the_paper():
    model = build("resnet18", 10, norm=normalisation("dbn", group_size=64))
    assert (model.conv1.kernel_size, model.conv1.stride, model.conv1.out_channels) == ((3, 3), (1, 1), 64)
    assert isinstance(model.bn1, DecorrelatedBatchNorm2d)
    assert not any(isinstance(m, nn.MaxPool2d) for m in model.modules())
    strides = [stage[0].conv1.stride[0] for stage in (model.layer1, model.layer2, model.layer3, model.layer4)]
    assert strides == [1, 2, 2, 2]
    assert [m.kernel_size for m in model.modules() if isinstance(m, nn.AvgPool2d)] == [4]
    shapes = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda m, args, y: shapes.append(tuple(y.shape[1:])))
    with torch.no_grad():
        model(torch.randn(2, 3, 32, 32))
    assert shapes == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]


def test_resnet50_has_its_strides_in_the_3x3_convolutions():
    model = build("resnet50", 10, norm=BATCHNORM, width=8)
    assert [len(s) for s in (model.layer1, model.layer2, model.layer3, model.layer4)] == [3, 4, 6, 3]
    assert [s[0].conv2.stride[0] for s in (model.layer1, model.layer2, model.layer3, model.layer4)] == [1, 2, 2, 2]
    assert all(m.stride == (1, 1) for n, m in model.named_modules() if n.endswith(("conv1", "conv3")))


def test_images_of_64_pixels_leave_four_averages():
    """Tiny ImageNet: 8×8 maps, of which 4×4 averages leave 2×2."""
    model = build("resnet18", 200, norm=BATCHNORM, width=8, image_size=64)
    assert model.fc.in_features == 64 * 4
    with torch.no_grad():
        assert model(torch.randn(2, 3, 64, 64)).shape == (2, 200)


@pytest.mark.parametrize("size", [8, 20, 32, 37, 40])
def test_resnet_takes_every_size_it_is_built_for(size):
    model = build("resnet18", 3, norm=BATCHNORM, width=4, image_size=size)
    with torch.no_grad():
        assert model(torch.randn(2, 3, size, size)).shape == (2, 3)


def test_stem_and_blocks_have_widths_of_their_own():
    model = build("resnet18", 10, norm=normalisation("dbn", group_size=64), stem_width=64, width=16)
    assert model.bn1.num_features == 64
    assert model.layer1[0].conv1.weight.shape == (16, 64, 3, 3)
    assert model.layer1[0].downsample is not None
    assert model.layer4[-1].conv2.out_channels == 128


# The normalisation under test.


@pytest.mark.parametrize("name", MODELS)
def test_the_norm_under_test_follows_the_first_convolution_and_is_nowhere_else(name):
    asked = []

    def norm(channels):
        asked.append(channels)
        return DecorrelatedBatchNorm2d(channels, group_size=4)

    model = slim(name, norm=norm, pooling="exact" if name.startswith("alexnet") else "average")
    assert asked == [16]
    order = [m for m in model.modules() if isinstance(m, (nn.Conv2d, DecorrelatedBatchNorm2d))]
    assert isinstance(order[0], nn.Conv2d)
    assert isinstance(order[1], DecorrelatedBatchNorm2d)
    assert sum(isinstance(m, DecorrelatedBatchNorm2d) for m in model.modules()) == 1


@pytest.mark.parametrize("gradient", ["exact", "taylor", "clip", "power_iteration", "svd", "pi"])
def test_normalisation_by_name(gradient):
    layer = normalisation("dbn", group_size=8, gradient=gradient, degree=5, eps=0.02)(32)
    assert (layer.num_features, layer.group_size, layer.eps) == (32, 8, 0.02)
    rules = {"taylor": Taylor(degree=5, eps=0.02), "power_iteration": PowerIteration(steps=6, eps=0.02, inclusive=True)}
    assert layer.gradient == rules.get(gradient, gradient)


def test_other_normalisations_by_name():
    assert isinstance(BATCHNORM(32), nn.BatchNorm2d)
    assert isinstance(NONE(32), nn.Identity)
    layer = normalisation("iternorm", group_size=8)(32)
    assert isinstance(layer, IterativeNorm)
    assert layer.group_size == 8


# Training.


@pytest.mark.parametrize("name", MODELS)
def test_gradients_reach_every_weight(name):
    torch.manual_seed(0)
    model = slim(name, pooling="exact" if name.startswith("alexnet") else "average")
    nn.functional.cross_entropy(model(images(name)), torch.tensor([0, 1, 2, 3])).backward()
    for parameter_name, p in model.named_parameters():
        assert p.grad is not None, parameter_name
        assert torch.isfinite(p.grad).all(), parameter_name
        if parameter_name != "features.0.bias":  # centring takes it away
            assert p.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize("name", MODELS)
def test_channels_last_computes_the_same(name):
    torch.manual_seed(0)
    model = slim(name, pooling="exact" if name.startswith("alexnet") else "average").double()
    without_dropout(model)
    x = images(name).double()
    expected = model(x)
    got = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_of_an_image_does_not_depend_on_its_neighbours(name):
    torch.manual_seed(0)
    model = slim(name, pooling="exact" if name.startswith("alexnet") else "average").double()
    without_dropout(model)
    x = images(name).double()
    model(x)
    model.eval()
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pooling", METHODS)
@pytest.mark.parametrize("name", ["alexnet", "convnet"])
def test_every_pooling_trains(name, pooling):
    """A few steps on one batch bring its loss down, for all nine methods of the paper's table."""
    torch.manual_seed(0)
    model = slim(name, pooling=pooling, norm=BATCHNORM)
    x, y = images(name, 8), torch.arange(8) % 5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(8):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_there_are_eleven_poolings_and_the_average():
    assert len(METHODS) == 11
    assert ("average", *METHODS) == POOLINGS


def test_weights_come_from_the_seed():
    first, again, other = (torch.manual_seed(s) and slim("resnet18").state_dict() for s in (1, 1, 2))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


# Errors.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: build("resnet19", 10, norm=BATCHNORM),
            r"model: got 'resnet19'; expected one of 'alexnet', 'alexnet_mpncov', 'convnet'",
        ),
        (
            lambda: build("resnet18", 10, norm=BATCHNORM, pooling="max"),
            r"pooling: got 'max'; expected one of 'average'",
        ),
        (lambda: build("alexnet", 10, norm=NONE, pooling="max", image_size=64), r"pooling: got 'max'"),
        (lambda: build("resnet18", 0, norm=BATCHNORM), r"build\('resnet18'\): classes must be at least 1; got 0"),
        (lambda: build("resnet18", 10, norm=BATCHNORM, width=0), r"width must be at least 1; got 0"),
        (lambda: build("alexnet", 10, norm=NONE, pooling="exact", image_size=30), r"image_size must be at least 31"),
        (lambda: build("alexnet", 10, norm=NONE, pooling="average", image_size=62), r"image_size must be at least 63"),
        (lambda: normalisation("layernorm"), r"norm: got 'layernorm'; expected one of 'batchnorm', 'dbn'"),
        (lambda: normalisation("dbn", gradient="tailor"), r"gradient: got 'tailor'; expected one of 'clip', 'exact'"),
        (lambda: normalisation("dbn", gradient="taylor", degree=-1), r"degree must be at least 0; got -1"),
        (lambda: normalisation("dbn", group_size=48)(64), r"group_size=48 does not divide num_features=64"),
    ],
)
def test_bad_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("pooling", "size"), [("exact", 31), ("average", 63)])
def test_the_smallest_image_of_alexnet_works(pooling, size):
    model = build("alexnet", 3, norm=NONE, pooling=pooling, stem_width=8, width=4, image_size=size)
    assert model(torch.randn(2, 3, size, size)).shape == (2, 3)


def test_nothing_imports_torchvision():
    code = "import sys, eigengrad.lab.models, eigengrad.lab.data; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
