"""The networks of the translation, and what they are trained to make small."""

import pytest
import torch
from torch import nn

from eigengrad.lab.style.translation import TranslationConfig
from eigengrad.lab.style.translation.content_encoder import ContentEncoder
from eigengrad.lab.style.translation.discriminator import Discriminator
from eigengrad.lab.style.translation.losses import adversarial_loss, critic_loss, generator_losses
from eigengrad.lab.style.translation.style_encoder import StyleEncoder
from eigengrad.lab.style.translation.translator import DomainNetwork, Passes, Translator
from eigengrad.lab.style.translation.wct import VARIANTS

SLIM = {"width": 4, "group_size": 8, "critic_width": 4, "image_size": 64, "style_reductions": 0, "blocks": 1}


def slim(wct="svd", **more):
    torch.manual_seed(0)
    return TranslationConfig(wct=wct, **{**SLIM, **more})


def pictures(count=2, size=64, seed=0):
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_the_network_of_the_paper():
    """64 → 128 → 256 with 4 residual blocks; style to 256; 5 steps in 8 groups of 32; 3 scales."""
    config = TranslationConfig()
    with torch.device("meta"):
        network, critic = DomainNetwork(config), Discriminator(config.critic_width, config.critic_scales)
        image = torch.empty(1, 3, 216, 216)
        content, style = network.content(image), network.style(image)
        scores = critic(image)
    assert content.shape == (1, 256, 54, 54)
    assert style.shape == (1, 256, 13, 13)
    assert [tuple(s.shape) for s in scores] == [(1, 1, 13, 13), (1, 1, 6, 6), (1, 1, 3, 3)]
    assert [(t.groups, t.group_size) for t in network.generator.transfers] == [(8, 32)] * 5
    assert len(network.generator.blocks) == 4
    widths = [layer.out_channels for layer in network.content.modules() if isinstance(layer, nn.Conv2d)]
    assert widths == [64, 128, 256] + [256] * 8
    norms = {
        name: {type(layer).__name__ for layer in part.modules() if "Norm" in type(layer).__name__}
        for name, part in (("content", network.content), ("style", network.style), ("blocks", network.generator.blocks))
    }
    assert norms == {"content": {"InstanceNorm2d"}, "style": {"GroupNorm"}, "blocks": set()}
    ups = [layer.out_channels for layer in network.generator.upwards.modules() if isinstance(layer, nn.Conv2d)]
    assert ups == [128, 64, 3]
    assert isinstance(list(network.generator.modules())[-1], nn.Tanh)


def test_the_schedule_of_the_paper():
    config = TranslationConfig()
    assert (config.iterations, config.batch_size, config.image_size) == (200_000, 4, 216)
    assert (config.lr, config.weight_decay, config.decay_from, config.decay_every) == (1e-4, 1e-4, 100_000, 10_000)
    weights = ("reconstruction", "cycle", "content", "style", "whitening", "coloring")
    assert [getattr(config, f"{name}_weight") for name in weights] == [10, 10, 1, 1, 1e-3, 10]
    assert (config.wct, config.degree, config.eps) == ("svd", 9, 0.01)


@pytest.mark.parametrize("wct", VARIANTS)
def test_pictures_come_out_as_pictures(wct):
    passes = Translator(slim(wct))(pictures(), pictures(seed=1))
    for image in passes[:6]:
        assert image.shape == (2, 3, 64, 64)
        assert image.abs().max() <= 1


@pytest.mark.parametrize("wct", VARIANTS)
def test_the_style_of_the_picture_is_in_the_result(wct):
    """Another painting, another result; and its gradient reaches the style encoder."""
    translator = Translator(slim(wct))
    photo = pictures(1)
    first = translator.translate(photo, pictures(1, seed=1))
    second = translator.translate(photo, pictures(1, seed=2) ** 3)
    assert (first - second).abs().mean() > 1e-3
    first.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in translator.b.style.layers[-1][0].parameters())
    assert all(p.grad is None for p in translator.a.style.parameters())


def test_passes_are_what_their_names_say():
    translator = Translator(slim())
    a, b = pictures(), pictures(seed=1)
    A, B = translator.a, translator.b
    with torch.no_grad():
        passes = translator(a, b)
        torch.testing.assert_close(passes.ab, B.generator(A.content(a), B.style(b))[0])
        torch.testing.assert_close(passes.ba, A.generator(B.content(b), A.style(a))[0])
        torch.testing.assert_close(passes.aa, A.generator(A.content(a), A.style(a))[0])
        torch.testing.assert_close(passes.bb, B.generator(B.content(b), B.style(b))[0])
        torch.testing.assert_close(passes.aba, A.generator(B.content(passes.ab), A.style(passes.ba))[0])
        torch.testing.assert_close(passes.bab, B.generator(A.content(passes.ba), B.style(passes.ab))[0])
        torch.testing.assert_close(passes.ab, translator.translate(a, b))
        torch.testing.assert_close(passes.ba, translator.translate(b, a, to="a"))


