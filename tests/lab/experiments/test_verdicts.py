"""Verdicts on claims: by one standard for both directions, with the error rates they promise."""

import numpy as np
import pytest

from eigengrad.lab.experiments.trials import Trials
from eigengrad.lab.experiments.verdicts import (
    ALPHA,
    Comparison,
    always_fails,
    better,
    judge,
    judge_table,
    never_fails,
    some_fail,
)
from eigengrad.lab.training import Config, Failure, Result


def run(error=None, seed=0, steps=100):
    """A run that succeeded with an error, or failed for want of one."""
    failure = None if error is not None else Failure(steps, 1, "non-finite gradient", "conv1", "not finite")
    outcome = "failed" if failure else "succeeded"
    return Result(Config(seed=seed), outcome, failure, best_error=error, seed=seed, steps=steps)


def trials(*errors, steps=100):
    return Trials.of([run(error, seed, steps) for seed, error in enumerate(errors)])


# Failures -------------------------------------------------------------------------------------------------------------


def test_three_of_three_do_not_confirm_that_nothing_fails():
    finding = never_fails("c", {"a": trials(0.1, 0.1, 0.1)})
    assert finding.label == "undecided: needs 56 more runs"
    assert "below 63 %" in finding.evidence
    assert "3 of 3 succeeded (29 to 100 %)" in finding.evidence


def test_nor_that_everything_does():
    assert always_fails("c", {"a": trials(None, None, None)}).label == "undecided: needs 56 more runs"


def test_59_runs_confirm_either():
    assert never_fails("c", {"a": trials(*[0.1] * 59)}).verdict == "confirmed"
    assert always_fails("c", {"a": trials(*[None] * 59)}).verdict == "confirmed"
    # The group with the fewest runs decides.
    groups = {"a": trials(*[0.1] * 59), "b": trials(*[0.1] * 50)}
    assert never_fails("c", groups).label == "undecided: needs 9 more runs"


def test_one_run_refutes_either():
    mixed = {"a": trials(*[0.1] * 70), "b": trials(0.1, None)}
    assert never_fails("c", mixed).verdict == "refuted"
    assert always_fails("c", mixed).verdict == "refuted"
    assert some_fail("c", mixed, steps=1000).verdict == "confirmed"


def test_short_runs_neither_confirm_nor_refute_what_is_said_of_long_ones():
    short, long = {"a": trials(*[0.1] * 60, steps=100)}, {"a": trials(*[0.1] * 60, steps=1000)}
    assert never_fails("c", short, steps=1000).label == "undecided: needs runs of 1,000 steps"
    assert always_fails("c", short, steps=1000).label == "undecided: needs runs of 1,000 steps"
    assert some_fail("c", short, steps=1000).label == "undecided: needs runs of 1,000 steps"
    assert never_fails("c", long, steps=1000).verdict == "confirmed"
    assert always_fails("c", long, steps=1000).verdict == "refuted"
    assert some_fail("c", long, steps=1000).verdict == "refuted"


# Differences ----------------------------------------------------------------------------------------------------------


def label(first, second, **options):
    return better({"c": {"": (first, second)}}, **options)[0].label


def test_a_difference_needs_six_pairs_and_one_run_is_a_protocol_check():
    low, high = trials(*[0.1] * 6), trials(*[0.2] * 6)
    assert label(low, high) == "confirmed"
    assert label(high, low) == "refuted"
    assert label(trials(*[0.1] * 5), trials(*[0.2] * 5)) == "undecided: needs 1 more pairs"
    assert label(trials(0.1), trials(0.2)) == "undecided: protocol check"
    assert label(trials(None, None), trials(0.2, 0.2)) == "undecided: protocol check"


def test_pairs_are_of_the_same_seed_and_runs_that_failed_are_left_out():
    first, second = trials(0.10, None, 0.30, 0.5), trials(0.11, 0.2, 0.31)
    finding = better({"c": {"": (first, second)}})[0]
    assert finding.effect == "−1.00 points (−1.00 to −1.00)"
    assert finding.runs == "2 pairs"


def test_small_differences_are_equivalent_and_wide_ones_need_more_pairs():
    generator = np.random.default_rng(0)
    base = generator.uniform(0.1, 0.3, 40)
    close = trials(*(base + generator.normal(0, 0.0002, 40)))
    wide = trials(*(base + generator.normal(0, 0.02, 40)))
    assert label(trials(*base), close) == "equivalent within 0.2 points"
    finding = better({"c": {"": (trials(*base), wide)}})[0]
    assert finding.verdict == "undecided"
    more = int(finding.detail.split()[1].replace(",", ""))
    assert 500 < more < 1500  # 2 points of deviation against a margin of 0.2
    assert "would be seen" in finding.evidence


