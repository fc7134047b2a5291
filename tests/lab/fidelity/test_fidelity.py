"""The fidelity of gradients: what is recorded, what it is compared with, and what the comparison says."""

import dataclasses
import math

import mpmath
import pytest
import torch
from torch import nn

from eigengrad import PairRule, Taylor
from eigengrad.lab.fidelity import Fidelity, Snapshot, fidelity_methods, measure, record_whitening, spectrum
from eigengrad.lab.fidelity.measure import _Inner, gradients
from eigengrad.lab.fidelity.methods import ALGORITHM_1, EXACT, SVD, taylor_name
from eigengrad.nn import DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, IterativeNorm
from eigengrad.nn.functional import whitening_matrix


def network(seed=0, group_size=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False),
        DecorrelatedBatchNorm2d(6, group_size=group_size),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(6 * 36, 3),
    )


def step(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(20, 1, 8, 8, generator=generator)
    labels = torch.randint(3, (20,), generator=generator)
    loss = nn.functional.cross_entropy(model(images.to(next(model.parameters()).dtype)), labels)
    loss.backward()


def snapshot_of(M, gS, eps=0.01):
    M, gS = (torch.as_tensor(t, dtype=torch.float64)[None] for t in (M, gS))
    return Snapshot("layer", 0, eps, 100, M, gS, torch.eye(M.shape[-1], dtype=torch.float64)[None])


# What is recorded -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DecorrelatedBatchNorm1d, DecorrelatedBatchNorm2d, IterativeNorm])
def test_the_recorded_matrices_give_the_gradient_that_reaches_the_input(kind):
    """Its norm, from three small matrices, is that of the gradient that torch computes."""
    torch.manual_seed(1)
    layer = kind(6, group_size=3).double()
    with torch.no_grad():
        layer.weight.uniform_(0.5, 2)
    shape = (40, 6) if kind is DecorrelatedBatchNorm1d else (10, 6, 3, 2)
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    with record_whitening(nn.Sequential(layer), every=1) as recording:
        y = layer(x)
        (y.tanh() * torch.randn(shape, dtype=torch.float64)).sum().backward()
    (snapshot,) = recording.snapshots
    S, gM = gradients(snapshot.covariance, snapshot.gradient, snapshot.eps, "exact")
    tolerance = 1e-10 if kind is not IterativeNorm else 0.05  # whose five iterations are not exact
    assert _Inner(snapshot).norm(S, gM) == pytest.approx(x.grad.norm().item(), rel=tolerance)


def test_recording_changes_nothing_and_ends_with_the_context():
    plain, recorded = network(), network()
    step(plain)
    with record_whitening(recorded, every=1) as recording:
        step(recorded)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), recorded.parameters(), strict=True))
    step(recorded)
    assert len(recording.snapshots) == 1


def test_one_step_in_so_many_and_none_in_evaluation():
    model = network()
    with record_whitening(model, every=3) as recording:
        for seed in range(7):
            step(model, seed)
        model.eval()
        step(model)
        with torch.no_grad():
            model.train()(torch.randn(2, 1, 8, 8))
    assert [(s.layer, s.step) for s in recording.snapshots] == [("1", 0), ("1", 3), ("1", 6)]
    assert recording.snapshots[0].covariance.dtype is torch.float64


def test_a_long_training_can_hand_its_snapshots_on():
    model, received = network(), []
    with record_whitening(model, every=1, sink=received.append) as recording:
        step(model)
    assert (len(received), recording.snapshots) == (1, [])


def test_misuse_is_named():
    with pytest.raises(ValueError, match="Linear has no whitening layer"), record_whitening(nn.Linear(2, 2)):
        pass
    pca = nn.Sequential(DecorrelatedBatchNorm1d(4, whitening="pca"))
    with pytest.raises(ValueError, match="whitening='zca'"), record_whitening(pca):
        pass
    with pytest.raises(ValueError, match="every"), record_whitening(network(), every=0):
        pass
    with record_whitening(network()) as recording:
        pass
    with pytest.raises(ValueError, match="nothing was recorded"):
        recording.report()


# What it is compared with ---------------------------------------------------------------------------------------------


