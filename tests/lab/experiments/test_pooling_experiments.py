"""E5 and E9: covariances of many channels, and errors on CIFAR-10 by pairs."""

import math

import pytest
import torch

import eigengrad as eg
from eigengrad.lab.experiments import EXPERIMENTS, Context
from eigengrad.lab.experiments.large_covariances import learned
from eigengrad.lab.experiments.pooling_fidelity import _measure, pooling_methods
from eigengrad.lab.training import Result
from eigengrad.nn.second_order_pool import second_order_pool


def result(error, outcome="succeeded"):
    return Result(config=None, outcome=outcome, curves={"train_error": [0.9, error]})


@pytest.mark.parametrize(
    ("error", "outcome", "expected"),
    [
        (0.5, "succeeded", True),
        (0.875, "succeeded", False),
        (0.84, "succeeded", False),  # which guessing reaches once in a hundred trainings
        (0.82, "succeeded", True),
        (0.5, "failed", False),
        (math.nan, "succeeded", False),
    ],
)
def test_a_run_has_learned_if_guessing_would_not_get_there(error, outcome, expected):
    assert learned(result(error, outcome), 480, 8) is expected


def test_methods_are_measured_against_the_exact_gradient(generator):
    """With fewer positions than channels: SVD-PI drops what is at ε, and has another square root."""
    torch.manual_seed(0)
    x, gy = torch.randn(2, 8, 2, 3), torch.randn(2, 36)
    entry = _measure(5, 1e-2, x, gy)
    assert (entry.step, entry.channels, entry.kept, entry.at_eps) == (5, 8, 5.0, 3.0)
    error, cosine, of_root = entry.methods["Exact (ours)"]
    assert error < 1e-4
    assert cosine == pytest.approx(1.0)
    assert of_root < 1e-4
    assert entry.methods["SVD-PI"][2] > 0.01 > entry.methods["SVD-PI, all pairs"][2]
    # The error of one of them, from the definition.
    found = []
    for method, dtype in ((pooling_methods(1e-2)["SVD-Taylor, K = 9"], torch.float32), ("exact", torch.float64)):
        leaf = x.detach().to(dtype).requires_grad_()
        second_order_pool(leaf, method=method, eps=1e-2).backward(gy.to(dtype))
        found.append(leaf.grad.double())
    expected = (found[0] - found[1]).norm() / found[1].norm()
    assert entry.methods["SVD-Taylor, K = 9"][0] == pytest.approx(expected.item(), rel=1e-3)


def test_pooling_fidelity_goes_on_where_it_was(tmp_path):
    context = Context(tmp_path, jobs=1, threads=1, steps=3)
    outcome = EXPERIMENTS["pooling_fidelity"].run("smoke", context)
    claims = {finding.claim: finding for finding in outcome.findings}
    assert claims["SVD-PI discards eigenvectors of covariances of 16 channels"].verdict == "confirmed"
    assert {f.detail for f in outcome.findings[1:]} == {"protocol check"}
    assert EXPERIMENTS["pooling_fidelity"].plan("smoke", context).seconds == 0
    with pytest.raises(ValueError, match="its networks have no groups"):
        EXPERIMENTS["pooling_fidelity"].plan("smoke", Context(tmp_path, group_sizes=(4,)))


@pytest.mark.slow
def test_svd_pi_that_learns_refutes_that_it_cannot(tmp_path):
    outcome = EXPERIMENTS["large_covariances"].run("smoke", Context(tmp_path, jobs=1, threads=1, trials=1))
    first = outcome.findings[0]
    assert (first.claim, first.verdict) == (
        "A covariance of 16 channels is enough for SVD-PI not to converge",
        "refuted",
    )
    assert "eigenvectors" in first.evidence


def test_errors_on_cifar_are_the_runs_of_table_4(tmp_path):
    context = Context(tmp_path, trials=3)
    ours, table4 = ({c.key() for c in EXPERIMENTS[n].configs("small", context)} for n in ("errors_cifar", "table4"))
    assert ours < table4
    assert len(EXPERIMENTS["errors_cifar"].configs("paper", Context(tmp_path))) == 4 * 3 * 23


def test_the_loop_of_algorithm_1_ends_with_the_last_matrix(generator):
    """It is not carried out for eigenvalues that every matrix of the batch drops, and says so in all of its results."""
    L = torch.tensor([[0.01, 0.01, 0.01, 0.5, 2.0], [0.01, 0.01, 0.3, 0.5, 2.0]], dtype=torch.float64)
    V = torch.linalg.qr(torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)).Q
    rule = eg.PowerIteration(eps=0.01)
    turns, _ = rule._deflate(L, V)
    assert len(turns) == 3
    assert rule.kept(L, V).tolist() == [[False] * 3 + [True] * 2, [False] * 2 + [True] * 3]
    gV, dA = torch.randn(2, 2, 5, 5, generator=generator, dtype=torch.float64).unbind()
    _, dV = rule.pushforward(L, V, dA + dA.mT)
    assert dV.shape == V.shape
    assert (dV[0, :, :3] == 0).all()
    product = (rule.pullback(L, V, None, gV) * (dA + dA.mT)).sum()
    assert product.item() == pytest.approx((gV * dV).sum().item(), rel=1e-10)
