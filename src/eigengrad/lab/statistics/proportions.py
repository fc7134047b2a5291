"""Rates of success and failure from a number of runs."""

from __future__ import annotations

import math

__all__ = ["clopper_pearson", "runs_for_bound", "upper_bound"]


def clopper_pearson(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact two-sided confidence interval of a probability, from ``count`` of ``total``.

    >>> low, high = clopper_pearson(3, 3)
    >>> round(low, 3), high
    (0.292, 1.0)
    """
    _require_counts(count, total)
    from scipy.stats import beta  # type: ignore[import-untyped]

    tail = (1 - confidence) / 2
    low = 0.0 if count == 0 else float(beta.ppf(tail, count, total - count + 1))
    high = 1.0 if count == total else float(beta.ppf(1 - tail, count + 1, total - count))
    return low, high


def upper_bound(count: int, total: int, confidence: float = 0.95) -> float:
    """The exact one-sided upper bound of a probability: 63 % where 0 of 3 runs failed, 5 % where 0 of 59 did.

    >>> round(upper_bound(0, 3), 2), round(upper_bound(0, 59), 3)
    (0.63, 0.05)
    """
    _require_counts(count, total)
    from scipy.stats import beta

    return 1.0 if count == total else float(beta.ppf(confidence, count + 1, total - count))


def runs_for_bound(bound: float, confidence: float = 0.95) -> int:
    """How many runs without a failure bound the probability of one by ``bound``.

    >>> runs_for_bound(0.05)
    59
    """
    if not 0 < bound < 1:
        raise ValueError(f"bound: got {bound}; expected a probability between 0 and 1")
    return math.ceil(math.log(1 - confidence) / math.log1p(-bound))


def _require_counts(count: int, total: int) -> None:
    if not 0 <= count <= total:
        raise ValueError(f"count, total: got {count} of {total}; expected 0 ≤ count ≤ total")
