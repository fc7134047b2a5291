"""The statistics of the lab, on data whose truth is known."""

import math

import numpy as np
import pytest

from eigengrad.lab.statistics import (
    clopper_pearson,
    cluster_bootstrap,
    detectable,
    hazard,
    holm,
    kaplan_meier,
    paired,
    pairs_for_difference,
    pairs_for_equivalence,
    runs_for_bound,
    upper_bound,
)

# Rates ----------------------------------------------------------------------------------------------------------------


def test_three_of_three_bound_the_rate_of_failure_by_63_per_cent():
    assert upper_bound(0, 3) == pytest.approx(1 - 0.05 ** (1 / 3))
    assert upper_bound(0, 58) > 0.05 > upper_bound(0, 59)
    assert runs_for_bound(0.05) == 59


@pytest.mark.parametrize(("rate", "total"), [(0.02, 40), (0.3, 12), (0.5, 7), (0.97, 30)])
def test_the_exact_interval_holds_the_rate_at_least_as_often_as_it_says(rate, total):
    counts = np.random.default_rng(0).binomial(total, rate, 2000)
    held = [low <= rate <= high for low, high in (clopper_pearson(int(c), total) for c in counts)]
    assert np.mean(held) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 2000)


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="got 4 of 3"):
        clopper_pearson(4, 3)
    with pytest.raises(ValueError, match="got -1 of 3"):
        upper_bound(-1, 3)


# Paired differences ---------------------------------------------------------------------------------------------------


def test_pairing_removes_what_the_seeds_have_in_common():
    generator = np.random.default_rng(1)
    common = generator.normal(0, 5, 40)
    first, second = common + generator.normal(0, 0.5, 40), common + generator.normal(1, 0.5, 40)
    found = paired((first - second).tolist())
    assert found.high < 0
    assert found.deviation < 1 < first.std()


def test_equal_pairs_are_equivalent_and_a_constant_difference_is_one():
    same, shifted = paired([0.0] * 6, 0.2), paired([0.5] * 6, 0.2)
    assert (same.p_different, same.p_equivalent) == (1, 0)
    assert (shifted.p_different, shifted.p_equivalent) == (0, 1)


@pytest.mark.parametrize("pairs", [6, 20, 80])
def test_the_stated_power_is_reached(pairs):
    """The difference that is said to be seen with 80 % power is seen in 80 of 100 simulations."""
    generator, deviation = np.random.default_rng(pairs), 1.3
    truth = detectable(pairs, deviation, alpha=0.01)
    runs = generator.normal(truth, deviation, (1500, pairs))
    seen = np.mean([paired(differences).p_different <= 0.01 for differences in runs.tolist()])
    assert seen == pytest.approx(0.8, abs=0.035)


def test_the_numbers_of_pairs_have_the_power_they_are_for():
    generator = np.random.default_rng(3)
    n = pairs_for_difference(1.0, 0.6, alpha=0.05)
    found = np.mean([paired(d).p_different <= 0.05 for d in generator.normal(0.6, 1, (1500, n)).tolist()])
    assert 0.77 < found < 0.84
    n = pairs_for_equivalence(1.0, 0.6)
    found = np.mean([paired(d, 0.6).p_equivalent <= 0.05 for d in generator.normal(0, 1, (1500, n)).tolist()])
    assert 0.77 < found < 0.84


def test_equivalence_is_not_claimed_at_the_margin():
    generator = np.random.default_rng(4)
    claimed = np.mean([paired(d, 0.5).p_equivalent <= 0.05 for d in generator.normal(0.5, 1, (2000, 25)).tolist()])
    assert claimed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_too_few_pairs_and_margins_that_are_none_are_refused():
    with pytest.raises(ValueError, match="differences: got 1"):
        paired([1.0])
    with pytest.raises(ValueError, match="margin: got 0"):
        paired([1.0, 2.0], 0)


# Several tests --------------------------------------------------------------------------------------------------------


def test_holm_is_the_step_down_of_bonferroni():
    assert holm([0.005, 0.011, 0.02, 0.04]) == pytest.approx([0.02, 0.033, 0.04, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


# Survival -------------------------------------------------------------------------------------------------------------


def test_survival_without_censoring_is_the_share_that_is_left():
    found = kaplan_meier([5, 1, 3, 9], [True] * 4)
    assert found.times == (1, 3, 5, 9)
    assert found.surviving == pytest.approx((0.75, 0.5, 0.25, 0))
    assert all(low <= s <= high for low, s, high in zip(found.low, found.surviving, found.high, strict=True))


def test_runs_that_end_alive_are_not_failures():
    found = kaplan_meier([10, 10, 10], [False] * 3)
    assert found.surviving == (1,)
    assert found.low == (0,)  # nothing failed, so nothing bounds it on this scale


def test_a_constant_hazard_is_found_and_extrapolated():
    generator, rate, length = np.random.default_rng(5), 1 / 500, 1000
    held = 0
    for _ in range(300):
        times = generator.exponential(1 / rate, 20)
        lasted = np.minimum(times, length)
        found = hazard(int((times < length).sum()), float(lasted.sum()))
        low, high = found.failing_within(137_000)[1:]
        held += found.low <= rate <= found.high and low <= -math.expm1(-rate * 137_000) <= high
    assert held / 300 > 0.92
    assert hazard(0, 137_000).failing_within(137_000)[2] == pytest.approx(0.95)  # one run of that length bounds little


# Clusters -------------------------------------------------------------------------------------------------------------


def test_snapshots_of_one_training_count_once():
    generator = np.random.default_rng(6)
    held = 0
    for _ in range(200):
        levels = generator.normal(0, 1, 20)
        clusters = [(level + generator.normal(0, 0.1, 50)).tolist() for level in levels]
        _, low, high = cluster_bootstrap(clusters, resamples=500)
        held += low <= 0 <= high
    assert held / 200 > 0.87  # snapshots taken for independent would hold it in a third of the cases
    assert cluster_bootstrap([[1.0], [2.0]])[1:] == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="no cluster"):
        cluster_bootstrap([[]])
