"""What runs allow one to say of a claim, by one standard for both directions.

A difference between two methods is tested pair by pair: runs with the same seed. A claim "smaller" is *confirmed* where
the difference is negative, *refuted* where it is positive, *equivalent* where it is shown to be within the margin, each
at 5 % for all comparisons of a table together (Holm's correction), and else *undecided*, with the number of pairs that
would decide it. "Never fails" and "always fails" are confirmed where the exact (Clopper–Pearson) bound of the opposite
is below one run in twenty, which takes 59 runs, and refuted by one run that goes the other way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import cast

from ..report import Finding
from ..report.outcome import CONFIRMED, EQUIVALENT, PROTOCOL_CHECK, REFUTED, UNDECIDED
from ..statistics import (
    PairedDifference,
    detectable,
    holm,
    paired,
    pairs_for_difference,
    pairs_for_equivalence,
    runs_for_bound,
    upper_bound,
)
from .trials import Trials

__all__ = [
    "ALPHA",
    "FEWEST_PAIRS",
    "MARGIN",
    "NEVER",
    "Comparison",
    "Judged",
    "Pairs",
    "always_fails",
    "better",
    "differences",
    "judge",
    "larger",
    "median_interval",
    "never_fails",
    "some_fail",
    "within",
]

#: The chance of any false statement among the differences of a table, and of any among its equivalences.
ALPHA = 0.05
POWER = 0.8
#: Points of test error that matter: what the paper's Table 4 has between its methods.
MARGIN = 0.2
#: "Never" is less than one run in twenty.
NEVER = 0.05
#: With five pairs not even a sign test can reach 5 %.
FEWEST_PAIRS = 6

#: Trials of two methods, for one setting or for several whose differences are averaged seed by seed.
Pairs = tuple[Trials, Trials] | Sequence[tuple[Trials, Trials]]
#: A number for every seed of some trials.
Measure = Callable[[Trials], Mapping[int, float]]


@dataclass(frozen=True)
class Comparison:
    """Differences of pairs, one for each seed; the claim is that they are negative."""

    name: str
    differences: tuple[float, ...]


@dataclass(frozen=True)
class Judged:
    """A comparison and what it decides among those of its table.

    Attributes:
        name: of the comparison.
        pairs: how many there are.
        found: the estimate; ``None`` with fewer than two pairs.
        p_different, p_equivalent: after Holm's correction over the table.
        detectable: the smallest difference that this many pairs find with a power of 80 % at the level of the table.
        verdict: "confirmed", "refuted", "equivalent" or "undecided".
        missing: pairs that would decide it; 0 where it is decided.
    """

    name: str
    pairs: int
    found: PairedDifference | None
    p_different: float
    p_equivalent: float
    detectable: float
    verdict: str
    missing: int

    def effect(self, unit: str, text: Callable[[float], str] | None = None) -> str:
        """The mean difference with its interval, as ``−0.21 points (−0.40 to −0.02)``."""
        if self.found is None:
            return "–"
        mean, low, high = ((text or _signed)(v) for v in (self.found.mean, self.found.low, self.found.high))
        return f"{mean} {unit} ({low} to {high})"


def judge(
    claims: Mapping[str, Sequence[Comparison]],
    *,
    margin: float | Mapping[str, float],
    unit: str = "points",
    text: Callable[[float], str] | None = None,
    margin_text: str | None = None,
    noun: str = "pairs",
) -> list[Finding]:
    """Decide claims that differences are negative, all of them comparisons of one table.

    Args:
        claims: claim → its comparisons. It is confirmed if all of them are, refuted if one is.
        margin: the difference that matters, in ``unit``: one for all, or one for each claim.
        unit: of the differences, in words.
        text: a difference in words; a signed number with two digits behind the point if not given.
        margin_text: the margin in words; the number and the unit if not given.
        noun: what a pair is called.
    """
    margins = dict.fromkeys(claims, margin) if isinstance(margin, int | float) else margin
    everything = [comparison for comparisons in claims.values() for comparison in comparisons]
    judged = iter(judge_table(everything, [margins[claim] for claim, of in claims.items() for _ in of]))
    findings = []
    for claim, comparisons in claims.items():
        wording = _Wording(unit, text or _signed, margin_text or f"{margins[claim]:g} {unit}", noun)
        findings.append(_finding(claim, [next(judged) for _ in comparisons], wording))
    return findings


@dataclass(frozen=True)
class _Wording:
    """How differences are written."""

    unit: str
    text: Callable[[float], str]
    margin: str
    noun: str


def judge_table(comparisons: Sequence[Comparison], margin: float | Sequence[float]) -> list[Judged]:
    """Test every comparison of a table, for a difference and for equivalence, with Holm's correction over the table.

    Args:
        comparisons: of the table.
        margin: the difference that matters: one for all, or one for each.
    """
    margins = [margin] * len(comparisons) if isinstance(margin, int | float) else list(margin)
    found = [
        paired(c.differences, m) if len(c.differences) >= 2 else None for c, m in zip(comparisons, margins, strict=True)
    ]
    usable = [i for i, c in enumerate(comparisons) if len(c.differences) >= FEWEST_PAIRS]
    different = dict(zip(usable, holm([_estimate(found[i]).p_different for i in usable]), strict=True))
    equivalent = dict(zip(usable, holm([_estimate(found[i]).p_equivalent for i in usable]), strict=True))
    level = ALPHA / max(len(comparisons), 1)
    results = []
    for i, (comparison, estimate) in enumerate(zip(comparisons, found, strict=True)):
        p, q = different.get(i, 1.0), equivalent.get(i, 1.0)
        if p <= ALPHA and estimate is not None:
            verdict = CONFIRMED if estimate.mean < 0 else REFUTED
        else:
            verdict = EQUIVALENT if q <= ALPHA else UNDECIDED
        missing = _missing(estimate, margins[i], level, len(comparison.differences)) if verdict == UNDECIDED else 0
        visible = math.inf if estimate is None else detectable(estimate.pairs, estimate.deviation, alpha=level)
        results.append(Judged(comparison.name, len(comparison.differences), estimate, p, q, visible, verdict, missing))
    return results


def better(
    claims: Mapping[str, Mapping[str, Pairs]],
    *,
    margin: float = MARGIN,
    unit: str = "points",
    measure: Measure = attrgetter("error_by_seed"),
) -> list[Finding]:
    """Decide claims that the first of each pair of trials has the smaller test error, or another measure.

    Args:
        claims: claim → name of a comparison → the two methods' trials, or several such pairs: then the mean of the
            differences over them is taken seed by seed.
        margin: the difference that matters.
        unit: in words.
        measure: what is compared, by seed.
    """
    measured = {
        claim: [Comparison(name, differences(pairs, measure)) for name, pairs in of.items()]
        for claim, of in claims.items()
    }
    return judge(measured, margin=margin, unit=unit)


def differences(pairs: Pairs, measure: Measure = attrgetter("error_by_seed")) -> tuple[float, ...]:
    """First minus second by seed, for the seeds with which no run of them failed."""
    several = cast("list[tuple[Trials, Trials]]", [pairs] if isinstance(pairs[0], Trials) else list(pairs))
    by_seed = [(measure(first), measure(second)) for first, second in several]
    seeds = sorted(set.intersection(*(set(a) & set(b) for a, b in by_seed))) if by_seed else []
    return tuple(sum(a[seed] - b[seed] for a, b in by_seed) / len(by_seed) for seed in seeds)


def larger(
    claims: Sequence[tuple[str, Sequence[float], Sequence[float]]], *, margin: float, unit: str
) -> list[Finding]:
    """Decide claims that the first numbers, one a seed, are larger than the second, of the same seeds in order.

    Where a run failed, one of the two has fewer numbers, nobody knows which belong together, and there is no pair.
    """
    comparisons = {}
    for claim, first, second in claims:
        pairs = zip(first, second, strict=True) if len(first) == len(second) else ()
        comparisons[claim] = [Comparison("", tuple(b - a for a, b in pairs))]
    return judge(comparisons, margin=margin, unit=unit)


def never_fails(claim: str, groups: Mapping[str, Trials], *, steps: int | None = None) -> Finding:
    """Decide that no run fails: confirmed if the bound of the rate is below one in twenty in every group.

    Args:
        claim: in words.
        groups: by name.
        steps: the length of the runs that the claim is about. Shorter runs cannot confirm it.
    """
    if any(trials.succeeded < trials.count for trials in groups.values()):
        return Finding(claim, REFUTED, _rates(groups), effect=_worst_rate(groups), runs=_counts(groups))
    return _bounded(claim, groups, steps, "failing")


def always_fails(claim: str, groups: Mapping[str, Trials], *, steps: int | None = None) -> Finding:
    """Decide that every run fails: confirmed if the bound of the rate of success is below one in twenty in every group.

    Args:
        claim: in words.
        groups: by name.
        steps: the length of the runs that the claim is about. The success of a shorter run does not refute it.
    """
    survivors = [r for trials in groups.values() for r in trials.results if r.succeeded]
    if any(steps is None or r.steps >= steps for r in survivors):
        return Finding(claim, REFUTED, _rates(groups), effect=_worst_rate(groups), runs=_counts(groups))
    if survivors:
        return Finding(
            claim,
            UNDECIDED,
            _rates(groups),
            detail=f"needs runs of {steps:,} steps",
            effect=_worst_rate(groups),
            runs=_counts(groups),
        )
    return _bounded(claim, groups, None, "succeeding")


def some_fail(claim: str, groups: Mapping[str, Trials], *, steps: int) -> Finding:
    """Decide that some runs fail: confirmed by one that does, refuted where 59 runs of the claimed length do not."""
    if any(trials.succeeded < trials.count for trials in groups.values()):
        return Finding(claim, CONFIRMED, _rates(groups), effect=_worst_rate(groups), runs=_counts(groups))
    opposite = _bounded(claim, groups, steps, "failing")
    return replace(opposite, verdict=REFUTED) if opposite.verdict == CONFIRMED else opposite


def _bounded(claim: str, groups: Mapping[str, Trials], steps: int | None, what: str) -> Finding:
    """The verdict on groups in which all runs went the same way."""
    fewest = min((trials.count for trials in groups.values()), default=0)
    bound = upper_bound(0, fewest)
    evidence = f"{_rates(groups)} With {fewest} runs the share {what} is below {100 * bound:.0f} % (95 % confidence)."
    missing = runs_for_bound(NEVER) - fewest
    verdict, detail = CONFIRMED, f"below {100 * bound:.1f} %"
    if missing > 0:
        verdict, detail = UNDECIDED, f"needs {missing} more runs"
    longest = max((r.steps for trials in groups.values() for r in trials.results), default=0)
    if verdict == CONFIRMED and steps is not None and longest < steps:
        verdict, detail = UNDECIDED, f"needs runs of {steps:,} steps"
        evidence += f" These runs have {longest:,} steps."
    effect = f"{what}: below {100 * bound:.0f} %"
    return Finding(claim, verdict, evidence, detail=detail, effect=effect, runs=_counts(groups))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % confidence interval for the median, whatever the distribution; infinite for fewer than six values.

    The number of values below the median is binomial, so the interval lies between two of them by rank.
    """
    from scipy.stats import binom  # type: ignore[import-untyped]

    outside = int(binom.ppf(0.025, len(values), 0.5))
    ordered = [-math.inf, *sorted(values), math.inf]
    return ordered[outside], ordered[-1 - outside]


