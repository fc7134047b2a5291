"""Intervals for numbers that come in clusters: the snapshots of one training are not independent, trainings are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["cluster_bootstrap"]


def cluster_bootstrap(
    clusters: Sequence[Sequence[float]],
    statistic: Callable[[Sequence[float]], float] | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """The mean over clusters of a statistic of each, with an interval from resampling whole clusters.

    Args:
        clusters: the numbers of each cluster.
        statistic: of the numbers of a cluster; the median if not given.
        confidence: of the interval, by percentiles. With a handful of clusters it is too narrow; with fewer than
            three it is infinite.
        resamples, seed: of the bootstrap.

    Returns:
        Estimate, lower and upper end.

    >>> cluster_bootstrap([[1.0], [2.0], [3.0]])[0]
    2.0
    """
    import numpy as np

    values = np.array([np.median(c) if statistic is None else statistic(c) for c in clusters if len(c)])
    if values.size == 0:
        raise ValueError("clusters: got no cluster with numbers in it; expected at least one")
    if values.size < 3:
        return float(values.mean()), -np.inf, np.inf
    drawn = np.random.default_rng(seed).integers(values.size, size=(resamples, values.size))
    low, high = np.quantile(values[drawn].mean(1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(values.mean()), float(low), float(high)
