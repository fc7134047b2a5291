"""Whitening and colouring in the translation: every variant under one interface, and what each of them must do."""

import pytest
import torch

import eigengrad as eg
from eigengrad.lab.style.translation.wct import VARIANTS, LearnedTransfer, transfer
from eigengrad.nn.functional import whiten_color

SPECTRAL = [name for name in VARIANTS if name != "gd"]
WHOLE = [name for name in SPECTRAL if name != "pi"]  # Algorithm 1 drops at least the last eigenvector


def maps(seed=0, samples=2, channels=16):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(channels, channels, generator=generator)
    content = torch.einsum("ij,njhw->nihw", mix, torch.randn(samples, channels, 12, 12, generator=generator))
    style = torch.randn(samples, channels, 7, 9, generator=generator) * torch.linspace(0.5, 2, channels)[:, None, None]
    return content, style + torch.linspace(-1, 1, channels)[:, None, None]


def step(name, **options):
    torch.manual_seed(1)
    return transfer(name, 16, **{"group_size": 8, **options})


def full_strength(layer):
    with torch.no_grad():
        layer.logit.fill_(40.0)
    return layer


def plain(layer):
    """Without the perceptron, so that the style is what is given."""
    layer.perceptron = torch.nn.Identity()
    return layer


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_keeps_the_shape_and_gives_two_penalties_and_finite_gradients(name):
    content, style = (part.requires_grad_() for part in maps())
    layer = step(name)
    y, penalties = layer(content, style)
    assert y.shape == content.shape
    assert penalties.shape == (2,)
    (y.square().sum() + penalties.sum()).backward()
    for part in (content, style, *layer.parameters()):
        assert part.grad is not None
        assert part.grad.isfinite().all()
        assert part.grad.abs().sum() > 0


@pytest.mark.parametrize("name", WHOLE)
def test_the_result_has_the_mean_and_covariance_of_the_style(name):
    content, style = maps()
    layer = plain(full_strength(step(name, eps=1e-6)))
    with torch.no_grad():
        y, _ = layer(content, style)
    for got, wanted in zip(layer.statistics(y), layer.statistics(style), strict=True):
        assert (got - wanted).norm() <= 1e-3 * wanted.norm()


@pytest.mark.parametrize("name", SPECTRAL)
def test_colours_come_from_the_covariance_of_the_style_and_not_from_its_mean_alone(name):
    """Two styles with the same mean: pooled to 1×1 they would be the same style, and the results equal."""
    content, style = maps()
    other = style.clone()
    centred = other - other.mean((-2, -1), keepdim=True)
    other = other.mean((-2, -1), keepdim=True) + centred.roll(1, dims=1)
    layer = plain(step(name))
    torch.testing.assert_close(other.mean((-2, -1)), style.mean((-2, -1)))
    with torch.no_grad():
        first, second = layer(content, style)[0], layer(content, other)[0]
    assert (first - second).norm() > 0.1 * first.norm()
    assert step(name).statistics(style)[1].shape == (2, 2, 8, 8)


@pytest.mark.parametrize("name", SPECTRAL)
def test_where_a_colour_is_in_the_style_does_not_matter(name):
    content, style = maps()
    layer = step(name)
    shuffled = style.flatten(2)[..., torch.randperm(63)].reshape(style.shape)
    with torch.no_grad():
        first, second = layer(content, style)[0], layer(content, shuffled)[0]
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_compared_by_the_same_style_loss(name):
    _, style = maps()
    measured, reference = step(name).statistics(style), step("exact").statistics(style)
    assert [tuple(part.shape) for part in measured] == [(2, 2, 8, 1), (2, 2, 8, 8)]
    for one, other in zip(measured, reference, strict=True):
        torch.testing.assert_close(one, other)
    assert len(step(name).seen(style)) == (1 if name == "gd" else 2)


