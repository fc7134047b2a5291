"""What a run costs, by its method, and how many runs a machine does at a time: what plans are made of."""

from __future__ import annotations

import bisect
import os

from ..training import Config

__all__ = ["parallel_runs", "relative_cost"]

#: Seconds of a run over those with batch norm, by gradient of the whitening, at the dimensions in _AT: slim ResNet-18,
#: 64 channels, CIFAR-10, the quietest of three runs of Table 4 on two cores of an AMD EPYC.
_AT = (4, 16, 64)
_WHITENING: dict[str, tuple[float, float, float]] = {
    "pi": (1.2, 1.3, 2.3),
    "power_iteration": (1.3, 1.5, 2.1),
}
_USUAL = (1.3, 1.3, 1.3)

#: The same by pooling, over average pooling: slim AlexNet, 64 channels in the covariance, Table 7.
_POOLING = {"average": 1.0, "svd_pi": 6.7, "svd_taylor": 1.3, "isqrt_cov": 1.1, "exact": 1.2}
#: SVD-PI with the 256 channels of AlexNet at its full width, over the exact gradient.
_LARGE_SVD_PI, _FULL_WIDTH = 13.0, 64


def relative_cost(config: Config) -> float:
    """How many times as long a run takes as one with batch norm and average pooling."""
    cost = _POOLING.get(config.pooling, 1.2)
    if config.pooling == "svd_pi" and config.model.startswith("alexnet") and config.width >= _FULL_WIDTH:
        cost = _LARGE_SVD_PI
    if config.norm == "dbn":
        at = _WHITENING.get(config.gradient.partition("(")[0].strip(), _USUAL)
        place = bisect.bisect_left(_AT, config.group_size)
        cost *= at[min(place, len(at) - 1)]
    elif config.norm not in ("batchnorm", "none"):
        cost *= 1.15
    return cost


def parallel_runs(jobs: int) -> tuple[float, str]:
    """How many runs' worth of work ``jobs`` processes do at a time on this machine, and why it is not ``jobs``.

    Processes share the cores: with more of them than cores, or with other work on the machine, each is slower.
    """
    cores = os.cpu_count() or 1
    others = os.getloadavg()[1] if hasattr(os, "getloadavg") else 0.0  # of the last five minutes
    share = min(1.0, cores / (jobs + others))
    if share > 0.95:
        return float(jobs), ""
    work = f" and other work (a load of {others:.1f})" if others > 0.5 else ""
    return jobs * share, f"{jobs} jobs{work} share {cores} core{'s' if cores > 1 else ''}"
