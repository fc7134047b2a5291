"""The layers as modules among others: default devices, layouts, views of the output, exports, changes after eval()."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import eigengrad as eg
from eigengrad.nn import DecorrelatedBatchNorm2d, IterativeNorm, WhitenColor2d, fuse_conv_dbn
from eigengrad.nn.functional import covariance, second_order_pool, whitening_matrix

LAST = torch.channels_last


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(8, 8, 5, 5)


def trained(x, layer=None):
    layer = layer or DecorrelatedBatchNorm2d(8, group_size=4)
    layer(x)
    return layer.eval()


# Where things are -----------------------------------------------------------------------------------------------------


def test_the_default_device_is_not_where_kernels_work():
    """In a process of its own: what goes wrong here is a segmentation fault."""
    program = """if True:
        import torch, eigengrad as eg
        from eigengrad.nn import DecorrelatedBatchNorm2d, WhitenColor2d
        x = torch.randn(2, 4, 3, 3, requires_grad=True)
        expected, A = DecorrelatedBatchNorm2d(4)(x), torch.eye(3).requires_grad_()
        layer = DecorrelatedBatchNorm2d(4)
        torch.set_default_device("meta")
        y = layer(x)
        y.sum().backward()
        assert torch.equal(y, expected) and x.grad.device.type == "cpu"
        assert WhitenColor2d(4)(x, x).device.type == "cpu"
        (eg.eigh(A).eigenvectors.sum() + eg.matrix_sqrt(A).sum()).backward()
        assert A.grad.device.type == "cpu"
        assert DecorrelatedBatchNorm2d(4).weight.device.type == "meta"
    """
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("layer", [DecorrelatedBatchNorm2d, IterativeNorm])
def test_channels_last_stays_in_both_modes(x, layer):
    last, norm = x.to(memory_format=LAST), layer(8, group_size=4)
    assert norm(last).is_contiguous(memory_format=LAST)
    with torch.inference_mode():
        assert norm(last).is_contiguous(memory_format=LAST)
    norm.eval()
    assert norm(last).is_contiguous(memory_format=LAST)
    torch.testing.assert_close(norm(last), norm(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("per_sample", [True, False])
def test_channels_last_stays_in_recolouring(x, per_sample):
    last, layer = x.to(memory_format=LAST), WhitenColor2d(8, groups=2, per_sample=per_sample)
    y = layer(last, 2 * last + 1)
    assert y.is_contiguous(memory_format=LAST)
    torch.testing.assert_close(y, layer(x, 2 * x + 1), rtol=1e-4, atol=1e-4)


def test_the_output_can_be_viewed_wherever_it_is_computed(x):
    layer = DecorrelatedBatchNorm2d(8, track_running_stats=False).eval()

    def flat(z):
        return layer(z).view(8, -1)

    expected = flat(x)
    with torch.inference_mode():
        torch.testing.assert_close(flat(x), expected, rtol=1e-4, atol=1e-4)
    compiled = torch.compile(flat, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.func.jvp(flat, (x,), (x,))[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.func.vmap(flat)(x[None])[0], expected, rtol=1e-4, atol=1e-4)


def test_a_tensor_that_has_outlived_its_transform_is_a_tensor(x):
    kept = []
    torch.func.grad(lambda z: (kept.append(z + 0), z.sum())[1])(x)
    torch.testing.assert_close(DecorrelatedBatchNorm2d(8)(kept[0]), DecorrelatedBatchNorm2d(8)(x))
    torch.func.grad(lambda z: (kept.append(z + 0), z.sum())[1])(torch.eye(4) * 2)
    assert torch.equal(eg.eigh(kept[1]).eigenvalues, torch.full((4,), 2.0))


def test_views_that_negate_are_read_with_their_sign(x):
    negated = torch._neg_view(x)
    layer = DecorrelatedBatchNorm2d(8)
    torch.testing.assert_close(layer(negated), layer(-x))
    z = x.clone().requires_grad_()
    y = layer(z)
    (one,) = torch.autograd.grad(y, z, negated, retain_graph=True)
    (other,) = torch.autograd.grad(y, z, -x)
    torch.testing.assert_close(one, other)


# S of the running statistics ------------------------------------------------------------------------------------------


CHANGES = {
    "nothing": lambda layer: None,
    "in place": lambda layer: layer.running_covariance.mul_(4.0),
    "copied": lambda layer: layer.running_covariance.copy_(3 * torch.eye(4).expand(2, 4, 4)),
    "eps": lambda layer: setattr(layer, "eps", 3.0),
    "loaded": lambda layer: layer.load_state_dict({**layer.state_dict(), "running_mean": torch.ones(8)}),
    "type": lambda layer: layer.double(),
    "whitening": lambda layer: setattr(layer, "whitening", "cholesky"),
}


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize("change", CHANGES)
def test_an_export_after_a_change_is_of_the_changed_layer(x, change, strict):
    layer = trained(x)
    CHANGES[change](layer)
    z = x.to(layer.weight.dtype)
    with torch.no_grad():
        exported = torch.export.export(layer, (z,), strict=strict).module()
        torch.testing.assert_close(exported(z), layer(z))


def test_an_export_has_s_as_a_constant(x):
    program = torch.export.export(trained(x), (x,), strict=False)  # strict exports of torch 2.6 cannot: docs/errors.md
    assert not [node for node in program.graph.nodes if "eigh" in str(node.target).split(".")]


@pytest.mark.parametrize(
    ("layer", "change"),
    [
        (IterativeNorm(8, group_size=4), {"steps": 1}),
        (DecorrelatedBatchNorm2d(8, group_size=4), {"whitening": "cholesky"}),
        (DecorrelatedBatchNorm2d(8, group_size=4), {"eps": 1.0}),
    ],
    ids=["steps", "whitening", "eps"],
)
def test_a_changed_setting_counts_in_evaluation(x, layer, change):
    layer = trained(x, layer)
    before = layer(x)
    for name, value in change.items():
        setattr(layer, name, value)
    assert (layer(x) - before).abs().max() > 1e-3


# Conversion and fusion ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"group_size": 0}, ValueError, "group_size must be at least 1; got 0"),
        ({"group_size": -2}, ValueError, "group_size must be at least 1; got -2"),
        ({"first": -1}, ValueError, "first must be at least 0; got -1"),
        ({"names": "1"}, TypeError, "expected a collection of names; got the string '1'"),
    ],
)
def test_conversion_names_what_is_wrong(options, error, message):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    with pytest.raises(error, match=message):
        DecorrelatedBatchNorm2d.convert_batchnorm(model, **options)
    assert isinstance(model[1], nn.BatchNorm2d)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_computed_weight_is_not_fused(wrap):
    with pytest.raises(ValueError, match="the weight of conv is computed"):
        fuse_conv_dbn(wrap(nn.Conv2d(3, 8, 3)), DecorrelatedBatchNorm2d(8).eval())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": "a"}, "momentum must be a number; got 'a'"),
        ({"dtype": torch.complex64}, "dtype must be a floating"),
    ],
)
def test_construction_names_what_is_wrong(options, message):
    with pytest.raises(TypeError, match=message):
        DecorrelatedBatchNorm2d(4, **options)


# The pieces -----------------------------------------------------------------------------------------------------------


def test_the_covariance_of_half_precision_is_computed_in_float32():
    torch.manual_seed(0)
    points = (torch.randn(3, 2000) + 100).half()
    mean, cov = covariance(points)
    assert mean.dtype == cov.dtype == torch.float16
    torch.testing.assert_close(cov.float(), points.float().cov(correction=0), rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        exact = covariance(points.float())[1]
    torch.testing.assert_close(exact, points.float().cov(correction=0), rtol=1e-4, atol=1e-4)


def test_the_covariance_of_complex_points_is_hermitian():
    torch.manual_seed(0)
    points = torch.randn(3, 50, dtype=torch.complex128, requires_grad=True)
    torch.testing.assert_close(covariance(points)[1], points.cov(correction=0))
    torch.autograd.gradcheck(lambda z: covariance(z)[1], points)


@pytest.mark.parametrize("whitening", ["zca", "pca", "cholesky"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex128], ids=str)
def test_every_whitening_matrix_whitens_in_every_type(whitening, dtype):
    torch.manual_seed(0)
    wide = torch.float32 if dtype == torch.float16 else dtype
    X = torch.randn(4, 40, dtype=wide)
    M = (X @ X.mH / 40).to(dtype)
    S = whitening_matrix(M, whitening=whitening)
    assert S.dtype == dtype
    S, M = S.to(wide), M.to(wide) + 0.01 * torch.eye(4, dtype=wide)
    tolerance = 1e-2 if dtype == torch.float16 else 1e-10
    torch.testing.assert_close(S @ M @ S.mH, torch.eye(4, dtype=wide), rtol=0, atol=tolerance)


@pytest.mark.parametrize("whitening", ["pca", "cholesky"])
def test_a_bad_covariance_is_named(whitening):
    def refuses(error, message, argument, **options):
        with pytest.raises(error, match=message):
            whitening_matrix(argument, whitening=whitening, **options)

    refuses(ValueError, "eps must not be negative; got -5", torch.eye(3), eps=-5.0)
    refuses(ValueError, "covariance must be square", torch.ones(2, 3))
    refuses(TypeError, "covariance must be a torch.Tensor; got list", [[1.0]])
    refuses(TypeError, "covariance must be of a floating-point", torch.eye(2, dtype=torch.int64))
    refuses(eg.NonFiniteError, "non-finite", torch.full((2, 2), torch.nan))


@pytest.mark.parametrize("diagonal", [[1.0, 0.0], [1.0, -1.0]])
@pytest.mark.parametrize("options", [{"gradient": "taylor"}, {"gradient": "pi"}, {"whitening": "pca"}], ids=str)
def test_without_eps_a_covariance_that_is_not_positive_is_refused(diagonal, options):
    with pytest.raises(eg.DomainError, match="expected a positive spectrum"):
        whitening_matrix(torch.diag(torch.tensor(diagonal)), eps=0.0, **options)


def test_covariance_refuses_what_is_no_matrix_of_numbers():
    with pytest.raises(TypeError, match=r"covariance: points must be of a floating-point .* type; got torch\.int64"):
        covariance(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"covariance: points must be a torch\.Tensor; got list"):
        covariance([1.0])


def test_bilinear_pooling_names_what_is_not_finite():
    with pytest.raises(eg.NonFiniteError, match="second_order_pool: batch element 1"):
        second_order_pool(torch.stack([torch.ones(2, 3, 3), torch.full((2, 3, 3), torch.nan)]), method="bilinear")
