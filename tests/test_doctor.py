"""diagnose: verdicts worked out by hand, errors against closed forms, lines that run, and text of 80 columns."""

import json
import math

import pytest
import torch

import eigengrad as eg


def diagonal(*values, dtype=torch.float32):
    return torch.diag(torch.tensor(values, dtype=dtype))


def rotated(*values, dtype=torch.float64):
    Q = torch.linalg.qr(torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(3), dtype=dtype))
    return (Q.Q * torch.tensor(values, dtype=dtype)) @ Q.Q.mT


@pytest.mark.parametrize(
    ("A", "verdict", "kind", "tied"),
    [
        (diagonal(1.0, 2.0, 4.0), "healthy", "Hermitian, positive definite", 0),
        (diagonal(1.0, 1.0, 4.0), "tied", "Hermitian, positive definite", 2),
        (diagonal(1.0, 1.0001, 4.0), "close", "Hermitian, positive definite", 0),
        (diagonal(-1.0, 1.0, 4.0), "healthy", "Hermitian, indefinite", 0),
        (diagonal(0.0, 0.0, 0.0, 2.0), "tied", "Hermitian, positive semi-definite", 3),
        (torch.tensor([[0.0, -1.0], [1.0, 0.0]]), "tied", "general", 2),
        (torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), "healthy", "general", 0),
        (torch.ones(1, 1), "healthy", "Hermitian, positive definite", 0),
        (torch.full((2, 2), math.nan), "not finite", "general", 0),
    ],
)
def test_verdict(A, verdict, kind, tied):
    found = eg.diagnose(A)
    assert (found.verdict, found.kind, found.tied) == (verdict, kind, tied)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_every_type(dtype):
    assert eg.diagnose(torch.diag(torch.tensor([1.0, 2.0, 4.0])).to(dtype)).values == (1.0, 2.0, 4.0)


def test_the_worst_matrix_of_a_batch_is_the_one_reported():
    A = torch.stack([diagonal(1.0, 2.0, 3.0), diagonal(1.0, 1.5, 3.0), diagonal(1.0, 2.5, 3.0)]).reshape(3, 1, 3, 3)
    found = eg.diagnose(A)
    assert found.worst in ((1, 0), (2, 0))
    assert found.relative_gap == pytest.approx(0.25)
    assert found.largest_relative_gap == pytest.approx(0.5)
    assert (found.matrices, found.examined, found.shape) == (3, 3, (3, 1, 3, 3))


def test_a_nan_is_traced_to_its_matrix():
    A = torch.eye(2).repeat(2, 3, 1, 1)
    A[1, 2, 0, 1] = math.inf
    found = eg.diagnose(A)
    assert found.worst == (1, 2)
    assert "detect_anomaly" in found.advice[0].line


def test_functions_are_exact_where_rules_are_not():
    """A tie of two: the rules lose the part of the gradient between the two vectors, matrix_inv_sqrt nothing."""
    vectors, function, subspace = eg.diagnose(rotated(1.0, 1.0, 4.0)).losses
    assert function.exact.error < 1e-12
    assert subspace.exact.error < 1e-12
    for rule in ("saturate", "taylor", "clip", "lorentzian", "mask"):
        assert 0.1 < function.effects[rule].error < 1
    assert vectors.effects["saturate"].error < 1e-12  # all that has a gradient, it has
    assert subspace.effects["saturate"].error < 1e-12


def test_the_error_of_a_rule_is_what_its_formula_says():
    """Two eigenvalues: the gradient has one entry, of which Taylor keeps 1 − q^10, and Clip keeps t·gap."""
    (vectors, *_) = eg.diagnose(rotated(1.0, 1.25)).losses
    q = 1 / 1.25
    assert vectors.effects["taylor"].kept == pytest.approx(1 - q**10, rel=1e-9)
    assert vectors.effects["taylor"].error == pytest.approx(q**10, rel=1e-9)
    assert vectors.effects["exact"].error < 1e-12
    (vectors, *_) = eg.diagnose(rotated(1.0, 1.001)).losses
    assert vectors.effects["clip"].kept == pytest.approx(0.1, rel=1e-6)
    assert vectors.effects["clip"].error == pytest.approx(0.9, rel=1e-6)


def test_exact_is_not_finite_at_a_tie():
    found = eg.diagnose(diagonal(2.0, 2.0, 5.0))
    assert found.amplification["exact"] == math.inf
    assert math.isnan(found.losses[0].effects["exact"].error)
    assert found.amplification["saturate"] == pytest.approx(1e5)


@pytest.mark.parametrize("A", [torch.eye(3, 5), torch.eye(3), rotated(1.0, 2.0, 0.0), rotated(-1.0, 2.0, 2.0)])
def test_every_line_runs(A):
    found = eg.diagnose(A)
    for advice in found.advice:
        line = advice.line + (" pass" if advice.line.endswith(":") else "")
        exec(line, {"eg": eg, "A": A, "f": torch.exp})


@pytest.mark.parametrize(
    "A", [rotated(*range(1, 40)), rotated(0.0, 0.0, 1.0), torch.eye(40, 20), torch.ones(7, 9, 4, 4)]
)
def test_the_text_fits_80_columns_and_has_every_rule(A):
    found = eg.diagnose(A)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    for rule in ("saturate", "exact", "taylor", "clip", "lorentzian", "mask", "truncate"):
        assert f"\n  {rule} " in text
    for advice in found.advice:
        assert advice.line in text


def test_the_dictionary_is_plain_json():
    data = json.loads(json.dumps(eg.diagnose(diagonal(2.0, 2.0, 5.0)).to_dict(), allow_nan=False))
    assert data["amplification"]["exact"] == "inf"
    assert data["losses"][0]["effects"]["exact"]["error"] == "nan"
    assert data["advice"][0]["line"] == "W = eg.matrix_inv_sqrt(A)"


def test_the_same_at_every_scale():
    one, other = eg.diagnose(rotated(1.0, 1.1, 3.0)), eg.diagnose(rotated(1.0, 1.1, 3.0) * 1e-20)
    assert other.verdict == one.verdict
    assert other.relative_gap == pytest.approx(one.relative_gap)
    assert other.losses[0].effects["saturate"].error == pytest.approx(one.losses[0].effects["saturate"].error, abs=1e-9)


def test_no_warnings_and_no_gradients_are_left(recwarn):
    A = torch.eye(4).requires_grad_()
    eg.diagnose(A)
    assert A.grad is None
    assert not recwarn.list


def test_a_large_batch_is_sampled(monkeypatch):
    monkeypatch.setattr("eigengrad.doctor.examination._WORK", 27 * 10)
    found = eg.diagnose(torch.eye(3).repeat(100, 1, 1))
    assert (found.matrices, found.examined) == (100, 10)
    assert "divisible by 10" in found.notes[0]


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        ([[1.0]], TypeError, "diagnose: A must be a torch.Tensor; got list"),
        (torch.ones(3), ValueError, r"diagnose: A must have shape \(..., m, n\); got \(3,\)"),
        (torch.eye(2, dtype=torch.int64), TypeError, "diagnose: .*torch.int64"),
        (torch.ones(0, 3, 3), ValueError, "diagnose: A must not be empty"),
        (torch.ones(1, 1).expand(2000, 2000), ValueError, "diagnose: the smaller side of A must be at most 1024"),
    ],
)
def test_misuse(bad, kind, message):
    with pytest.raises(kind, match=message):
        eg.diagnose(bad)
