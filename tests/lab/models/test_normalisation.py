"""Every gradient, average and place of the normalisation under test, by name."""

import pytest
import torch
from torch import nn

import eigengrad as eg
from eigengrad.lab.models import build, normalisation
from eigengrad.lab.models.normalisation import GRADIENTS, normalise_more, whitening_rule
from eigengrad.lab.models.released import ReleasedTaylor
from eigengrad.nn import DecorrelatedBatchNorm2d, IterativeNorm
from eigengrad.testing import adjoint_defect, random_hermitian, random_unitary

F64 = torch.float64


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_every_gradient_trains_a_step(gradient):
    torch.manual_seed(0)
    layer = normalisation("dbn", group_size=4, gradient=gradient)(8)
    x = torch.randn(6, 8, 5, 5, requires_grad=True)
    y = layer(x)[:, ::2].square().sum()
    with eg.GradientMonitor() as monitor:
        y.backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().max() > 0
    assert monitor.matrices == 2  # it sees every method


def test_a_monitor_sees_that_cholesky_loses_nothing():
    layer = normalisation("dbn", group_size=4, whitening="cholesky")(8)
    y = layer(torch.randn(6, 8, 5, 5, requires_grad=True)).square().sum()
    with eg.GradientMonitor() as monitor:
        y.backward()
    assert (monitor.matrices, monitor.lost) == (2, 0.0)


def test_a_monitor_sees_what_the_sign_at_a_tie_does_to_the_released_gradient(generator):
    """With a loss of V f(λ) Vᴴ, whose gradient has no part in the rotation of a tie."""
    lost = []
    for values in ([0.1, 0.3, 0.7, 2.0], [0.1, 0.7, 0.7, 2.0]):
        A = torch.diag(torch.tensor(values, dtype=F64)).requires_grad_()
        weights = random_hermitian(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64), generator)
        _, V = eg.eigh(A, gradient=ReleasedTaylor(200))
        loss = ((V * torch.tensor(values, dtype=F64).sqrt()) @ V.mT * weights).sum()
        with eg.GradientMonitor() as monitor:
            loss.backward()
        lost.append(monitor.lost)
    assert lost[0] < 1e-6
    assert lost[1] > 1


@pytest.mark.parametrize(
    ("gradient", "rule"),
    [
        ("exact", "exact"),
        ("pi(steps=9)", "pi(steps=9)"),
        ("clip(threshold=50)", eg.Clip(50)),
        ("mask", "mask"),
        ("taylor", eg.Taylor(5, 0.02)),
        ("taylor(degree=19)", eg.Taylor(19, 0.02)),
        ("power_iteration", eg.PowerIteration(6, 0.02, inclusive=True)),
        ("power_iteration(steps=19, stop=false)", eg.PowerIteration(19, 0.02, inclusive=True, stop=False)),
        ("power_iteration(eps=none, energy=0.9)", eg.PowerIteration(6, None, energy=0.9, inclusive=True)),
        ("released", ReleasedTaylor(5)),
        ("released(degree=3)", ReleasedTaylor(3)),
    ],
)
def test_names_have_parameters_and_the_experiments_defaults(gradient, rule):
    assert whitening_rule(gradient, degree=5, eps=0.02) == rule


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        ("soft", "gradient: got 'soft'; expected one of .*'released'"),
        ("exact(x=1)", "exact has no parameters"),
        ("pi(x=1)", "the parameters of pi are: steps"),
        ("released(x=1)", "the parameters of released are: degree"),
        ("taylor(degree=-1)", "Taylor: degree must be at least 0"),
        ("pade", "is 1/\\(1 − q\\) itself"),
    ],
)
def test_what_is_no_gradient_is_refused(gradient, message):
    with pytest.raises(ValueError, match=message):
        whitening_rule(gradient)


def test_options_reach_the_layer():
    layer = normalisation("dbn", group_size=4, momentum=0.3, whitening="pca", gradient="mask", average="whitening")(8)
    assert (layer.momentum, layer.whitening, layer.gradient, layer.average) == (0.3, "pca", "mask", "whitening")
    assert normalisation("dbn", group_size=4, whitening="cholesky")(8).gradient is None
    assert normalisation("batchnorm", momentum=0.3)(8).momentum == 0.3
    assert {normalisation(name)(16).method for name in ("iternorm", "mpa", "mtp")} == {
        "newton_schulz",
        "pade",
        "taylor",
    }


