"""How long runs last: the share that survives, and the hazard of failing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Hazard", "KaplanMeier", "hazard", "kaplan_meier"]


@dataclass(frozen=True)
class KaplanMeier:
    """The share of runs that have not failed, with pointwise 95 % intervals.

    Attributes:
        times: steps at which a run failed or was observed for the last time, ascending.
        surviving, low, high: after each of them.
    """

    times: tuple[float, ...]
    surviving: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Hazard:
    """The rate of failures per step, taken to be constant.

    Attributes:
        failures, exposure: how many, in how many steps of all runs together.
        rate, low, high: failures per step with their exact (Poisson) 95 % interval.
    """

    failures: int
    exposure: float
    rate: float
    low: float
    high: float

    def failing_within(self, steps: float) -> tuple[float, float, float]:
        """The share of runs of so many steps that fail: estimate, lower and upper end."""
        share = (-math.expm1(-rate * steps) for rate in (self.rate, self.low, self.high))
        estimate, low, high = share
        return estimate, low, high


def kaplan_meier(steps: Sequence[float], failed: Sequence[bool], confidence: float = 0.95) -> KaplanMeier:
    """Estimate the survival of runs of different lengths.

    Args:
        steps: how long each run lasted.
        failed: whether it ended by failing; the others were still alive (right-censored).
        confidence: of the intervals, on the scale of log(−log S).

    >>> kaplan_meier([1, 2, 3, 3], [True, False, True, False]).surviving
    (0.75, 0.75, 0.375)
    """
    if len(steps) != len(failed) or not steps:
        raise ValueError(f"steps, failed: got {len(steps)} and {len(failed)} entries; expected as many, at least one")
    import numpy as np
    from scipy.stats import CensoredData, ecdf  # type: ignore[import-untyped]

    alive = [not f for f in failed]
    function = ecdf(CensoredData.right_censored(list(steps), alive)).sf
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():  # log(−log S) of 0 and 1
        warnings.filterwarnings("ignore", "The confidence interval is undefined", RuntimeWarning)
        interval = function.confidence_interval(confidence, method="log-log")
    # Where nothing has failed yet, or all has, there is no interval on this scale: then nothing is claimed.
    low = np.where(np.isnan(interval.low.probabilities), 0.0, interval.low.probabilities)
    high = np.where(np.isnan(interval.high.probabilities), 1.0, interval.high.probabilities)
    columns = (function.quantiles, function.probabilities, low, high)
    times, surviving, lows, highs = (tuple(float(value) for value in column) for column in columns)
    return KaplanMeier(times, surviving, lows, highs)


def hazard(failures: int, exposure: float, confidence: float = 0.95) -> Hazard:
    """Failures per step from their number and from the steps of all runs together.

    Without any failure the upper end is one-sided: 3 over the exposure.

    >>> found = hazard(0, 3000)
    >>> round(found.high, 5), round(found.failing_within(1000)[2], 2)
    (0.001, 0.63)
    """
    if failures < 0 or not exposure > 0:
        raise ValueError(f"failures, exposure: got {failures} and {exposure}; expected at least 0, and more than 0")
    from scipy.stats import chi2

    tail = (1 - confidence) / (2 if failures else 1)
    low = float(chi2.ppf(tail, 2 * failures)) / 2 / exposure if failures else 0.0
    high = float(chi2.ppf(1 - tail, 2 * failures + 2)) / 2 / exposure
    return Hazard(failures, exposure, failures / exposure, low, high)
