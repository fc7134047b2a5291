"""SVD-PI in the experiments is the paper's Algorithm 1: a test for each of its lines, against the lines themselves."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import eigengrad as eg
from eigengrad.lab.experiments.methods import POOLING, WHITENING
from eigengrad.lab.experiments.translated import METHODS as TRANSLATION
from eigengrad.lab.models.normalisation import algorithm_1, normalisation
from eigengrad.lab.style.translation.wct import transfer
from eigengrad.nn import SecondOrderPool2d
from eigengrad.testing import random_unitary

F64 = torch.float64
EPS, DEGREE = 0.01, 9


class Printed:
    """Algorithm 1 line by line, for points (d, n), in operations that automatic differentiation runs over.

    Power iterations start at the eigenvectors of the decomposition, constants. "Power Iteration number 9" is the K of
    Eq. (pi_pytorch), a sum of K + 1 terms.
    """

    def __init__(self, x, eps=EPS, iterations=DEGREE + 1):
        d, count = x.shape
        self.mean = x.mean(1, keepdim=True)  # line 1
        centred = x - self.mean
        self.covariance = M = centred @ centred.mT / count + eps * torch.eye(d, dtype=x.dtype)  # line 2
        L, V = (t.detach().flip(-1) for t in torch.linalg.eigh(M))  # line 5
        rank, vectors, quotients = 1, [], []
        for i in range(d):  # line 6
            v = V[:, i : i + 1]
            for _ in range(iterations):  # line 7
                v = M @ v / torch.linalg.vector_norm(M @ v)
            quotient = v.mT @ M @ v / (v.mT @ v)  # line 8
            vectors.append(v)
            quotients.append(quotient)
            M = M - M @ v @ v.mT
            energy = L[: i + 1].sum() / L.sum()  # line 9
            at_eps = L[i] <= eps + d * torch.finfo(x.dtype).eps * L[0]  # what the decomposition knows of λ ≤ ε
            if at_eps or abs(quotient.item() - L[i]) / L[i] >= 0.1 or energy >= 1 - 0.0001:  # line 10
                break
            rank = i + 1
        self.rank = rank
        V = torch.cat(vectors[:rank], 1)  # line 15
        self.S = V @ torch.diag(torch.cat(quotients[:rank]).flatten() ** -0.5) @ V.mT  # line 16
        self.output = self.S @ centred  # line 17


def points(spectrum, generator, count=64):
    """(d, count) whose covariance has exactly these eigenvalues, in random directions, about a mean that is not 0."""
    d = len(spectrum)
    rows = torch.randn(count, d, generator=generator, dtype=F64)
    rows = torch.linalg.qr(rows - rows.mean(0)).Q * count**0.5  # white
    scales = torch.tensor(spectrum, dtype=F64).sqrt()
    return random_unitary((d,), generator) @ (rows * scales).mT + torch.arange(d, dtype=F64).unsqueeze(1)


def layer(d, **fields):
    chosen = {**WHITENING["power_iteration"].fields, **fields}
    norm = chosen.pop("norm")
    return normalisation(norm, group_size=d, eps=EPS, **chosen)(d).double()


def whiten(module, x):
    """Points (d, n) through a layer for images (N, d, H, W)."""
    return module(x.mT[:, :, None, None]).squeeze((2, 3)).mT


SPECTRA = {
    "full rank": [3.0, 1.0, 0.4, 0.1],
    "two at ε": [3.0, 1.0, 0.4, 0.1, 0.0, 0.0],
    "close": [1.001, 1.0, 0.5, 0.4999, 0.0],  # (at a tie the gradient of SVD-PI depends on the basis that is taken)
    "energy": [500.0, 1.0, 0.5, 1e-3, 5e-4],
    "energy in one": [500.0, 1e-3, 1e-3],
    "one": [2.0],
}
RANKS = {"full rank": 3, "two at ε": 4, "close": 4, "energy": 2, "energy in one": 1, "one": 1}


@pytest.mark.parametrize("name", SPECTRA)
def test_the_layer_is_the_printed_algorithm_in_both_passes(name, generator):
    x = points(SPECTRA[name], generator)
    weights = torch.randn(x.shape, generator=generator, dtype=F64)
    results = []
    for run in (lambda x: Printed(x).output, lambda x: whiten(layer(len(x)), x)):
        leaf = x.clone().requires_grad_()
        y = run(leaf)
        (y * weights).sum().backward()
        results.append((y.detach(), leaf.grad))
    (y, g), (ours, ours_g) = results
    torch.testing.assert_close(ours, y, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours_g, g, rtol=1e-6, atol=1e-6 * g.abs().max().item())


def test_line_1_and_2_centre_and_add_eps_to_the_covariance(generator):
    x = points(SPECTRA["two at ε"], generator)
    torch.testing.assert_close(whiten(layer(6), x + 100), whiten(layer(6), x), rtol=1e-8, atol=1e-8)
    module = layer(6)
    whiten(module, x)
    torch.testing.assert_close(
        Printed(x).covariance - EPS * torch.eye(6, dtype=F64), (x - x.mean(1, keepdim=True)).cov(correction=0)
    )
    torch.testing.assert_close(module.running_mean, 0.1 * x.mean(1))  # from 0, with a momentum of 0.1: lines 3 and 4


def test_line_6_takes_the_eigenvectors_of_the_decomposition_which_iterations_leave_where_they_are(generator):
    x = points(SPECTRA["full rank"], generator)
    V = torch.linalg.eigh(Printed(x).covariance).eigenvectors.flip(-1)[:, :3]
    L = torch.linalg.eigvalsh(Printed(x).covariance).flip(-1)[:3]
    torch.testing.assert_close(Printed(x).S, V @ torch.diag(L**-0.5) @ V.mT, rtol=1e-8, atol=1e-8)


def test_line_7_has_as_many_iterations_as_taylor_has_terms_in_every_experiment():
    steps = {
        "whitening": layer(4).gradient.steps,
        "translation": transfer(TRANSLATION["pi"].fields["wct"], 8, group_size=8).gradient.steps,
        "pooling": SecondOrderPool2d(8, method=POOLING["svd_pi"].fields["pooling"]).method.gradient.steps,
    }
    assert set(steps.values()) == {DEGREE + 1}
    assert WHITENING["taylor"].fields["degree"] == WHITENING["power_iteration"].fields["degree"] == DEGREE


def test_line_8_deflation_leaves_rayleigh_quotients_that_are_the_eigenvalues(generator):
    """What S is made of: λ̃ in the printed algorithm, λ in ours."""
    L = torch.tensor([0.1, 0.4, 1.0, 3.0], dtype=F64)
    V = random_unitary((4,), generator)
    turns, scale = algorithm_1(DEGREE, EPS)._deflate(L, V)
    quotients = [(turn.v.mT @ turn.M @ turn.v * scale).item() for turn in turns]
    assert quotients == pytest.approx(L.flip(-1)[:3].tolist(), rel=1e-12)  # the energy is enough without the last
    for before, after in pairwise(turns):
        if after.kept.all():
            torch.testing.assert_close(after.M, before.M - before.M @ before.v @ before.v.mT, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SPECTRA)
def test_lines_9_and_10_stop_where_the_printed_conditions_stop(name, generator):
    x = points(SPECTRA[name], generator)
    printed = Printed(x)
    kept = algorithm_1(DEGREE, EPS).kept(*torch.linalg.eigh(printed.covariance))
    assert kept.sum() == printed.rank == RANKS[name]


def test_line_10_stops_where_a_rayleigh_quotient_is_off(generator):
    """With an ε and an energy that would let it pass."""
    lenient = {"eps": 1e-30, "energy": 2.0}
    L = torch.tensor([1e-4, 0.5, 1.0], dtype=F64)
    V = random_unitary((3,), generator)
    V[:, 0] = V[:, 1]  # an eigenvector that is none: its quotient is not its eigenvalue
    assert eg.PowerIteration(**lenient).kept(L, V).tolist() == [False, True, True]
    assert eg.PowerIteration(**lenient, rayleigh_error=1e30).kept(L, V).tolist() == [True, True, True]


def test_lines_15_to_17_whiten_within_the_kept_directions_and_remove_the_others(generator):
    x = points(SPECTRA["two at ε"], generator)
    y = whiten(layer(6), x)
    spectrum = torch.linalg.eigvalsh(y.cov(correction=0))
    torch.testing.assert_close(spectrum[:2], torch.zeros(2, dtype=F64), atol=1e-10, rtol=0)
    assert (spectrum[2:] > 0.9).all()


def test_the_last_line_is_an_affine_map(generator):
    x = points(SPECTRA["full rank"], generator)
    module = layer(4)
    plain = whiten(module, x)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        module.bias.fill_(5.0)
    torch.testing.assert_close(whiten(module, x), plain * torch.arange(1.0, 5.0, dtype=F64).unsqueeze(1) + 5)


def test_backward_goes_through_the_kept_eigenvectors_alone(generator):
    x = points(SPECTRA["two at ε"], generator)
    L, V = torch.linalg.eigh(Printed(x).covariance)
    gV = torch.zeros(6, 6, dtype=F64)
    gV[:, :2] = torch.randn(6, 2, generator=generator, dtype=F64)
    assert (algorithm_1(DEGREE, EPS).pullback(L, V, None, gV) == 0).all()


# What the algorithm is for the network that the paper trains --------------------------------------------------------


def stem_features(channels=64):
    """Features behind a 3 × 3 convolution of RGB pictures: 27 numbers a position, whatever the channels."""
    torch.manual_seed(0)
    return nn.Conv2d(3, channels, 3, bias=False)(torch.randn(16, 3, 12, 12)).detach()


def at_eps(M, eps):
    """Eigenvalues of M + εI that are ε to round-off, in float32."""
    L = torch.linalg.eigvalsh(M)
    return eps + L.shape[-1] * torch.finfo(M.dtype).eps * L[..., -1:] >= L


def test_whitening_of_an_experiment_keeps_no_eigenvector_at_eps():
    x = stem_features()
    module = normalisation("dbn", group_size=64, gradient="power_iteration", degree=DEGREE, eps=EPS)(64)
    y = module(x).detach()
    points = x.transpose(0, 1).flatten(1)
    M = points.cov(correction=0) + EPS * torch.eye(64)
    L, V = torch.linalg.eigh(M)
    kept = module.gradient.kept(L, V)
    assert kept.sum() == 27
    assert not (kept & at_eps(M, EPS)).any()
    # And in what the layer returns: nothing along the dropped directions.
    assert torch.linalg.matrix_rank(y.transpose(0, 1).flatten(1).cov(correction=0), rtol=1e-3) == 27
    everything = eg.PowerIteration(steps=10, stop=False)
    assert everything.for_covariance(EPS).kept(L, V).all()


def test_pooling_of_an_experiment_keeps_no_eigenvector_at_eps():
    """Fewer positions than channels, as behind AlexNet's last convolution: λ = ε for the rest."""
    torch.manual_seed(0)
    x = torch.randn(2, 40, 4, 5)
    S = SecondOrderPool2d(40, method="svd_pi", output="matrix")(x)
    assert (torch.linalg.matrix_rank(S, rtol=1e-3) == 19).all()
    everything = SecondOrderPool2d(40, method="svd_pi", gradient=eg.PowerIteration(stop=False), output="matrix")(x)
    exact = SecondOrderPool2d(40, output="matrix")(x)
    torch.testing.assert_close(everything, exact, rtol=1e-4, atol=1e-4)
    assert (S - exact).norm() > 0.01 * exact.norm()
    kept = torch.linalg.eigvalsh(S) > 1e-3
    assert not (kept & at_eps(exact @ exact, EPS)).any()


