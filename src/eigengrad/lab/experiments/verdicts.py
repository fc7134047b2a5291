"""What runs allow one to say of a claim: a small number of trials decides little."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..report import Finding
from .trials import Trials

__all__ = ["always_fails", "better", "larger", "median_interval", "never_fails", "within"]


def never_fails(claim: str, groups: dict[str, Trials]) -> Finding:
    """Confirmed if no run of any group failed."""
    evidence = _rates(groups)
    failed = any(trials.succeeded < trials.count for trials in groups.values())
    return Finding(claim, "not confirmed" if failed else "confirmed", evidence)


def always_fails(claim: str, groups: dict[str, Trials]) -> Finding:
    """Confirmed if every run failed, not confirmed if none did, open in between."""
    succeeded = sum(trials.succeeded for trials in groups.values())
    count = sum(trials.count for trials in groups.values())
    verdict = "confirmed" if succeeded == 0 else "not confirmed" if succeeded == count else "open"
    return Finding(claim, verdict, _rates(groups))


def better(claim: str, pairs: dict[str, tuple[Trials, Trials]]) -> Finding:
    """Whether the first of each pair has the smaller mean error.

    Confirmed if it has in every pair, not confirmed if it is the larger in any, each by Welch's test at 5 %; open
    otherwise, and always with fewer than three runs on a side.
    """
    differences, parts = [], []
    for name, (first, second) in pairs.items():
        if first.mean is None or second.mean is None:
            continue
        differences.append(_difference(first.errors, second.errors))
        parts.append(f"{name}: {first.mean_text()} against {second.mean_text()}")
    smaller = bool(differences) and max(differences) < 0
    verdict = "not confirmed" if max(differences, default=0) > 0 else "confirmed" if smaller else "open"
    return Finding(claim, verdict, ("; ".join(parts) or "No pair of settings has runs that succeeded") + ".")


def larger(claim: str, first: Sequence[float], second: Sequence[float], evidence: str) -> Finding:
    """Whether the first numbers, one a run, are larger: by Welch's test at 5 %, and open with fewer than three runs."""
    if min(len(first), len(second)) < 3:
        evidence += " One or two runs a method decide nothing."
    return Finding(claim, ("open", "confirmed", "not confirmed")[_difference(first, second)], evidence)


def _difference(first: Sequence[float], second: Sequence[float]) -> int:
    """1 if the first have the larger mean, −1 if the smaller, by Welch's test at 5 %; 0 if that does not say."""
    from scipy.stats import ttest_ind  # type: ignore[import-untyped]

    if min(len(first), len(second)) < 3:
        return 0
    test = ttest_ind(first, second, equal_var=False)
    if not test.pvalue < 0.05:  # NaN, for runs that are all equal, decides nothing
        return 0
    return 1 if test.statistic > 0 else -1


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % confidence interval for the median, whatever the distribution; infinite for fewer than six values.

    The number of values below the median is binomial, so the interval lies between two of them by rank.
    """
    from scipy.stats import binom

    outside = int(binom.ppf(0.025, len(values), 0.5))
    ordered = [-math.inf, *sorted(values), math.inf]
    return ordered[outside], ordered[-1 - outside]


def within(intervals: Iterable[tuple[float, float]], lowest: float, highest: float) -> str:
    """The verdict on "all of these lie between": confirmed, not confirmed if one is beyond, open in between."""
    intervals = list(intervals)
    if any(upper < lowest or lower > highest for lower, upper in intervals):
        return "not confirmed"
    return "confirmed" if all(lowest <= lower and upper <= highest for lower, upper in intervals) else "open"


def _rates(groups: dict[str, Trials]) -> str:
    return "; ".join(f"{name}: {trials.succeeded} of {trials.count} succeeded" for name, trials in groups.items()) + "."