def test_a_pooling_may_be_any_rule():
    options = {"norm": normalisation("none"), "stem_width": 4, "width": 4, "in_channels": 1, "image_size": 8}
    model = build("convnet", 3, pooling="power_iteration(steps=3, stop=false)", **options, pooling_eps=0.1)
    assert model.pool.method.gradient == eg.PowerIteration(3, stop=False)
    assert model.pool.method.eps == 0.1
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 3)
    assert build("convnet", 3, pooling="svd_pi", **options).pool.method.gradient.inclusive
    with pytest.raises(ValueError, match="Clip: threshold must be positive"):
        build("convnet", 3, pooling="clip(threshold=0)", **options)


def test_more_norms_can_be_whitened():
    model = build("resnet18", 10, norm=normalisation("dbn", group_size=8), stem_width=16, width=4)
    make = normalisation("dbn", group_size=8, divide=True)
    normalise_more(model, ["layer1.0.bn1", "layer2.0.downsample.1"], make)
    kinds = {name: m.group_size for name, m in model.named_modules() if isinstance(m, DecorrelatedBatchNorm2d)}
    assert kinds == {"bn1": 8, "layer1.0.bn1": 4, "layer2.0.downsample.1": 8}
    normalise_more(model, None, normalisation("iternorm", group_size=8, divide=True))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert sum(isinstance(m, IterativeNorm) for m in model.modules()) == 18
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(ValueError, match="whitened: no batch norm is called x; there are: "):
        normalise_more(build("convnet", 10, norm=normalisation("none")), ["x"], make)


# What the authors released -------------------------------------------------------------------------------------------


def test_released_gradient_is_taylors_where_there_is_no_tie(generator):
    A = random_hermitian(torch.tensor([0.1, 0.3, 0.35, 2.0], dtype=F64), generator)
    weights = torch.randn(4, 4, generator=generator, dtype=F64)
    found = []
    for rule in (ReleasedTaylor(9), eg.Taylor(9)):
        B = A.clone().requires_grad_()
        L, V = eg.eigh(B, gradient=rule)
        ((V * weights).sum() + L.square().sum()).backward()
        found.append(B.grad)
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-10)


def test_released_gradient_has_one_sign_in_both_entries_of_a_tie(generator):
    """Against the released formula itself, entry by entry."""
    L = torch.tensor([0.01, 0.01, 0.02], dtype=F64)
    V, gV = random_unitary((3,), generator), torch.randn(3, 3, generator=generator, dtype=F64)
    K = torch.zeros(3, 3, dtype=F64)
    for i in range(3):
        for j in range(3):
            if i != j:
                a, b = max(L[i], L[j]), min(L[i], L[j])
                K[i, j] = sum((b / a) ** k for k in range(10)) / (L[i] if L[i] >= L[j] else -L[j])
    assert K[0, 1] == K[1, 0] == pytest.approx(1000.0)
    expected = V @ (K.mT * (V.mT @ gV)) @ V.mT
    expected = (expected + expected.mT) / 2
    actual = ReleasedTaylor(9).pullback(L, V, None, gV)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    ours = eg.Taylor(9).pullback(L, V, None, gV)
    assert (actual - ours).norm() > 0.1 * ours.norm()


def test_released_gradient_is_adjoint_to_its_forward_mode(generator):
    A = random_hermitian(torch.tensor([0.5, 0.5, 1.0, 2.0], dtype=F64), generator)
    assert adjoint_defect(lambda A: tuple(eg.eigh(A, gradient=ReleasedTaylor())), A, generator, hermitian=True) < 1e-10


def test_released_layer_averages_the_whitening_matrix():
    layer = normalisation("dbn", group_size=4, gradient="released")(8)
    assert layer.average == "whitening"
    assert normalisation("dbn", group_size=4, gradient="taylor")(8).average == "covariance"