def test_translation_of_an_experiment_keeps_no_eigenvector_at_eps():
    torch.manual_seed(0)
    module = transfer(TRANSLATION["pi"].fields["wct"], 16, group_size=16, eps=EPS)
    content = torch.randn(1, 1, 16, 9)
    covariance = content @ content.mT / 9
    whitening, _ = module._roots(covariance, covariance)
    assert torch.linalg.matrix_rank(whitening, rtol=1e-3).item() == 9
    assert module.gradient.eps == EPS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_eigenvalue_that_round_off_puts_above_eps_is_at_eps(dtype, generator):
    n = 16
    margin = n * torch.finfo(dtype).eps
    L = torch.tensor([EPS - 0.4 * margin, EPS + 0.4 * margin, EPS + 3 * margin, *[1.0] * (n - 3)], dtype=dtype)
    V = random_unitary((n,), generator).to(dtype)
    kept = eg.PowerIteration(eps=EPS, energy=2.0).kept(L, V)
    assert kept.tolist() == [False, False, *[True] * (n - 2)]


@pytest.mark.parametrize("name", ["inclusive", "stop"])
def test_switches_are_switches(name):
    with pytest.raises(TypeError, match=f"PowerIteration: {name} must be a bool; got 1"):
        eg.PowerIteration(**{name: 1})
