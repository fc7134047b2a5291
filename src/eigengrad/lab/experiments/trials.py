"""Several runs of one setting, and what can be said of them together."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..statistics import clopper_pearson
from ..training import Result

__all__ = ["Trials", "mean_text"]


def mean_text(values: Sequence[float], digits: int = 2) -> str | None:
    """Mean and standard deviation as ``21.14 ± 0.20``; the mean alone of one value, None of no values."""
    if not values:
        return None
    text = f"{statistics.fmean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {statistics.stdev(values):.{digits}f}"


@dataclass(frozen=True)
class Trials:
    """The results of one setting with different seeds.

    Errors are in per cent, of the best epoch of each run that succeeded, as in the paper's own code.
    """

    results: tuple[Result, ...]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Trials:
        """Gather the trials of one setting from the results that exist."""
        return cls(tuple(results))

    @property
    def count(self) -> int:
        """How many runs there are."""
        return len(self.results)

    @property
    def succeeded(self) -> int:
        """How many of them reached the last epoch with finite losses and gradients."""
        return sum(result.succeeded for result in self.results)

    @property
    def success_rate(self) -> float | None:
        """The share of runs that succeeded, in per cent."""
        return 100 * self.succeeded / self.count if self.results else None

    @property
    def errors(self) -> list[float]:
        """The best errors of the runs that succeeded, in per cent."""
        return [100 * r.best_error for r in self.results if r.succeeded and r.best_error is not None]

    @property
    def error_by_seed(self) -> dict[int, float]:
        """The best error in per cent of every run that succeeded, by its seed."""
        return {r.seed: 100 * r.best_error for r in self.results if r.succeeded and r.best_error is not None}

    @property
    def area_by_seed(self) -> dict[int, float]:
        """The training error in per cent, averaged over the epochs, of every run that succeeded: smaller is faster."""
        return self._by_seed("train_error", statistics.fmean)

    @property
    def test_area_by_seed(self) -> dict[int, float]:
        """The test error in per cent, averaged over the epochs, of every run that succeeded."""
        return self._by_seed("test_error", statistics.fmean)

    @property
    def rises_by_seed(self) -> dict[int, float]:
        """The sum of the rises of the test error from epoch to epoch, in per cent, of every run that succeeded."""
        return self._by_seed("test_error", lambda c: sum(max(b - a, 0.0) for a, b in itertools.pairwise(c)))

    def _by_seed(self, name: str, summary: Callable[[Sequence[float]], float]) -> dict[int, float]:
        return {r.seed: 100 * summary(r.curves[name]) for r in self.results if r.succeeded and r.curves.get(name)}

    @property
    def best(self) -> float | None:
        """The smallest error."""
        return min(self.errors, default=None)

    @property
    def mean(self) -> float | None:
        """The mean error."""
        return statistics.fmean(self.errors) if self.errors else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation, which is what the paper writes behind ±."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean error."""
        return None if self.deviation is None else self.deviation / math.sqrt(len(self.errors))

    @property
    def seconds_per_step(self) -> float | None:
        """The median over the runs of the seconds of a step."""
        times = [r.seconds_per_step for r in self.results if r.seconds_per_step is not None]
        return statistics.median(times) if times else None

    @property
    def largest_gradient(self) -> float | None:
        """The largest norm of the gradient of the whole network in any step of any run."""
        return max((r.gradient["norm_max"] for r in self.results if "norm_max" in r.gradient), default=None)

    @property
    def amplification(self) -> float | None:
        """The largest entry that took the place of 1/(λi − λj); ``None`` where eigenvectors are not differentiated."""
        return max((r.gradient["amplification"] for r in self.results if "amplification" in r.gradient), default=None)

    def mean_text(self) -> str | None:
        """Mean and deviation of the errors, as ``21.14 ± 0.20``."""
        return mean_text(self.errors)

    def rate_text(self) -> str | None:
        """The share of runs that succeeded, as ``67 % (2 of 3)``."""
        return None if self.success_rate is None else f"{self.success_rate:.0f} % ({self.succeeded} of {self.count})"

    def rate_interval_text(self) -> str:
        """The runs that succeeded with the exact interval of their rate, as ``2 of 3 succeeded (9 to 99 %)``."""
        if not self.results:
            return "no run"
        low, high = clopper_pearson(self.succeeded, self.count)
        return f"{self.succeeded} of {self.count} succeeded ({100 * low:.0f} to {100 * high:.0f} %)"

    def failures_text(self) -> str:
        """Why runs failed, and when the first of each kind did."""
        failures = [r.failure for r in self.results if r.failure is not None]
        reasons = Counter(failure.reason for failure in failures)
        first = {reason: min(f.step for f in failures if f.reason == reason) for reason in reasons}
        return "; ".join(f"{count} × {reason} (first at step {first[reason]})" for reason, count in reasons.items())

    def curve(self, name: str) -> list[float]:
        """A curve of the runs that succeeded, averaged epoch by epoch."""
        curves = [r.curves[name] for r in self.results if r.succeeded and r.curves.get(name)]
        return [statistics.fmean(values) for values in zip(*curves, strict=False)]
