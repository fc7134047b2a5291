"""A quick run of ``make fuzz``, and that it would notice."""

import pytest
import torch

import eigengrad as eg
import fuzz
from eigengrad import GradientWarning, matrix_functions
from eigengrad.gradients import RULES

SEED = 1
BATCHES = [number for number in range(63) if fuzz.shape(number)[0] in (2, 3, 5, 8, 12, 19, 32, 64)]


def small_batch(number, monkeypatch):
    monkeypatch.setattr(fuzz, "LARGEST_BATCH", 400)
    return fuzz.run_batch(SEED, number)


QUICK = (2, 5, 12, 32)  # the sizes of the quick suite


@pytest.mark.parametrize(
    "number", [pytest.param(b, marks=() if fuzz.shape(b)[0] in QUICK else pytest.mark.slow) for b in BATCHES]
)
def test_no_gradient_is_nan_or_infinite(number, monkeypatch):
    result = small_batch(number, monkeypatch)
    assert result.matrices >= 4
    assert not result.failures


def test_every_rule_that_is_bounded_and_every_function_but_iterations_and_approximants_is_fuzzed(monkeypatch):
    counts = small_batch(0, monkeypatch).through
    for rule in {type(rule).__name__ for rule in RULES.values()} - {
        "Exact",
        "UnitNormOrNaN",
    }:  # which are not finite at ties
        assert any(f"eigh, {rule}(" in name for name in counts)
    for function in matrix_functions.__all__:
        assert any(name.startswith(function) for name in counts) != function.startswith(
            ("newton_schulz", "pade", "taylor")
        )


def test_a_gradient_that_is_not_finite_is_noticed_and_named(monkeypatch):
    monkeypatch.setattr(fuzz, "RULES", [eg.Exact()])
    failures = small_batch(0, monkeypatch).failures
    assert any(failure.startswith("eigh, Exact(): batch 0: n = 2,") and "not finite" in failure for failure in failures)


def test_batch_is_determined_by_seed_and_number():
    first, again, other = (fuzz.make_batch(seed, 40) for seed in (3, 3, 4))
    assert torch.equal(first.hermitian, again.hermitian)
    assert torch.equal(first.rectangular, again.rectangular)
    assert not torch.equal(first.hermitian, other.hermitian)


@pytest.mark.parametrize(("number", "matrix"), [(4296, 1475), (7320, 5086)])
def test_a_tie_that_round_off_makes_a_gap_of_six_epsilon_is_warned_of(number, matrix):
    """Found among ten million matrices: the kernels put equal eigenvalues that far apart, at n = 5."""
    batch = fuzz.make_batch(0, number)
    with pytest.warns(GradientWarning, match="equal to round-off"):
        matrix_functions.spectral_projector(batch.hermitian[matrix] / batch.scale, 1)