def test_settings_are_averaged_seed_by_seed():
    """Two settings whose noise cancels say together what neither says alone."""
    noise = np.random.default_rng(1).normal(0, 0.05, 8)
    base = trials(*[0.5] * 8)
    up, down = trials(*(0.49 + noise)), trials(*(0.49 - noise))
    assert label(up, base).startswith("undecided")
    assert better({"c": {"": [(up, base), (down, base)]}})[0].verdict == "confirmed"


def test_one_comparison_that_goes_the_other_way_refutes_a_claim_on_several():
    low, high = trials(*[0.1] * 6), trials(*[0.2] * 6)
    assert better({"c": {"a": (low, high), "b": (high, low)}})[0].verdict == "refuted"
    assert better({"c": {"a": (low, high), "b": (low, trials(0.2, 0.2))}})[0].label == "undecided: needs 4 more pairs"
    assert better({"c": {"a": (low, high), "b": (low, low)}})[0].verdict == "equivalent"


# The error rates of a table -------------------------------------------------------------------------------------------


def table(generator, truth, pairs, deviation=1.0, tail=None):
    """Comparisons of one table; their noise is partly shared, as that of methods compared with the same one is."""
    draw = (lambda n: generator.standard_t(tail, n)) if tail else generator.standard_normal
    common = draw(pairs)
    return [
        Comparison(str(i), tuple(mean + deviation * (0.6 * common + 0.8 * draw(pairs)))) for i, mean in enumerate(truth)
    ]


@pytest.mark.parametrize(("pairs", "tail"), [(6, None), (15, None), (15, 3)])
def test_a_table_of_six_equal_methods_shows_a_difference_in_at_most_one_of_twenty(pairs, tail):
    generator = np.random.default_rng(pairs)
    wrong = 0
    for _ in range(400):
        judged = judge_table(table(generator, [0] * 6, pairs, tail=tail), 0.5)
        wrong += any(j.verdict in ("confirmed", "refuted") for j in judged)
    assert wrong / 400 <= ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / 400)


def test_a_table_of_six_that_differ_by_the_margin_shows_an_equivalence_in_at_most_one_of_twenty():
    generator = np.random.default_rng(2)
    wrong = sum(
        any(j.verdict == "equivalent" for j in judge_table(table(generator, [0.5, -0.5] * 3, 20), 0.5))
        for _ in range(400)
    )
    assert wrong / 400 <= ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / 400)


def test_the_pairs_that_are_asked_for_decide():
    """With the number of pairs that an undecided table asks for, differences of the margin, or none, are decided."""
    generator, margin, decided, right = np.random.default_rng(3), 0.4, 0, 0
    truth = [-margin, -margin, 0.0, 0.0, 0.0, -margin]
    for _ in range(120):
        first = judge_table(table(generator, truth, 12), margin)
        more = max(j.missing for j in first)
        second = judge_table(table(generator, truth, 12 + more), margin)
        expected = ["confirmed" if mean else "equivalent" for mean in truth]
        decided += sum(j.verdict != "undecided" for j in second)
        right += sum(j.verdict == e for j, e in zip(second, expected, strict=True))
    assert decided / (6 * 120) > 0.8
    assert right / (6 * 120) > 0.8


def test_what_would_be_seen_is_seen():
    generator, pairs = np.random.default_rng(4), 20
    visible = judge_table(table(generator, [0] * 6, 4000), 0.1)[0].found.deviation
    from eigengrad.lab.statistics import detectable

    truth = detectable(pairs, visible, alpha=ALPHA / 6)
    found = np.mean(
        [
            [j.verdict == "confirmed" for j in judge_table(table(generator, [-truth] * 6, pairs), 0.5)]
            for _ in range(200)
        ]
    )
    assert found > 0.77  # Holm's correction only adds to the 80 % of Bonferroni's


def test_a_finding_says_the_effect_its_interval_and_the_pairs():
    differences = tuple(np.random.default_rng(5).normal(-1, 0.3, 12))
    (finding,) = judge({"Smaller": [Comparison("rival", differences)]}, margin=0.2)
    assert finding.verdict == "confirmed"
    assert finding.effect.startswith("rival: −1.")
    assert finding.runs == "12 pairs"
