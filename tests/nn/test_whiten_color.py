"""Whitening and colouring: what it does to the statistics, its derivatives in every mode, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import eigengrad as eg
from eigengrad.gradients import RULES
from eigengrad.nn import WhitenColor2d
from eigengrad.nn.functional import whiten_color
from layers_matrix import statistics

F32, F64 = torch.float32, torch.float64
scope = pytest.mark.parametrize("per_sample", [True, False], ids=["per sample", "pooled"])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def randn(*shape: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def features(samples: int, channels: int, *spatial: int, dtype: torch.dtype = F64) -> Tensor:
    """Correlated channels with means of their own, a different mixture for every sample."""
    mix = torch.eye(channels, dtype=dtype) + 0.3 * randn(samples, channels, channels, dtype=dtype)
    x = mix @ randn(samples, channels, torch.Size(spatial).numel(), dtype=dtype)
    return (x + randn(samples, channels, 1, dtype=dtype)).reshape(samples, channels, *spatial)


def root(A: Tensor, power: float) -> Tensor:
    L, V = torch.linalg.eigh(A)
    return (V * L.pow(power).unsqueeze(-2)) @ V.mT


def textbook(content: Tensor, style: Tensor, groups: int, alpha: Tensor, per_sample: bool, eps: float) -> Tensor:
    """Sample by sample and group by group, as the paper writes it."""
    if not per_sample:
        style = style.transpose(0, 1).flatten(1)[None]
    samples = []
    for n, x in enumerate(content):
        parts = []
        for g in range(groups):
            rows = slice(g * len(x) // groups, (g + 1) * len(x) // groups)
            own = (content[n, rows] if per_sample else content[:, rows].transpose(0, 1)).flatten(1)
            other = style[n if len(style) > 1 else 0, rows].flatten(1)
            eye = eps * torch.eye(len(own), dtype=x.dtype)
            whitened = root(own.cov(correction=0) + eye, -0.5) @ (x[rows].flatten(1) - own.mean(1, keepdim=True))
            parts.append(root(other.cov(correction=0) + eye, 0.5) @ whitened + other.mean(1, keepdim=True))
        samples.append(alpha[n] * torch.cat(parts).reshape(x.shape) + (1 - alpha[n]) * x)
    return torch.stack(samples)


@pytest.mark.parametrize("styles", [1, 3])
@pytest.mark.parametrize("groups", [1, 2, 6])
@scope
def test_it_is_the_formula_of_the_paper(per_sample, groups, styles):
    content, style, alpha = features(3, 6, 4, 5), features(styles, 6, 7, 3), torch.rand(3, dtype=F64)
    got = whiten_color(content, style, groups=groups, alpha=alpha, per_sample=per_sample, eps=1e-2)
    torch.testing.assert_close(got, textbook(content, style, groups, alpha, per_sample, 1e-2), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("channels", [1, 3, 7, 64])
def test_mean_and_covariance_of_the_result_are_those_of_the_style(channels):
    content, style = features(2, channels, 24, 24, dtype=F32), features(2, channels, 20, 20, dtype=F32)
    mean, covariance = statistics(whiten_color(content, style, eps=1e-7))
    style_mean, style_covariance = statistics(style)
    assert (mean - style_mean).abs().max() < 1e-4
    # Whitening divides by the smallest eigenvalue, which float32 knows only to its round-off times the condition.
    lost = torch.finfo(F32).eps * torch.linalg.cond(statistics(content)[1]).max()
    assert (covariance - style_covariance).norm() / style_covariance.norm() < 1e-5 + lost


def test_pooled_statistics_match_over_the_batch_and_not_in_each_sample():
    content, style = features(4, 5, 12, 12, dtype=F32), features(2, 5, 10, 10, dtype=F32)
    y = whiten_color(content, style, per_sample=False, eps=1e-7)
    together = [statistics(x.transpose(0, 1).flatten(1)[None])[1] for x in (y, style)]
    assert (together[0] - together[1]).norm() / together[1].norm() < 1e-3
    assert (statistics(y)[1] - together[1]).norm() / together[1].norm() > 0.1


def test_groups_transfer_the_blocks_on_the_diagonal_only():
    content, style = features(1, 6, 40, 40), features(1, 6, 30, 30)
    got, want = statistics(whiten_color(content, style, groups=2, eps=1e-9))[1][0], statistics(style)[1][0]
    for rows in (slice(0, 3), slice(3, 6)):
        torch.testing.assert_close(got[rows, rows], want[rows, rows], rtol=1e-6, atol=1e-7)
    assert (got[:3, 3:] - want[:3, 3:]).norm() > 0.1


@scope
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_content_in_its_own_style_is_a_fixed_point(per_sample, dtype):
    x = features(3, 16, 12, 12, dtype=dtype)
    # What S_s S_w may differ from the identity by: round-off times the condition of the square roots.
    condition = torch.linalg.cond(statistics(x)[1] + 1e-5 * torch.eye(16)).max().sqrt()
    error = (whiten_color(x, x, per_sample=per_sample) - x).abs().max() / x.abs().max()
    assert error < 16 * torch.finfo(dtype).eps * condition


def test_rank_deficient_content_in_its_own_style_is_a_fixed_point():
    x = features(2, 16, 3, 3)  # nine points in sixteen dimensions
    assert (whiten_color(x, x) - x).abs().max() < 1e-11


@scope
def test_alpha_blends_content_and_full_transfer(per_sample):
    content, style = features(3, 5, 6, 6, dtype=F32), features(3, 5, 6, 6, dtype=F32)
    full = whiten_color(content, style, per_sample=per_sample)
    none = whiten_color(content, style, per_sample=per_sample, alpha=0.0)
    assert (none - content).abs().max() <= 2 * torch.finfo(F32).eps * content.abs().max()
    alpha = torch.tensor([0.0, 0.25, 1.0])
    blend = alpha[:, None, None, None] * full + (1 - alpha[:, None, None, None]) * content
    got = whiten_color(content, style, per_sample=per_sample, alpha=alpha)
    torch.testing.assert_close(got, blend, rtol=1e-5, atol=1e-5)
    number = whiten_color(content, style, per_sample=per_sample, alpha=0.25)
    assert torch.equal(number, whiten_color(content, style, per_sample=per_sample, alpha=torch.tensor(0.25)))
    torch.testing.assert_close(number[1], got[1], rtol=1e-6, atol=1e-6)


def test_a_sample_does_not_feel_its_neighbours():
    content, style = features(3, 6, 8, 8, dtype=F32), features(3, 6, 5, 5, dtype=F32)
    alone = whiten_color(content[:1], style[:1])
    content[1:] *= 1e4
    style[1:] *= 1e-4
    together = whiten_color(content, style)
    torch.testing.assert_close(together[:1], alone, rtol=1e-6, atol=1e-6)
    assert not torch.equal(whiten_color(content, style, per_sample=False)[:1], alone)


def test_only_the_set_of_pixels_matters_to_the_statistics():
    content, style = features(2, 4, 6, 6), features(2, 4, 5, 5)
    expected = whiten_color(content, style)
    shuffled = style.flatten(2)[..., torch.randperm(25)].reshape(style.shape)
    torch.testing.assert_close(whiten_color(content, shuffled), expected, rtol=1e-11, atol=1e-11)
    order = torch.randperm(36)
    got = whiten_color(content.flatten(2)[..., order].reshape(content.shape), style)
    torch.testing.assert_close(got.flatten(2), expected.flatten(2)[..., order], rtol=1e-11, atol=1e-11)


def test_a_mean_of_a_thousand_standard_deviations_is_no_trouble():
    # White noise on top, because this is about the mean and not about the condition of the covariance.
    content, style = (features(1, 8, 64, 64) + randn(1, 8, 64, 64) for _ in range(2))
    content, style = (content + 1e3).float(), (style - 1e3).float()
    g = randn(*content.shape)

    def run(dtype: torch.dtype) -> tuple[Tensor, ...]:
        inputs = [x.to(dtype).requires_grad_() for x in (content, style)]
        y = whiten_color(*inputs)
        return (y.detach().double(), *(x.double() for x in torch.autograd.grad(y, inputs, g.to(dtype))))

    narrow, wide = run(F32), run(F64)
    # Float32 numbers around the mean are so far apart. Each mean is off by 1.5 of it at most (its sum by one, the
    # quotient by a half): that of the content reaches the result through T, that of the style as it is, and the result
    # is rounded once more.
    spacing = 1024 * torch.finfo(F32).eps / 2
    T = root(statistics(style)[1], 0.5) @ root(statistics(content)[1], -0.5)
    assert (narrow[0] - wide[0]).abs().max() < spacing * (1.5 * T.abs().sum(-1).max() + 2)
    for got, want in zip(narrow[1:], wide[1:], strict=True):
        assert (got - want).norm() / want.norm() < 3 * spacing


@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 4, 3, 3), (2, 4, 2, 3, 2)], ids=["1d", "2d", "3d"])
def test_any_spatial_shape_and_memory_format(shape):
    content, style = features(*shape), features(1, 4, 4, 4)
    flat = whiten_color(content.flatten(2), style.flatten(2))
    torch.testing.assert_close(whiten_color(content, style), flat.reshape(shape), rtol=1e-12, atol=1e-12)
    if len(shape) == 4:
        last = content.to(memory_format=torch.channels_last).requires_grad_()
        y = whiten_color(last, style, groups=2)
        plain = content.clone().requires_grad_()
        expected = whiten_color(plain, style, groups=2)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        g = randn(*shape)
        y.backward(g)
        expected.backward(g)
        torch.testing.assert_close(last.grad, plain.grad, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(dtype):
    content, style = features(2, 8, 9, 9).to(dtype), features(2, 8, 9, 9).to(dtype)
    got = whiten_color(content, style)
    assert got.dtype == dtype
    assert torch.equal(got, whiten_color(content.float(), style.float()).to(dtype))
    assert whiten_color(content, style.double()).dtype == dtype


def test_autocast_changes_nothing_forward_or_backward():
    content, style = (features(2, 8, 9, 9, dtype=F32).requires_grad_() for _ in range(2))
    g = torch.randn(2, 8, 9, 9)
    expected = torch.autograd.grad(whiten_color(content, style), (content, style), g)
    with torch.autocast("cpu", torch.bfloat16):
        y = whiten_color(content, style)
        got = torch.autograd.grad(y, (content, style), g)
    assert y.dtype == F32
    assert torch.equal(y, whiten_color(content, style))
    for x, z in zip(got, expected, strict=True):
        assert torch.equal(x, z)


OPTIONS = {
    "plain": {},
    "groups": {"groups": 2},
    "pooled": {"per_sample": False},
    "pooled groups": {"per_sample": False, "groups": 2},
}
options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def small(styles: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(x.requires_grad_() for x in (features(2, 4, 2, 4), features(styles, 4, 3, 2), torch.rand(2).double()))


@options
@pytest.mark.parametrize("styles", [1, 2])
def test_first_derivatives_in_both_modes(options, styles):
    def call(content: Tensor, style: Tensor, alpha: Tensor) -> Tensor:
        return whiten_color(content, style, alpha=alpha, eps=1e-2, **options)

    assert gradcheck(call, small(styles), check_forward_ad=True, check_batched_grad=True)


def strengths(alpha: float | Tensor, samples: int) -> Tensor:
    return torch.as_tensor(alpha, dtype=F64).expand(samples)


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["NCHW", "channels_last"])
@pytest.mark.parametrize("styles", [1, 3])
@pytest.mark.parametrize("alpha", [1.0, 0.3, 0.0, "learned"])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (3, 1), (6, 3), (34, 2), (40, 1), (64, 4)])
@scope
def test_first_derivatives_are_those_of_the_textbook(per_sample, channels, groups, alpha, styles, layout):
    memory = torch.channels_last if layout == "channels_last" else torch.contiguous_format
    content, style = (
        features(samples, channels, *spatial).contiguous(memory_format=memory).requires_grad_()
        for samples, spatial in ((3, (9, 8)), (styles, (7, 11)))
    )
    g = randn(3, channels, 9, 8)
    inputs = [content, style]
    if alpha == "learned":
        alpha = torch.tensor(0.3, dtype=F64, requires_grad=True)
        inputs.append(alpha)
    expected = textbook(content, style, groups, strengths(alpha, 3), per_sample, 1e-2)
    y = whiten_color(content, style, groups=groups, alpha=alpha, per_sample=per_sample, eps=1e-2)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    found, wanted = (torch.autograd.grad(output, inputs, g, allow_unused=True) for output in (y, expected))
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
@pytest.mark.parametrize(("channels", "groups"), [(6, 3), (64, 2), (130, 1)])
def test_first_derivatives_in_float32(channels, groups, alpha):
    content, style, g = features(2, channels, 32, 32), features(1, channels, 32, 40), randn(2, channels, 32, 32)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        inputs = [x.to(dtype).requires_grad_() for x in (content, style)]
        y = whiten_color(*inputs, groups=groups, alpha=alpha, eps=1.0)  # condition numbers of a hundred, not 10⁴
        return [x.double() for x in torch.autograd.grad(y, inputs, g.to(dtype))]

    for got, want in zip(gradients(F32), gradients(F64), strict=True):
        assert (got - want).norm() / want.norm() < 1e-5


@pytest.mark.parametrize("which", ["content", "style"])
def test_what_is_not_finite_is_named(which):
    maps = {"content": features(1, 4, 5, 5), "style": features(1, 4, 5, 5)}
    maps[which][0, 2, 3, 3] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError, match=f"covariance of {which}"):
        whiten_color(**maps)


@options
def test_second_derivatives(options):
    def call(content: Tensor, style: Tensor, alpha: Tensor) -> Tensor:
        return whiten_color(content, style, alpha=alpha, eps=1e-1, **options)

    assert gradgradcheck(call, small(), fast_mode=True)


def test_a_gradient_that_is_kept_is_not_written_to():
    """The sum of two gradients is formed in place; nobody else may see that, a second pass included."""
    content, style, _ = small()
    y, g = whiten_color(content, style), randn(2, 4, 2, 4)
    kept = g.clone()
    first = torch.autograd.grad(y, (content, style), g, retain_graph=True)
    copies = [x.clone() for x in first]
    second = torch.autograd.grad(y, (content, style), g)
    assert torch.equal(g, kept)
    for x, z, copy in zip(first, second, copies, strict=True):
        assert torch.equal(x, copy)
        assert torch.equal(x, z)


@pytest.mark.parametrize("case", ["constant regions", "duplicated channels", "few pixels", "constant", "dead channels"])
@pytest.mark.parametrize("groups", [1, 2])
def test_ties_and_lost_rank_are_differentiated_exactly(case, groups):
    def make() -> Tensor:
        x = features(2, 4, 4, 4)
        if case == "constant regions":
            x[..., :3] = x[..., :1, :1]
        elif case == "duplicated channels":
            x[:, 2:] = x[:, :2]
        elif case == "few pixels":
            x = x[..., :1, :2].clone()
        elif case == "dead channels":
            x[:, 1:] = 0
        else:
            x = x[..., :1, :1].expand_as(x).clone()
        return x.requires_grad_()

    inputs = make(), make()
    assert gradcheck(lambda c, s: whiten_color(c, s, groups=groups, eps=1e-2), inputs)
    single = [x.detach().float().requires_grad_() for x in inputs]
    for gradient in torch.autograd.grad(whiten_color(*single, groups=groups).square().sum(), single):
        assert gradient.isfinite().all()


def test_rank_deficient_float32_gradient_agrees_with_float64():
    content, style = features(1, 64, 4, 4, dtype=F32), features(1, 64, 4, 4, dtype=F32)
    g = torch.randn(1, 64, 4, 4)

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        inputs = [x.to(dtype).requires_grad_() for x in (content, style)]
        return [x.double() for x in torch.autograd.grad(whiten_color(*inputs, eps=1e-2), inputs, g.to(dtype))]

    for got, want in zip(gradients(F32), gradients(F64), strict=True):
        assert (got - want).norm() / want.norm() < 1e-4


@pytest.mark.parametrize("rule", [*RULES, eg.Taylor(degree=3)], ids=str)
@scope
def test_every_rule_gives_the_same_result_and_a_finite_gradient(rule, per_sample):
    content, style = (features(2, 6, 5, 5).requires_grad_() for _ in range(2))
    y = whiten_color(content, style, gradient=rule, per_sample=per_sample)
    torch.testing.assert_close(y, whiten_color(content, style, per_sample=per_sample), rtol=1e-10, atol=1e-10)
    for g in torch.autograd.grad(y.pow(3).sum(), (content, style)):
        assert g.isfinite().all()
        assert g.norm() > 0


def test_a_rule_reaches_the_gradient():
    content, style = (features(1, 6, 5, 5).requires_grad_() for _ in range(2))

    def gradient(rule: str | eg.GradientRule) -> Tensor:
        (g,) = torch.autograd.grad(whiten_color(content, style, gradient=rule).pow(3).sum(), content)
        return g

    torch.testing.assert_close(gradient(eg.Exact()), gradient("exact"), rtol=1e-8, atol=1e-8)  # no ties here
    assert (gradient(eg.Taylor(degree=1)) - gradient("exact")).norm() / gradient("exact").norm() > 1e-3


def test_vmap_and_forward_mode_of_torch_func():
    content, style = torch.stack([features(2, 4, 3, 3), features(2, 4, 3, 3)]), features(2, 4, 4, 4)
    alpha = torch.rand(2, 2, dtype=F64)

    def call(c: Tensor, a: Tensor) -> Tensor:
        return whiten_color(c, style, groups=2, alpha=a, per_sample=False)

    each = torch.stack([call(c, a) for c, a in zip(content, alpha, strict=True)])
    torch.testing.assert_close(torch.func.vmap(call)(content, alpha), each, rtol=1e-11, atol=1e-11)

    def loss(c: Tensor, a: Tensor) -> Tensor:
        return call(c, a).pow(3).sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(content, alpha)
    torch.testing.assert_close(gradients[1], torch.func.grad(loss)(content[1], alpha[1]), rtol=1e-9, atol=1e-9)
    direction = randn(*content[0].shape)
    _, slope = torch.func.jvp(lambda c: loss(c, alpha[0]), (content[0],), (direction,))
    torch.testing.assert_close(slope, (gradients[0] * direction).sum(), rtol=1e-9, atol=1e-9)


@scope
def test_compile_without_a_break(dynamo, per_sample):
    layer = WhitenColor2d(4, groups=2, alpha=0.7, per_sample=per_sample)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    content, style, _ = small()
    g = randn(2, 4, 2, 4)
    y, expected = compiled(content, style), layer(content, style)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    got, want = (torch.autograd.grad(x, (content, style), g) for x in (y, expected))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_export(dynamo):
    layer = WhitenColor2d(4, alpha=0.7)
    content, style = features(2, 4, 5, 5), features(2, 4, 6, 6)
    exported = torch.export.export(layer, (content, style)).module()
    other = features(2, 4, 5, 5)
    torch.testing.assert_close(exported(other, style), layer(other, style), rtol=1e-12, atol=1e-12)


@scope
def test_an_empty_batch_stays_empty(per_sample):
    content = torch.zeros(0, 4, 5, 5, requires_grad=True)
    y = whiten_color(content, torch.randn(1, 4, 3, 3), per_sample=per_sample)
    assert y.shape == content.shape
    y.sum().backward()
    assert content.grad.shape == content.shape


def test_the_layer_is_the_function():
    layer = WhitenColor2d(6, groups=3, alpha=0.5, per_sample=False, eps=1e-3, gradient=eg.Taylor())
    content, style = features(2, 6, 4, 4), features(3, 6, 5, 5)
    options = {"groups": 3, "alpha": 0.5, "per_sample": False, "eps": 1e-3, "gradient": eg.Taylor()}
    assert torch.equal(layer(content, style), whiten_color(content, style, **options))
    assert layer.state_dict() == {}
    assert repr(layer) == (
        "WhitenColor2d(6, groups=3, alpha=0.5, per_sample=False, eps=0.001, gradient=Taylor(degree=9, eps=None))"
    )


X = torch.zeros(2, 4, 3, 3)
MISUSE = {
    "not a tensor": (lambda: whiten_color([1], X), TypeError, "content must be a torch.Tensor; got list"),
    "integers": (
        lambda: whiten_color(X, X.int()),
        TypeError,
        "style must be of a floating-point type; got torch.int32",
    ),
    "no spatial": (lambda: whiten_color(X[..., 0, 0], X), ValueError, r"content .* \(N, C, \*spatial\); got \(2, 4\)"),
    "groups": (lambda: whiten_color(X, X, groups=3), ValueError, "groups must divide the 4 channels of content; got 3"),
    "no groups": (lambda: whiten_color(X, X, groups=0), ValueError, "groups must be at least 1; got 0"),
    "channels": (lambda: whiten_color(X, X[:, :2]), ValueError, r"style must have the 4 channels .* \(2, 2, 3, 3\)"),
    "samples": (lambda: whiten_color(X, X.repeat(2, 1, 1, 1)), ValueError, r"2 samples .* or 1 .* \(4, 4, 3, 3\)"),
    "pooled style": (
        lambda: whiten_color(X, X[..., :1, :1]),
        ValueError,
        r"style must have at least 2 positions a sample .* got \(2, 4, 1, 1\).* before they are pooled",
    ),
    "pooled content": (lambda: whiten_color(X[..., :1, :1], X), ValueError, "content must have at least 2 positions"),
    "one point": (
        lambda: whiten_color(X, X[:1, :, :1, :1], per_sample=False),
        ValueError,
        r"style must have at least 2 positions to take a covariance of; got \(1, 4, 1, 1\)",
    ),
    "no style": (lambda: whiten_color(X, X[:0], per_sample=False), ValueError, "style must have at least 2 positions"),
    "eps": (lambda: whiten_color(X, X, eps=-1.0), ValueError, "eps must not be negative; got -1.0"),
    "alpha": (lambda: whiten_color(X, X, alpha=float("nan")), ValueError, "alpha must be finite; got nan"),
    "alpha shape": (
        lambda: whiten_color(X, X, alpha=torch.ones(3)),
        ValueError,
        r"alpha must have shape \(\) or \(2,\); got \(3,\)",
    ),
    "alpha type": (lambda: whiten_color(X, X, alpha=torch.tensor(1)), TypeError, "alpha must be .* got torch.int64"),
    "rule": (lambda: whiten_color(X, X, gradient="tailor"), ValueError, "gradient: got 'tailor'; expected one of"),
    "singular": (lambda: whiten_color(X, X, eps=0.0), eg.DomainError, "covariance of content: .* eps > 0"),
    "nan": (lambda: whiten_color(X, X / 0), eg.NonFiniteError, r"covariance of style: batch element \(0, 0\)"),
    "layer channels": (
        lambda: WhitenColor2d(8)(X, X),
        ValueError,
        r"WhitenColor2d: content must have shape \(N, 8, H, W\); got \(2, 4, 3, 3\)",
    ),
    "layer groups": (lambda: WhitenColor2d(8, groups=3), ValueError, "groups must divide num_features, 8; got 3"),
    "layer features": (lambda: WhitenColor2d(0), ValueError, "num_features must be at least 1; got 0"),
    "layer rule": (lambda: WhitenColor2d(8, gradient="tailor"), ValueError, "gradient: got 'tailor'"),
    "layer alpha": (lambda: WhitenColor2d(8, alpha="1"), TypeError, "alpha must be a number; got '1'"),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_named(case):
    call, error, message = MISUSE[case]
    with pytest.raises(error, match=message):
        call()


def test_a_style_pooled_to_two_points_colours_along_one_line_only():
    """Why pooled features are refused: of each pooled-away position the covariance loses a dimension."""
    content, style = features(1, 4, 8, 8), features(1, 4, 1, 2)
    spectrum = torch.linalg.eigvalsh(statistics(whiten_color(content, style, eps=1e-12))[1][0])
    assert spectrum[-2] < 1e-9 * spectrum[-1]


@pytest.mark.parametrize("per_sample", [True, False])
def test_the_result_can_be_changed_in_place(per_sample):
    content, style = torch.randn(2, 4, 5, 5, requires_grad=True), torch.randn(2, 4, 5, 5)
    expected = torch.autograd.grad(whiten_color(content, style, per_sample=per_sample).relu().square().sum(), content)
    made = torch.nn.ReLU(inplace=True)(whiten_color(content, style, per_sample=per_sample))
    assert torch.equal(torch.autograd.grad(made.square().sum(), content)[0], expected[0])


def test_saved_tensors_may_come_back_in_another_layout():
    x, style = (torch.randn(3, 8, 5, 5).to(memory_format=torch.channels_last) for _ in range(2))
    found = []
    for pack in (lambda t: t, lambda t: t.contiguous()):
        content = x.clone(memory_format=torch.preserve_format).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = whiten_color(content, style, per_sample=False)
        (y**3).sum().backward()
        found.append(content.grad)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_an_export_takes_any_number_of_samples():
    samples = torch.export.Dim("samples")
    content, style = torch.randn(3, 4, 5, 5), torch.randn(3, 4, 6, 6)
    exported = torch.export.export(WhitenColor2d(4), (content, style), dynamic_shapes=({0: samples}, {0: samples}))
    content, style = torch.randn(5, 4, 5, 5), torch.randn(5, 4, 6, 6)
    torch.testing.assert_close(
        exported.module()(content, style), WhitenColor2d(4)(content, style), rtol=1e-4, atol=1e-4
    )


def test_an_alpha_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="alpha must be finite; got nan"):
        whiten_color(torch.randn(1, 2, 3, 3), torch.randn(1, 2, 3, 3), alpha=torch.tensor(torch.nan))
