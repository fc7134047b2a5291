"""Differences between two methods that were run with the same seeds.

A seed fixes the initial weights and the order of the images, so the difference of two runs with one seed varies less
than the runs do. Where a method has runs at several settings, the mean difference of each seed is the unit: for
complete tables that is the test of a mixed model with a random effect of the seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

__all__ = ["PairedDifference", "detectable", "paired", "pairs_for_difference", "pairs_for_equivalence"]

#: Pairs beyond which nobody goes on counting.
_MOST_PAIRS = 1_000_000


@dataclass(frozen=True)
class PairedDifference:
    """What pairs of runs say about a mean difference.

    Attributes:
        pairs: how many there are.
        mean, deviation: of the differences.
        low, high: the confidence interval of the mean difference.
        p_different: of the two-sided t-test of "no difference".
        p_equivalent: of the two one-sided t-tests (TOST) of "at least ``margin`` apart"; 1 without a margin.
        margin: the difference that would matter.
    """

    pairs: int
    mean: float
    deviation: float
    low: float
    high: float
    p_different: float
    p_equivalent: float
    margin: float | None


def paired(differences: Sequence[float], margin: float | None = None, confidence: float = 0.95) -> PairedDifference:
    """Estimate a mean difference from pairs, and test it against zero and against ``±margin``.

    Args:
        differences: first minus second, one for each pair; at least two.
        margin: differences below it do not matter; ``None`` tests no equivalence.
        confidence: of the interval.

    >>> found = paired([0.9, 1.2, 1.0, 1.1, 0.7, 1.1], margin=2.0)
    >>> round(found.mean, 2), found.p_different < 0.001, found.p_equivalent < 0.001
    (1.0, True, True)
    """
    if len(differences) < 2:
        raise ValueError(f"differences: got {len(differences)}; expected at least two pairs")
    if margin is not None and not margin > 0:
        raise ValueError(f"margin: got {margin}; expected a positive number")
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    pairs = len(differences)
    if deviation == 0:  # all pairs agree; equal runs differ by nothing, for certain
        p_equivalent = 1.0 if margin is None else float(abs(mean) >= margin)
        return PairedDifference(pairs, mean, 0.0, mean, mean, float(mean == 0), p_equivalent, margin)
    from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped]

    error = deviation / math.sqrt(pairs)
    half = float(stdtrit(pairs - 1, (1 + confidence) / 2)) * error
    p_different = 2 * float(stdtr(pairs - 1, -abs(mean) / error))
    p_equivalent = 1.0 if margin is None else float(stdtr(pairs - 1, -(margin - abs(mean)) / error))
    return PairedDifference(pairs, mean, deviation, mean - half, mean + half, p_different, p_equivalent, margin)


def detectable(pairs: int, deviation: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest difference that the two-sided t-test of so many pairs finds with the given power.

    >>> round(detectable(20, 1.0), 2)
    0.66
    """
    return math.inf if pairs < 2 else deviation * _detectable_effect(pairs, alpha, power)


@cache
def _detectable_effect(pairs: int, alpha: float, power: float) -> float:
    """The smallest difference that the t-test finds, in standard deviations of the differences."""
    from scipy.optimize import brentq  # type: ignore[import-untyped]

    def short(effect: float) -> float:
        return _difference_power(pairs, effect, alpha) - power

    high = 1.0
    while short(high) < 0:
        high *= 2
    return float(brentq(short, 0.0, high, xtol=1e-6))


def pairs_for_difference(deviation: float, difference: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """How many pairs the two-sided t-test needs to find a difference with the given power.

    >>> pairs_for_difference(1.0, 0.5)
    34
    """
    return _fewest(lambda pairs: _difference_power(pairs, abs(difference) / deviation, alpha), power)


def pairs_for_equivalence(
    deviation: float, margin: float, difference: float = 0.0, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """How many pairs the two one-sided tests need to find that a difference is within the margin.

    >>> pairs_for_equivalence(1.0, 0.5)
    36
    """
    return _fewest(lambda n: _equivalence_power(n, abs(difference) / deviation, margin / deviation, alpha), power)


def _difference_power(pairs: int, effect: float, alpha: float) -> float:
    """The chance that a two-sided t-test rejects, for a difference of ``effect`` standard deviations."""
    from scipy.special import ncfdtr, ndtr, stdtrit

    t = float(stdtrit(pairs - 1, 1 - alpha / 2))
    exact = float(ncfdtr(1, pairs - 1, effect**2 * pairs, t**2))  # the square of t is F
    return 1 - exact if math.isfinite(exact) else float(ndtr(effect * math.sqrt(pairs) - t))


def _equivalence_power(pairs: int, effect: float, margin: float, alpha: float) -> float:
    """The chance that both one-sided tests reject (Phillips's approximation)."""
    from scipy.special import stdtrit

    t, root = float(stdtrit(pairs - 1, 1 - alpha)), math.sqrt(pairs)
    return max(
        0.0, _beyond(t, pairs - 1, (margin + effect) * root) + _beyond(t, pairs - 1, (margin - effect) * root) - 1
    )


def _beyond(t: float, degrees: int, shift: float) -> float:
    """The chance that a t with a non-centrality exceeds ``t``; the normal limit where its series does not converge."""
    from scipy.special import nctdtr, ndtr

    exact = float(nctdtr(degrees, shift, t))
    return 1 - exact if math.isfinite(exact) else float(ndtr(shift - t))


def _fewest(power_of: Callable[[int], float], power: float) -> int:
    """The smallest number of pairs, from 2 on, with at least the power, which grows with their number."""
    high = 2
    while power_of(high) < power:
        high *= 2
        if high > _MOST_PAIRS:
            return _MOST_PAIRS
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle + 1, high)
    return low