def test_the_reference_is_what_finite_differences_say():
    generator = torch.Generator().manual_seed(2)
    B, gS, E = (torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    M, E, h = B @ B.T / 4, E + E.T, 1e-6
    _, gM = gradients(M, gS, 0.01, "exact")
    difference = whitening_matrix(M + h * E, eps=0.01) - whitening_matrix(M - h * E, eps=0.01)
    assert (gS * difference).sum() / (2 * h) == pytest.approx((gM * E).sum().item(), rel=1e-7)


def test_the_reference_agrees_with_forty_digits_at_ties():
    """Divided differences in mpmath, of a covariance without full rank, as layers have it."""
    generator = torch.Generator().manual_seed(3)
    B = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    M, gS, eps = B @ B.T / 3, torch.randn(6, 6, generator=generator, dtype=torch.float64), 0.01
    _, gM = gradients(M, gS, eps, "exact")
    with mpmath.workdps(40):
        L, V = mpmath.eigsy(mpmath.matrix(M.tolist()) + eps * mpmath.eye(6))
        s = [mpmath.sqrt(value) for value in L]
        G = mpmath.matrix(((gS + gS.T) / 2).tolist())
        inner = V.T * G * V
        weighed = mpmath.matrix(6, 6)
        for i in range(6):
            for j in range(6):
                weighed[i, j] = -inner[i, j] / (s[i] * s[j] * (s[i] + s[j]))
        exact = torch.tensor([[float(x) for x in row] for row in (V * weighed * V.T).tolist()], dtype=torch.float64)
    assert (gM - exact).norm() < 1e-10 * exact.norm()


@pytest.mark.parametrize("degree", [1, 9, 29])
def test_what_taylor_loses_is_the_power_of_the_ratio(degree):
    """A diagonal covariance and a gradient off the diagonal: the error is q^(K+1), and q = b/a of M + εI."""
    snapshot = snapshot_of(torch.diag(torch.tensor([0.99, 0.89], dtype=torch.float64)), [[0.0, 1.0], [1.0, 0.0]])
    found = measure(snapshot, Taylor(degree=degree, eps=0.01), torch.float64)
    assert found.error == pytest.approx(0.9 ** (degree + 1), rel=1e-9)
    assert found.cosine == pytest.approx(1)


def test_at_a_tie_plain_svd_has_no_gradient_taylor_loses_all_and_exact_loses_nothing():
    snapshot = snapshot_of(torch.diag(torch.tensor([0.5, 0.5])), [[0.0, 1.0], [1.0, 0.0]])
    methods = fidelity_methods(0.01)
    assert not measure(snapshot, methods[SVD]).finite
    assert measure(snapshot, methods[taylor_name(9)]).error == pytest.approx(1)
    exact = measure(snapshot, methods[EXACT])
    assert exact.finite
    assert exact.error < 1e-6
    assert exact.error_x < 1e-6


def test_the_truncation_of_svd_pi_is_another_function():
    """Algorithm 1 drops eigenvectors, and its gradient is then far from that of the whitening matrix."""
    generator = torch.Generator().manual_seed(4)
    B = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    snapshot = snapshot_of(B @ B.T / 4, torch.randn(8, 8, generator=generator, dtype=torch.float64))
    methods = fidelity_methods(0.01)
    assert measure(snapshot, methods[ALGORITHM_1]).error > 0.5
    assert measure(snapshot, methods[EXACT]).error < 1e-4
    found = spectrum(snapshot)
    assert found.tied == 4
    assert found.kept <= 4
    assert found.bound == 8 * 10 / 0.01
    assert 0 < found.first < 1
    assert found.gap < 1e-6


# What it says ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Half(PairRule):
    """A rule of somebody's own that uses half of every reciprocal."""

    def reciprocal(self, eigenvalues):
        gaps = (eigenvalues.unsqueeze(-1) - eigenvalues.unsqueeze(-2)).abs()
        return torch.where(gaps > 0, 0.5 / torch.where(gaps > 0, gaps, torch.ones_like(gaps)), 0.0)


def test_three_lines_give_a_report_of_every_method_and_of_ones_own(tmp_path):
    model = network(group_size=6)
    with record_whitening(model, every=1) as recording:
        step(model)
        step(model, 1)
    report = recording.report({"mine": Half()})
    summary = report.summary("1")
    assert set(summary) == {*fidelity_methods(0.01), "mine"}
    assert summary[EXACT].error < 1e-4 < summary["mine"].error
    assert summary[taylor_name(100)].error < summary[taylor_name(9)].error < summary[taylor_name(1)].error
    assert "mine" in str(report)
    readme = report.write(tmp_path / "own")
    text = readme.read_text()
    assert "| 1 | Exact (ours) |" in text
    assert "share of λ₁" in text
    assert {path.name for path in (tmp_path / "own").iterdir()} >= {"fidelity.png", "fidelity.csv", "outcome.json"}


def test_gradients_that_are_not_finite_are_counted_and_not_averaged():
    tied = snapshot_of(torch.eye(2), [[0.0, 1.0], [1.0, 0.0]])
    apart = snapshot_of(torch.diag(torch.tensor([1.0, 0.1])), [[0.0, 1.0], [1.0, 0.0]])
    summary = Fidelity.of([tied, apart]).summary("layer")[SVD]
    assert summary.finite == 0.5
    assert summary.error < 1e-5
    assert math.isnan(Fidelity.of([tied]).summary("layer")[SVD].error)