@pytest.mark.parametrize("name", WHOLE)
def test_covariances_may_be_of_the_batch(name):
    content, style = maps(samples=3)
    layer = plain(full_strength(step(name, eps=1e-6, per_sample=False)))
    with torch.no_grad():
        y, _ = layer(content, style)
    whole = [t.transpose(0, 1).reshape(2, 8, -1) for t in (y, style)]
    got, wanted = (torch.stack([group.cov(correction=0) for group in t]) for t in whole)
    assert (got - wanted).norm() < 1e-2 * wanted.norm()
    alone = plain(full_strength(step(name, eps=1e-6)))(content, style)[0]
    assert (alone - y).norm() > 1e-2 * y.norm()
    assert "per_sample=False" in repr(layer)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_result_does_not_depend_on_its_batch(name):
    content, style = maps(samples=3)
    layer = step(name)
    with torch.no_grad():
        together = layer(content, style)[0]
        alone = torch.cat([layer(content[i : i + 1], style[i : i + 1])[0] for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_rules_and_exact_agree_forward_and_differ_backward():
    content, style = maps()
    results, gradients = {}, {}
    for name in ("exact", "svd", "clip"):
        x = content.clone().requires_grad_()
        layer = step(name)
        y, _ = layer(x, style)
        y[:, ::3].square().sum().backward()
        results[name], gradients[name] = y.detach(), x.grad
    for name in ("svd", "clip"):
        torch.testing.assert_close(results[name], results["exact"], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(gradients["svd"], gradients["clip"], rtol=1e-3)


def test_the_taylor_rule_sees_the_covariance_with_eps_on_its_diagonal():
    """As the paper's M + εI; K so large that the expansion is exact leaves the exact gradient."""
    content, style = maps(channels=4)
    torch.manual_seed(1)
    exact, taylor = (transfer(name, 4, group_size=4, degree=2000) for name in ("exact", "svd"))
    taylor.load_state_dict(exact.state_dict())
    gradients = []
    for layer in (exact, taylor):
        x = content.clone().requires_grad_()
        layer(x, style)[0].square()[:, :2].sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-2, atol=1e-2 * gradients[0].abs().max().item())
    assert taylor.gradient.eps == 0.01


def test_power_iteration_takes_one_more_than_the_degree():
    assert transfer("pi", 8, group_size=8, degree=4).gradient.steps == 5


def test_exact_is_the_library_function():
    content, style = maps()
    layer = step("exact")
    with torch.no_grad():
        y = whiten_color(content, layer.perceptron(style), groups=2, alpha=layer.strength, eps=0.01)
        torch.testing.assert_close(layer(content, style)[0], y)


def test_power_iteration_drops_what_it_was_proposed_to_drop():
    """Energy below a ten-thousandth is not whitened: its deflation is part of the forward pass."""
    content, style = maps(channels=8)
    content = content * torch.tensor([100.0, *[1e-3] * 7])[:, None, None]
    layers = {name: full_strength(transfer(name, 8, group_size=8, eps=1e-8)) for name in ("pi", "svd")}
    for layer in layers.values():
        plain(layer)
    with torch.no_grad():
        rank = {name: torch.linalg.matrix_rank(f(content, style)[0][0].flatten(1)) for name, f in layers.items()}
    assert rank["pi"] < rank["svd"] == 8


def test_power_iteration_colours_as_the_style_but_for_what_it_drops():
    content, style = maps()
    layer = plain(full_strength(step("pi")))
    y = layer(content, style)[0]
    exact = plain(full_strength(step("exact")))(content, style)[0]
    assert 1e-3 < (y - exact).norm() / exact.norm() < 0.5
    layer.gradient = eg.PowerIteration(steps=10, stop=False)
    torch.testing.assert_close(layer(content, style)[0], exact, rtol=1e-3, atol=1e-3)


def test_learned_colouring_is_penalised_for_what_is_not_white_and_not_orthogonal():
    layer = LearnedTransfer(16, 8)
    white = torch.randn(1, 8, 4096)
    white = torch.linalg.solve_triangular(
        torch.linalg.cholesky(white[0].cov(correction=0)), white[0] - white[0].mean(1, keepdim=True), upper=False
    )
    content = torch.cat([white, white]).reshape(1, 16, 64, 64)
    style = torch.randn(1, 16, 4, 4)
    with torch.no_grad():
        _, (near, _) = layer(content, style)
        _, (far, angles) = layer(3 * content, style)
    assert near < 1e-5
    assert far == pytest.approx(8 / 8, rel=1e-3)  # the diagonal is 9 instead of 1, in one entry out of eight
    assert angles > 0.01


@pytest.mark.parametrize("name", SPECTRAL)
def test_half_precision_around_it_leaves_the_decomposition_in_full(name):
    content, style = maps()
    layer = plain(step(name))
    wanted = layer(content, style)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = layer(content, style)[0]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_misuse_is_named():
    with pytest.raises(ValueError, match=r"wct: got 'zca'; expected one of 'clip', 'exact', 'gd', 'pi', 'svd'"):
        transfer("zca", 16)
    with pytest.raises(ValueError, match="group_size must divide the 16 channels; got 5"):
        transfer("svd", 16, group_size=5)


@pytest.mark.parametrize("name", SPECTRAL)
def test_a_style_that_was_pooled_is_refused(name):
    with pytest.raises(ValueError, match=r"style must have at least 2 positions.*got \(2, 16, 1, 1\)"):
        step(name)(maps()[0], torch.randn(2, 16, 1, 1))


# How white the content is that colours are put on ---------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("name", SPECTRAL)
def test_whitened_content_is_white_but_for_what_algorithm_1_drops(name, batch):
    content, _ = maps()
    found = step(name, eps=1e-6, per_sample=not batch).whitened(content).detach()
    assert found.shape == (1 if batch else 2, 2, 8, 8)
    spectrum = torch.linalg.eigvalsh(found)
    kept = spectrum[..., 1:] if name == "pi" else spectrum
    torch.testing.assert_close(kept, torch.ones_like(kept), rtol=1e-2, atol=1e-2)
    if name == "pi":
        torch.testing.assert_close(spectrum[..., 0], torch.zeros(found.shape[:2]), rtol=0, atol=1e-3)


def test_learned_whitening_leaves_content_as_the_encoder_made_it():
    content, _ = maps()
    expected = torch.stack([torch.stack([g.flatten(1).cov(correction=0) for g in x.split(8)]) for x in content])
    torch.testing.assert_close(step("gd").whitened(content), expected, rtol=1e-4, atol=1e-4)