def test_a_picture_does_not_depend_on_its_batch():
    translator = Translator(slim())
    a, b = pictures(3), pictures(3, seed=1)
    with torch.no_grad():
        together = translator.translate(a, b)
        alone = torch.cat([translator.translate(a[i : i + 1], b[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


def test_encoders_keep_maps():
    assert ContentEncoder(4, 1)(pictures(1)).shape == (1, 16, 16, 16)
    assert StyleEncoder(4, 2, 2)(pictures(1)).shape == (1, 16, 4, 4)
    assert [tuple(s.shape) for s in Discriminator(4, 3)(pictures(1))] == [(1, 1, 4, 4), (1, 1, 2, 2), (1, 1, 1, 1)]


def ideal(a, b, zeros):
    return Passes(b, a, a, b, a, b, (zeros,) * 4, ([zeros], [zeros], [zeros], [zeros]), torch.zeros(2))


def test_losses_are_zero_for_perfect_passes_and_weighted_otherwise():
    a, b = pictures(), pictures(seed=1)
    perfect = ideal(a, b, torch.zeros(2, 3))
    assert all(value == 0 for value in generator_losses(perfect, a, b, slim()).values())
    off = perfect._replace(
        aa=a + 0.1,
        aba=a + 0.2,
        content=(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3)),
        style=([torch.zeros(2)], [torch.zeros(2)], [torch.zeros(2)], [torch.full((2,), 3.0)]),
        penalties=torch.tensor([5.0, 7.0]),
    )
    losses = generator_losses(off, a, b, slim("gd"))
    expected = {"reconstruction": 1, "cycle": 2, "content": 1, "style": 3, "whitening": 5e-3, "coloring": 70}
    assert {name: float(value) for name, value in losses.items()} == pytest.approx(expected, rel=1e-5)
    assert "whitening" not in generator_losses(off, a, b, slim("svd"))


def test_judges_are_right_at_no_loss():
    ones, zeros = ([torch.ones(2, 1, 3, 3)],) * 2, ([torch.zeros(2, 1, 3, 3)],) * 2
    assert critic_loss(zeros, ones) == 0
    assert critic_loss(ones, zeros) == 4
    assert adversarial_loss(ones) == 0
    assert adversarial_loss(zeros) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"wct": "zca"}, "wct: got 'zca'"),
        ({"group_size": 7}, "group_size must divide the 256 channels"),
        ({"image_size": 66}, "image_size must be a multiple of 4; got 66"),
        ({"image_size": 32}, "image_size must be at least 64 for 3 scales of discriminators; got 32"),
        ({"evaluate_every": 300}, "evaluate_every must divide iterations, decay_from, decay_every; got 300"),
        ({"evaluate_every": 7, "iterations": 60}, "evaluate_every must divide iterations; got 7"),
        ({"style_reductions": 9}, "style_reductions must leave 8 positions of an image_size of 216; got 9"),
        ({"domain_a": "a/b"}, "domain_a must be a name"),
        ({"lr": 0}, "lr must be"),
    ],
)
def test_bad_settings_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        TranslationConfig(**fields)


def test_evaluations_may_fall_between_the_steps_of_a_decay_that_does_not_come():
    config = TranslationConfig(evaluate_every=30, iterations=60)
    assert config.decay_from % config.evaluate_every


def test_the_key_holds_what_matters():
    config = TranslationConfig(wct="exact")
    assert config.key() == config.replace(folder_a="/x", threads=1, degree=3, whitening_weight=9.0).key()
    assert config.key() != config.replace(eps=0.1).key()
    assert config.key() != config.replace(wct="svd").key()
    assert config.key().startswith("photo-vangogh-exact-s0-")
    for wct in ("svd", "pi"):
        assert config.replace(wct=wct, degree=3).key() != config.replace(wct=wct).key()
    assert TranslationConfig.from_dict(config.to_dict()) == config
    assert config.key() != config.replace(batch_covariance=True).key()
    assert config.key() == config.replace(style_loss="seen").key()
    learned = config.replace(wct="gd")
    assert learned.key() != learned.replace(style_loss="seen").key()
    assert learned.key() == learned.replace(batch_covariance=True).key()


def test_what_is_no_style_loss_is_refused():
    with pytest.raises(ValueError, match="style_loss: got 'gram'; expected one of 'moments', 'seen'"):
        TranslationConfig(style_loss="gram")
    with pytest.raises(TypeError, match="batch_covariance must be a bool; got 1"):
        TranslationConfig(batch_covariance=1)


def test_pictures_are_made_larger_without_blocks():
    """What rises evenly still does: repeated pixels would be steps, which stay visible as a grid."""
    enlarge = DomainNetwork(slim()).generator.upwards[0]
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    steps = enlarge(ramp)[0, 0, 4].diff()[1:-1]  # the borders repeat what is there
    torch.testing.assert_close(steps, torch.full_like(steps, 0.5))