def within(intervals: Iterable[tuple[float, float]], lowest: float, highest: float) -> str:
    """The verdict on "all of these lie between": confirmed, refuted if one is beyond, undecided in between."""
    intervals = list(intervals)
    if any(upper < lowest or lower > highest for lower, upper in intervals):
        return REFUTED
    return CONFIRMED if all(lowest <= lower and upper <= highest for lower, upper in intervals) else UNDECIDED


def _finding(claim: str, judged: Sequence[Judged], wording: _Wording) -> Finding:
    pairs = [j.pairs for j in judged]
    most = max(pairs, default=0)
    runs = f"{_span(pairs)} {wording.noun}" if most else "none"
    if most < 2:
        return Finding(
            claim,
            UNDECIDED,
            "One run a setting shows that the protocol works, and compares nothing.",
            detail=PROTOCOL_CHECK,
            runs="one run a setting" if most else "none",
        )
    verdicts = {j.verdict for j in judged}
    detail = ""
    if REFUTED in verdicts:
        verdict = REFUTED
    elif UNDECIDED in verdicts:
        verdict, detail = UNDECIDED, f"needs {max(j.missing for j in judged):,} more {wording.noun}"
    elif verdicts == {CONFIRMED}:
        verdict = CONFIRMED
    else:
        verdict, detail = EQUIVALENT, f"within {wording.margin}"
    effects = [j.effect(wording.unit, wording.text) for j in judged]
    effect = "; ".join(f"{j.name}: {e}" if j.name else e for j, e in zip(judged, effects, strict=True))
    evidence = "; ".join(_evidence(j, wording) for j in judged)
    return Finding(claim, verdict, evidence + ".", detail=detail, effect=effect, runs=runs)


