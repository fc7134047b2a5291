"""What runs allow one to say of a claim: a small number of trials decides little."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..report import Finding
from .trials import Trials

__all__ = ["always_fails", "better", "median_interval", "never_fails", "within"]


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
    from scipy.stats import ttest_ind  # type: ignore[import-untyped]

    smaller, larger, parts = [], [], []
    for name, (first, second) in pairs.items():
        if first.mean is None or second.mean is None:
            continue
        enough = min(len(first.errors), len(second.errors)) >= 3
        p = float(ttest_ind(first.errors, second.errors, equal_var=False).pvalue) if enough else math.nan
        decided = p < 0.05  # NaN, for runs that are all equal, decides nothing
        smaller.append(decided and first.mean < second.mean)
        larger.append(decided and first.mean > second.mean)
        parts.append(f"{name}: {first.mean_text()} against {second.mean_text()}")
    verdict = "not confirmed" if any(larger) else "confirmed" if smaller and all(smaller) else "open"
    return Finding(claim, verdict, ("; ".join(parts) or "No pair of settings has runs that succeeded") + ".")


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
