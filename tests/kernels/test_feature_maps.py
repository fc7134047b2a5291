"""The passes over feature maps, in kernels and in BLAS, against float64: every tail, layout, type and thread count."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import eigengrad as eg
from eigengrad import kernels
from eigengrad.kernels import KernelPasses, costs, huge_pages
from eigengrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d
from eigengrad.nn.layout import channels_fast
from eigengrad.nn.passes import BlasPasses

pytestmark = pytest.mark.skipif(not kernels.available(), reason="the extra `fast` is not installed")

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F32: 1e-5, F64: 1e-13}
POSITIONS = {1: (1, 1), 7: (1, 7), 15: (3, 5), 17: (17, 1), 33: (3, 11), 48: (6, 8)}
SIZES = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 64]
LAYOUTS = ["NCHW", "channels_last"]
EPS = 0.01


@pytest.fixture(autouse=True)
def no_gradients():
    """The kernels are called from where no derivative is recorded."""
    with torch.no_grad():
        yield


def features(*shape: int, dtype: torch.dtype, layout: str = "NCHW", mean: float = 0.5, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=F64)
    mix = torch.randn(shape[1], shape[1], generator=generator, dtype=F64) / shape[1] ** 0.5
    x = x + torch.einsum("cd,nd...->nc...", mix, x) + mean
    return as_layout(x.to(dtype), layout)


def as_layout(x: Tensor, layout: str) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last if layout == "channels_last" else torch.contiguous_format)


def kernel_passes(x: Tensor, groups: int) -> KernelPasses:
    return KernelPasses(x.shape, x.dtype, channels_fast(x), groups)


def points(x: Tensor, groups: int) -> Tensor:
    """(groups, d, m) in float64."""
    return x.double().transpose(0, 1).reshape(groups, x.shape[1] // groups, -1)


def error(got: Tensor, expected: Tensor) -> float:
    assert got.isfinite().all()
    return ((got.double() - expected).norm() / expected.norm()).item()


def root(M: Tensor) -> Tensor:
    """(M + εI)^(−½)."""
    L, V = torch.linalg.eigh(M)
    return (V * (L + EPS).clamp(min=EPS).rsqrt().unsqueeze(-2)) @ V.mT


def root_gradient(M: Tensor, gS: Tensor) -> Tensor:
    """By divided differences, in the basis where M is diagonal."""
    L, V = torch.linalg.eigh(M)
    p = (L + EPS).clamp(min=EPS).sqrt()
    F = -1 / (p.unsqueeze(-1) * p.unsqueeze(-2) * (p.unsqueeze(-1) + p.unsqueeze(-2)))
    return V @ (F * (V.mT @ (gS + gS.mT) @ V / 2)) @ V.mT


def assert_passes_are_right(passes: KernelPasses | BlasPasses, x: Tensor, groups: int, tolerance: float) -> None:
    """All four passes, each from exact operands, so that each error is its own."""
    d, m, column = x.shape[1] // groups, x.numel() // x.shape[1], (groups, x.shape[1] // groups, 1)
    X = points(x, groups)
    mu = X.mean(-1, keepdim=True)
    M = (X - mu) @ (X - mu).mT / m
    mean, rounded, cov = passes.statistics(x)
    assert error(mean, mu.flatten()) < tolerance
    assert torch.equal(rounded, mean.to(x.dtype))
    assert (cov - M).abs().max() < tolerance * M.abs().max()

    S = root(M)
    weight, bias = 1 + 0.1 * torch.randn(2, x.shape[1], generator=torch.Generator().manual_seed(1), dtype=F64).to(
        x.dtype
    )
    y = passes.whiten(x, S.to(x.dtype), weight, bias, mean)
    A = weight.double().view(column) * S
    assert y.stride() == x.stride()
    assert error(points(y, groups), A @ (X - mu) + bias.double().view(column)) < tolerance

    dy = as_layout(features(*x.shape, dtype=x.dtype, seed=2), "channels_last" if not x.is_contiguous() else "NCHW")
    dY = points(dy, groups)
    G, sums = dY @ (X - mu).mT, dY.sum(-1)
    got = passes.sums(dy, x, S.to(x.dtype), mean)
    scale = (dY.norm(dim=-1, keepdim=True) * (X - mu).norm(dim=-1).unsqueeze(-2)).max()  # G may be nothing but noise
    assert (got[0].double() - G).abs().max() < tolerance * scale
    assert error(got[1], sums.flatten()) < tolerance * d + tolerance
    assert (got[2].double() - (G * S).sum(-1).flatten()).abs().max() < tolerance * scale * S.abs().sum(-1).max()

    gM = dY[..., :d] @ dY[..., :d].mT if m >= d else M  # any matrix: here a symmetric one that is not small
    dx = passes.gradient(dy, x, S.to(x.dtype), gM.to(x.dtype), weight, sums.flatten().to(x.dtype), mean, m)
    expected = A.mT @ (dY - sums.unsqueeze(-1) / m) + (gM + gM.mT) / m @ (X - mu)
    assert dx.stride() == x.stride()
    assert error(points(dx, groups), expected) < tolerance


CASES = list(itertools.product(SIZES, POSITIONS, LAYOUTS, [F32, F64], ["kernels", "BLAS"]))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("d", "positions", "layout", "dtype", "kind"),
    CASES,
)
def test_passes_are_right_for_every_size_and_tail(d, positions, layout, dtype, kind):
    samples = 40 if positions < 7 else 11
    x = features(samples, 3 * d, *POSITIONS[positions], dtype=dtype, layout=layout)
    passes = kernel_passes(x, 3) if kind == "kernels" else BlasPasses(x, 3)
    assert_passes_are_right(passes, x, 3, TOLERANCE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 64, 40, 40), (2, 96, 33, 35), (300, 128, 3, 3), (700, 20, 1, 1)], ids=str)
def test_passes_are_right_for_maps_of_many_tiles(shape, layout):
    x = features(*shape, dtype=F32, layout=layout)
    for groups in {1, 4, shape[1] // 4}:
        assert_passes_are_right(kernel_passes(x, groups), x, groups, 2e-5)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 511, 513, 1027])
@pytest.mark.parametrize("d", [4, 8])
def test_passes_are_right_for_groups_within_a_vector(d, count, dtype):
    """Few points, and tiles that end with one or two of the four that are taken at a time."""
    x = features(count, 32, 1, 1, dtype=dtype, layout="channels_last")
    assert_passes_are_right(kernel_passes(x, 32 // d), x, 32 // d, TOLERANCE[dtype])


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 15, 16, 17, 127, 129, 400])
@pytest.mark.parametrize(("d", "groups"), [(16, 1), (16, 5), (24, 3), (32, 2), (48, 2), (80, 1), (96, 2)])
def test_passes_are_right_for_groups_of_whole_vectors(d, groups, count, dtype):
    """An odd and an even number of vectors, and tiles that end within the points that are taken at a time."""
    x = features(count, groups * d, 1, 1, dtype=dtype, layout="channels_last")
    assert_passes_are_right(kernel_passes(x, groups), x, groups, TOLERANCE[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d", [1, 4, 6, 16, 32])
def test_a_mean_of_a_thousand_deviations_costs_no_digits(d, layout):
    """Against float64 on the same rounded numbers, to the same tolerance as with a mean of half a deviation."""
    x = features(16, 2 * d, 9, 8, dtype=F32, layout=layout, mean=1e3)
    assert_passes_are_right(kernel_passes(x, 2), x, 2, TOLERANCE[F32])


def test_a_first_point_far_off_is_no_pivot():
    x = features(64, 8, 16, 16, dtype=F32)
    x[0, :, 0, 0] = 1e5
    _, _, cov = kernel_passes(x, 2).statistics(x)
    X = points(x, 2)
    X = X - X.mean(-1, keepdim=True)
    assert error(cov, X @ X.mT / X.shape[-1]) < 1e-6


# Threads and memory ---------------------------------------------------------------------------------------------------


def everything(passes: KernelPasses, x: Tensor, dy: Tensor) -> list[Tensor]:
    mean, rounded, cov = passes.statistics(x)
    L, V = eg.eigh(cov)  # torch's own may have other bits on other numbers of threads
    S, y = passes.whiten_by_root(x, L, V, EPS, None, None, mean)
    G, sums, slopes = passes.sums(dy, x, S, mean)
    gM = passes.inverse_root_gradient(G, None, L, V, EPS)
    dx = passes.gradient(dy, x, S, gM, None, sums, mean, 77)
    return [mean, rounded, cov, S, y, G, sums, slopes, gM, dx]


@pytest.fixture
def threads(monkeypatch):
    """Set torch's number of threads, all of which the kernels then use however small the work."""
    before = torch.get_num_threads()
    monkeypatch.setattr(costs, "THREAD_COST", 1e-3)
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "d"), [((32, 64, 16, 16), 4), ((32, 64, 16, 16), 64), ((37, 60, 13, 11), 12)], ids=str
)
def test_results_have_the_same_bits_on_any_number_of_threads(shape, d, layout, dtype, threads):
    x, dy = (features(*shape, dtype=dtype, layout=layout, seed=seed) for seed in (0, 1))
    passes = kernel_passes(x, shape[1] // d)
    assert passes.splits > 1
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(everything(passes, x, dy))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d", [4, 16, 64])
def test_results_that_are_streamed_past_the_caches_have_the_same_bits(d, layout, monkeypatch):
    x, dy = (features(4, 64, 16, 20, dtype=F32, layout=layout, seed=seed) for seed in (0, 1))
    plain = kernel_passes(x, 64 // d)
    monkeypatch.setattr(costs, "STREAMED", 0)
    streamed = kernel_passes(x, 64 // d)
    assert streamed.streamed
    assert not plain.streamed
    for a, b in zip(everything(plain, x, dy), everything(streamed, x, dy), strict=True):
        assert torch.equal(a, b)


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("d", [1, 3, 4, 12, 16, 32])
def test_nothing_is_read_or_written_beyond_the_maps(d, positions, layout, monkeypatch):
    """Maps amidst NaN: one that is read would spoil a result, one that is written would be gone."""
    shape = (5, 2 * d, *POSITIONS[positions])
    rooms = []

    def amidst_nan(x: Tensor) -> Tensor:
        room = torch.full((x.numel() + 64,), torch.nan)
        rooms.append(room)
        return room[32:-32].as_strided(x.shape, x.stride())

    x, dy = (amidst_nan(z).copy_(z) for z in (features(*shape, dtype=F32, layout=layout, seed=s) for s in (0, 1)))
    expected = everything(kernel_passes(x, 2), x.clone(), dy.clone())
    monkeypatch.setattr(huge_pages, "empty_like", amidst_nan)
    for a, b in zip(everything(kernel_passes(x, 2), x, dy), expected, strict=True):
        assert torch.equal(a, b)
    assert len(rooms) == 4
    for room in rooms:
        assert room[:32].isnan().all()
        assert room[-32:].isnan().all()
        assert room[32:-32].isfinite().all()


@pytest.mark.parametrize("size", [0, 1000, 5 << 20])
def test_memory_on_huge_pages_is_memory(size):
    x = torch.arange(size, dtype=F32).reshape(-1, 1, 1, 1)
    y = huge_pages.empty_like(x).copy_(x)
    assert torch.equal(x, y)


# The small matrices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("d", SIZES)
def test_the_root_and_its_gradient(d, dtype):
    x = features(50, 3 * d, dtype=dtype)
    passes = kernel_passes(x, 3)
    mean, _, cov = passes.statistics(x)
    L, V = torch.linalg.eigh(cov)
    S, _ = passes.whiten_by_root(x, L, V, EPS, None, None, mean)
    assert torch.equal(S, S.mT)
    assert error(S, root(cov.double())) < 10 * TOLERANCE[dtype]
    G = torch.randn(3, d, d, generator=torch.Generator().manual_seed(3), dtype=F64)
    weight = torch.linspace(0.5, 2, 3 * d, dtype=F64)
    for gamma in (None, weight):
        gS = G if gamma is None else gamma.view(3, d, 1) * G
        expected = root_gradient(cov.double(), gS)
        got = passes.inverse_root_gradient(G.to(dtype), None if gamma is None else gamma.to(dtype), L, V, EPS)
        assert error(got, expected) < 10 * TOLERANCE[dtype]


@pytest.mark.parametrize("affine", [False, True], ids=["plain", "affine"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("d", SIZES)
def test_what_is_between_two_passes_is_the_same_in_one_call_and_in_several(d, dtype, affine):
    x, dy = features(40, 3 * d, 2, 3, dtype=dtype), features(40, 3 * d, 2, 3, dtype=dtype, seed=5)
    weight, bias = torch.linspace(0.5, 2, 6 * d, dtype=dtype).view(2, -1) if affine else (None, None)
    passes = kernel_passes(x, 3)
    mean, _, cov = passes.statistics(x)
    L, V = torch.linalg.eigh(cov)
    S, y = passes.whiten_by_root(x, L, V, EPS, weight, bias, mean)
    assert torch.equal(y, passes.whiten(x, S, weight, bias, mean))
    G, sums, slopes = passes.sums(dy, x, S, mean)
    gM = passes.inverse_root_gradient(G, weight, L, V, EPS)
    dx = passes.gradient(dy, x, S, gM, weight, sums, mean, 240)
    for one, several in zip(
        passes.gradient_by_root(dy, x, S, L, V, EPS, weight, mean), (dx, slopes, sums), strict=True
    ):
        assert torch.equal(one, several)


# The layer ------------------------------------------------------------------------------------------------------------


def run_layer(layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        y = layer(z)
        wanted = [z, *layer.parameters()]
        return [y.detach(), *torch.autograd.grad(y, wanted, torch.sin(3 * y.detach()))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_strided_input_gives_what_its_copy_gives(layout):
    wide = features(6, 12, 10, 14, dtype=F32, layout=layout)
    x = wide[:, :, 1::2, ::2]
    layer = DecorrelatedBatchNorm2d(12, group_size=3)
    for a, b in zip(run_layer(layer, x), run_layer(layer, x.contiguous()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("gradient", ["exact", "taylor"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_numba_the_layer_does_the_same(layout, gradient, monkeypatch):
    x = features(8, 12, 9, 7, dtype=F64, layout=layout)
    layer = DecorrelatedBatchNorm2d(12, group_size=6, gradient=gradient, dtype=F64)
    found = run_layer(layer, x)
    monkeypatch.setattr(kernels, "available", lambda: False)
    for a, b in zip(found, run_layer(layer, x), strict=True):
        assert error(a, b) < 1e-11


def test_features_without_positions_are_points():
    x = features(300, 24, dtype=F64)
    layer = DecorrelatedBatchNorm1d(24, group_size=8, dtype=F64)
    whole = DecorrelatedBatchNorm2d(24, group_size=8, dtype=F64)
    for a, b in zip(run_layer(layer, x), run_layer(whole, x[:, :, None, None]), strict=True):
        assert torch.equal(a, b.reshape(a.shape))


OLDER_CPUS = {"SSE2": "+sse2,+sse,+cx8", "AVX2": "+avx2,+avx,+fma,+sse4.2,+ssse3,+sse2,+sse,+cx8"}


@pytest.mark.slow
@pytest.mark.parametrize("features", OLDER_CPUS.values(), ids=OLDER_CPUS)
def test_narrower_vectors_do_the_same(features, tmp_path):
    """The tests above in a process that is told of an older CPU."""
    names = "tail or tiles or beyond or threads or root"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", names, "-m", "not slow"]
    about = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env={**os.environ, **about}, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