def _evidence(j: Judged, wording: _Wording) -> str:
    head = f"{j.name}: " if j.name else ""
    if j.found is None:
        return f"{head}{j.pairs} {wording.noun}"
    text = f"{head}{j.effect(wording.unit, wording.text)}, {j.pairs} {wording.noun}"
    if j.pairs < FEWEST_PAIRS:
        return f"{text}, too few to test"
    text += f", p {_p(j.p_different)} for a difference, p {_p(j.p_equivalent)} for less than {wording.margin}"
    seen = wording.text(j.detectable).lstrip("+")
    return f"{text}; a difference of {seen} would be seen" if j.verdict == UNDECIDED else text


def _missing(estimate: PairedDifference | None, margin: float, level: float, pairs: int) -> int:
    """How many more pairs would decide a comparison, at least one.

    They find a difference of the margin, and show that there is none that large. Where more is seen than twice the
    margin, they are to find half of it: what is seen first is seldom the whole truth.
    """
    fewest = FEWEST_PAIRS - pairs
    clear = estimate is None or min(estimate.p_different, estimate.p_equivalent) <= level
    if estimate is None or estimate.deviation == 0 or (fewest > 0 and clear):
        return max(fewest, 1)  # what there is points one way: it is only too little
    deviation, power = estimate.deviation, POWER
    planned = pairs_for_difference(deviation, max(margin, abs(estimate.mean) / 2), alpha=level, power=power)
    if abs(estimate.mean) / 2 <= margin:
        planned = max(planned, pairs_for_equivalence(deviation, margin, alpha=level, power=power))
    if planned <= pairs:  # the difference is neither none nor the margin: then what is seen must do
        size = abs(estimate.mean)
        ways = [pairs_for_difference(deviation, size, alpha=level, power=power)] if size else []
        if size < margin:
            ways.append(pairs_for_equivalence(deviation, margin, size, alpha=level, power=power))
        planned = min(ways)  # one of the two always exists
    return max(planned - pairs, fewest, 1)


def _estimate(found: PairedDifference | None) -> PairedDifference:
    assert found is not None
    return found


def _signed(value: float) -> str:
    text = f"{value:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def _counts(groups: Mapping[str, Trials]) -> str:
    counts = [trials.count for trials in groups.values()]
    return f"{_span(counts)} runs each" if counts else "no run"


def _worst_rate(groups: Mapping[str, Trials]) -> str:
    failed = sum(trials.count - trials.succeeded for trials in groups.values())
    return f"{failed} of {sum(trials.count for trials in groups.values())} failed"


def _rates(groups: Mapping[str, Trials]) -> str:
    return "; ".join(f"{name}: {trials.rate_interval_text()}" for name, trials in groups.items()) + "."
