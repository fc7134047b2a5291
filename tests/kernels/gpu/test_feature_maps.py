"""The passes of whitening in Triton, in the interpreter or on a GPU, against the same passes in torch operations."""

import logging
import math

import pytest
import torch

import triton_launches as launch
from eigengrad.kernels import gpu
from eigengrad.kernels.gpu import selection
from eigengrad.nn import DecorrelatedBatchNorm2d
from eigengrad.nn.functional import whiten_color
from eigengrad.nn.passes import BlasPasses, TritonPasses

REAL = [torch.float32, torch.float64]
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
#: Shapes and groups: d = 1 … 32, odd numbers of channels, fewer points than a tile, and more, and no whole tiles.
SHAPES = [((3, 8, 5, 7), 2), ((2, 6, 1, 1), 2), ((5, 12, 3, 3), 4), ((2, 34, 2, 3), 2), ((2, 32, 4, 5), 1)]
SHAPES += [((1, 4, 13, 17), 4), ((70, 15), 5), ((2, 10, 4, 3, 2), 2), ((3, 21, 150), 7)]

dtypes = pytest.mark.parametrize("dtype", REAL, ids=str)
shapes = pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def maps(shape, dtype, layout="nchw", mean=3.0, seed=0):
    """Two maps in a layout, of features with a mean."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    formats = {4: LAYOUTS[layout], 5: torch.channels_last_3d if layout == "channels_last" else torch.contiguous_format}
    memory_format = formats.get(len(shape), torch.contiguous_format)
    return (x + mean).contiguous(memory_format=memory_format), y.contiguous(memory_format=memory_format)


def points(x, groups):
    """(N, C, *spatial) as float64 (groups, d, m)."""
    return x.double().transpose(0, 1).reshape(groups, x.shape[1] // groups, -1)


def assert_close(found, expected, dtype, count, size=None):
    """To the round-off of a sum of ``count`` numbers."""
    size = expected.abs().amax() if size is None else size
    error = (found.double() - expected.double()).abs().amax()
    assert error <= 8 * math.sqrt(count) * torch.finfo(dtype).eps * size, error / size


@dtypes
@layouts
@shapes
def test_moments_are_those_of_float64(shape, groups, layout, dtype):
    x, y = maps(shape, dtype, layout)
    centre = x.mean([0, *range(2, x.ndim)])
    X, Y, c = points(x, groups), points(y, groups), centre.double().view(groups, -1, 1)
    m, d = X.shape[-1], shape[1] // groups
    for second, expected in ((y, Y), (None, X - c)):
        products, sums = launch.moments(x, second, centre, d)
        size = (expected.abs() @ (X - c).abs().mT).amax()
        assert_close(products, expected @ (X - c).mT, dtype, m, size)
        assert_close(sums.view(groups, d), expected.sum(-1), dtype, m, expected.abs().sum(-1).amax())


@dtypes
@layouts
@shapes
def test_affine_functions_are_those_of_float64_in_the_layout_of_the_map(shape, groups, layout, dtype):
    x, y = maps(shape, dtype, layout)
    d = shape[1] // groups
    generator = torch.Generator().manual_seed(1)
    A, B = (torch.randn(groups, d, d, generator=generator, dtype=dtype) for _ in range(2))
    centre, offset = (torch.randn(shape[1], generator=generator, dtype=dtype) for _ in range(2))
    X, Y = points(x, groups) - centre.double().view(groups, -1, 1), points(y, groups)
    for second, expected in ((None, B.double() @ X), (y, B.double() @ X + A.double() @ Y)):
        found = launch.affine(x, centre, B.mT.contiguous().mT, offset, second, None if second is None else A)
        assert found.stride() == x.stride()
        assert_close(points(found, groups), expected + offset.double().view(groups, -1, 1), dtype, d)


def test_points_beyond_the_map_are_not_touched():
    """A map inside a larger piece of memory: what is around it is neither read nor written."""
    memory = torch.full((4, 8, 5, 5), torch.nan)
    x = memory[1:3]
    x.copy_(torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(0)))
    products, sums = launch.moments(x, None, torch.zeros(8), 4)
    assert products.isfinite().all()
    assert sums.isfinite().all()
    assert launch.affine(x, torch.zeros(8), products, sums).isfinite().all()


@dtypes
def test_covariance_keeps_its_digits_where_the_mean_is_far(dtype, on_this_device):
    x, _ = maps((4, 8, 5, 5), dtype, mean=1e4)
    X = points(x, 2)
    expected = (X - X.mean(-1, keepdim=True)) @ (X - X.mean(-1, keepdim=True)).mT / X.shape[-1]
    mean, _, cov = TritonPasses(x, 2).statistics(x)
    assert (cov.double() - expected).abs().amax() <= 40 * torch.finfo(dtype).eps * expected.abs().amax()
    assert_close(mean.view(2, 4), X.mean(-1), dtype, 1)


@pytest.fixture
def on_this_device(monkeypatch):
    """The CPU counts as a device for kernels, which are used without measurement."""
    if not launch.INTERPRETED:
        pytest.skip("tensors are on the CPU")
    monkeypatch.setattr(gpu, "_failure", None)
    monkeypatch.setattr(gpu, "_off_the_cpu", lambda A: True)
    monkeypatch.setattr(gpu, "mode", lambda: "triton")
    monkeypatch.setattr(selection, "_selectors", {})
    return monkeypatch


@torch.no_grad()
@layouts
@pytest.mark.parametrize(("shape", "groups"), SHAPES[:4], ids=str)
def test_passes_are_those_of_torch_to_round_off(shape, groups, layout, on_this_device):
    x, dy = maps(shape, torch.float64, layout)
    d = shape[1] // groups
    generator = torch.Generator().manual_seed(2)
    S, gM = (torch.randn(groups, d, d, generator=generator, dtype=torch.float64) for _ in range(2))
    S = S + S.mT
    weight, bias, shift = (torch.randn(shape[1], generator=generator, dtype=torch.float64) for _ in range(3))
    ours, theirs = TritonPasses(x, groups), BlasPasses(x, groups)
    for found, expected in zip(ours.statistics(x), theirs.statistics(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    mean = theirs.statistics(x)[0]
    for w, b, s in ((weight, bias, shift), (None, None, None)):
        results = []
        for passes in (ours, theirs):
            G, sums, slopes = passes.sums(dy, x, S, mean)
            dx = passes.gradient(dy, x, S, gM, w, sums, mean, 7, s)
            results.append((passes.whiten(x, S, w, b, mean), G, sums, slopes, dx))
        for found, expected in zip(*results, strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@layouts
@pytest.mark.parametrize("options", [{}, {"whitening": "cholesky"}, {"affine": False}], ids=str)
def test_layer_has_the_output_gradients_and_statistics_of_the_cpu_kernels(options, layout, on_this_device):
    import eigengrad as eg

    x, dy = maps((5, 8, 5, 5), torch.float64, layout)
    results = []
    for by_triton in (True, False):
        norm, y = DecorrelatedBatchNorm2d(8, group_size=4, dtype=torch.float64, **options), x.clone().requires_grad_()
        with eg.kernels.disable():
            on_this_device.setattr(gpu, "_off_the_cpu", lambda A, by_triton=by_triton: by_triton)
            out = norm(y)
            out.backward(dy)
        results.append([out.detach(), y.grad, norm.running_mean, norm.running_covariance])
        results[-1] += [] if norm.weight is None else [norm.weight.grad, norm.bias.grad]
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_gradients_of_layers_are_those_of_finite_differences(on_this_device):
    import eigengrad as eg

    x, style = (t.requires_grad_() for t in maps((2, 2, 2, 2), torch.float64))
    norm = DecorrelatedBatchNorm2d(2, dtype=torch.float64, track_running_stats=False)
    with eg.kernels.disable():
        torch.autograd.gradcheck(norm, (x,))
        torch.autograd.gradcheck(lambda c, s: whiten_color(c, s, groups=1, eps=0.1), (x[:1], style[:1]))


def test_each_pass_is_measured_and_a_wrong_one_is_never_used(on_this_device, caplog):
    import eigengrad as eg
    from eigengrad.kernels.gpu import launch as launches

    on_this_device.setattr(gpu, "mode", lambda: "measure")
    right = launches.affine
    on_this_device.setattr(launches, "affine", lambda *arguments: right(*arguments) * 1.5)
    x, dy = maps((5, 8, 5, 5), torch.float32)
    with eg.kernels.disable(), caplog.at_level(logging.WARNING, "eigengrad"):
        norm = DecorrelatedBatchNorm2d(8, group_size=4)
        for _ in range(2):
            norm(x.clone().requires_grad_()).backward(dy)
    chosen = {key: c for key, c in selection.choices()["cpu"].items() if key.startswith("whitening")}
    kinds = ("covariance", "apply", "backward_sums", "backward_apply")
    assert set(chosen) == {f"whitening {kind} nchw float32 n=4 batch<256" for kind in kinds}
    for key, choice in chosen.items():
        wrong = "apply" in key
        assert choice.refused == ({"triton": "wrong"} if wrong else {})
        assert not wrong or choice.name == "torch"
    assert sum("is wrong for" in record.message for record in caplog.records) == 2


def test_sums_are_told_from_what_is_wrong(generator):
    x = torch.randn(8, 1000, generator=generator)
    x = x - x.mean(-1, keepdim=True)
    right = (x @ x.mT).view(1, 8, 8), x.sum(-1)  # the sums are nothing but round-off
    assert selection.agree_roughly((right[0] * (1 + 1e-5), -right[1]), right)
    assert not selection.agree_roughly((right[0] * 1.05, right[1]), right)
    assert not selection.agree_roughly((right[0], right[1] + 10.0), right)
    assert not selection.agree_roughly((right[0] * torch.nan, right[1]), right)
    assert selection.agree_roughly(x * (1 + 1e-6), x)
    assert not selection.agree_roughly(x + 0.1, x)


def test_wide_groups_and_other_types_are_left_to_torch(on_this_device):
    assert gpu.suits_map(torch.empty(2, 32, 3, 3), 1)
    assert not gpu.suits_map(torch.empty(2, 33, 3, 3), 1)
    assert not gpu.suits_map(torch.empty(2, 32, 3, 3, dtype=torch.bfloat16), 1)
    assert not gpu.suits_map(torch.empty(0, 32, 3, 3), 1)
