"""Figure 1(a): how likely it is that two eigenvalues of a random covariance matrix are close."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..statistics import clopper_pearson
from .experiment import Context, Experiment, Plan, check_scale
from .parallel import starmap
from .wishart import close_pairs, dense_smallest_gaps, smallest_gaps

__all__ = ["Fig1a"]

THRESHOLDS = {f"2^-{k}": 2.0**-k for k in range(10, 15)}
FULL = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 150, 200, 256, 320, 400, 500, 600)
MATRICES, CHUNK = 10_000, 1_000

#: The caption draws n = 2d points with row mean 0 and takes X Xᵀ; it does not say from which distribution. A factor on
#: X only scales the eigenvalues, so one sample of smallest gaps answers for every reading.
READINGS: dict[str, tuple[str, Callable[[int], float]]] = {
    "uniform": ("X Xᵀ, entries uniform in [0, 1) (variance 1/12)", lambda d: 1 / 12),
    "covariance": ("X Xᵀ/n, entries of variance 1", lambda d: 1 / (2 * d)),
}
CHECKS = (6, 24, 64)
SENTENCE = 150  # "with a dimension of only 150, there is more than a 0.1% chance" of a gap below 2^-10
SENTENCE_MATRICES = 200_000  # 10,000 cannot tell 0.13 % from 0.1 %


class Fig1a(Experiment):
    """Ten thousand matrices for each dimension, at every scale but smoke."""

    name = "fig1a"
    title = "Figure 1(a): probability that two eigenvalues are close, by dimension"
    paper = "10,000 matrices for each dimension from 6 to 600, n = 2d points, thresholds 2^-10 … 2^-14."

    def plan(self, scale: str, context: Context) -> Plan:
        """Sampling costs 1.7e-8 d² seconds a matrix on one core."""
        dimensions, matrices = _size(scale)
        seconds = sum(_seconds(d) for d in dimensions) * matrices + _check_seconds(scale)
        lines = [f"{matrices:,} covariance matrices for each of d = {', '.join(map(str, dimensions))}"]
        if SENTENCE in dimensions:
            seconds += _seconds(SENTENCE) * SENTENCE_MATRICES
            lines.append(f"{SENTENCE_MATRICES:,} for the sentence about d = {SENTENCE}")
        return Plan(
            lines,
            seconds / context.processes,
            "one core of a 2.x GHz server takes 6 ms for the eigenvalues of d = 600",
        )

    def run(self, scale: str, context: Context) -> Outcome:
        """Sample the smallest gaps, count, and check the sampler against matrices that are really drawn."""
        start = time.perf_counter()
        dimensions, matrices = _size(scale)
        jobs = 1 if scale == "smoke" else context.processes  # a process takes longer to start than so little to do
        gaps = _sample(dimensions, matrices, jobs, context)
        sentence = _sample((SENTENCE,), SENTENCE_MATRICES, jobs, context) if SENTENCE in gaps else {}
        checks = _checks(gaps, jobs)
        span = f"{len(dimensions)} dimensions from {dimensions[0]} to {dimensions[-1]}"
        conditions = {"matrices": f"{matrices:,} for each of {span}", "points": "n = 2d, rows centred"}
        tables = [_probabilities(key, gaps, {"scale": scale, **conditions}) for key in READINGS]
        tables.append(
            Table(
                "fig1a_check",
                "The sampler against matrices that were drawn, centred, multiplied and decomposed",
                ("d", "entries", "matrices", "quantity", "bidiagonal model", "drawn matrices", "KS p-value"),
                tuple(checks),
                {"scale": scale},
                "KS: Kolmogorov–Smirnov test that both samples of smallest gaps have one distribution; small means no.",
            )
        )
        folder = context.directory(self.name, scale)
        figure = Figure(
            _draw({key: dict(_shares(key, gaps)) for key in READINGS}, matrices, folder),
            "Share of covariance matrices with two eigenvalues closer than a threshold. Points: sampled. Dotted: what "
            "level repulsion and the Marchenko–Pastur density predict, without sampling. Left: the reading of the "
            "caption that gives the paper's 0.1 % at d = 150 (red). Right: the usual covariance. "
            f"{matrices:,} matrices a dimension.",
        )
        return Outcome(
            self.name,
            self.title,
            scale,
            conditions,
            self.paper,
            tuple(tables),
            (figure,),
            (_growth(gaps, matrices), *(_sentence(sample) for sample in sentence.values())),
            NOTES,
            time.perf_counter() - start,
        )


NOTES = (
    "The caption does not say what X is drawn from, and the probability depends on its variance: it matches the "
    "text's 0.1 % at d = 150 for X Xᵀ with entries uniform in [0, 1), as numpy.random.rand gives them. Divided by n, "
    "as a covariance is in a network, the same matrices have close eigenvalues far more often.",
    "Eigenvalues are sampled through the bidiagonal model of the Wishart distribution (experiments/wishart.py), which "
    "has exactly the same distribution for normal entries; for uniform entries the two agree as the check shows.",
)


def _size(scale: str) -> tuple[tuple[int, ...], int]:
    return ((6, 16, 48, 96), 200) if check_scale(scale) == "smoke" else (FULL, MATRICES)


def _seconds(d: int) -> float:
    """Seconds that one core takes to sample a matrix of dimension d and find its smallest gap."""
    return 1.7e-8 * d * d + 5e-6


def _check_seconds(scale: str) -> float:
    return 1.0 if scale == "smoke" else 30.0


def _sample(dimensions: tuple[int, ...], matrices: int, jobs: int, context: Context) -> dict[int, Any]:
    """Smallest gaps of X Xᵀ, entries of variance 1, by dimension. The largest go first, so that no process idles."""
    order = sorted(dimensions, reverse=True)
    tasks = [(d, min(CHUNK, matrices - first), first) for d in order for first in range(0, matrices, CHUNK)]
    samples: dict[int, list[Any]] = {d: [] for d in dimensions}
    for (d, _, first), part in zip(tasks, starmap(_task, tasks, jobs), strict=True):
        samples[d].append(part)
        if first + CHUNK >= matrices:
            context.say(f"d = {d}: {matrices:,} matrices")
    return {d: np.concatenate(parts) for d, parts in samples.items()}


def _task(d: int, count: int, first: int) -> Any:
    return smallest_gaps(d, 2 * d, count, np.random.default_rng([1, d, first]))


def _check_task(d: int, count: int, entries: str) -> Any:
    return dense_smallest_gaps(d, 2 * d, count, np.random.default_rng([2, d]), entries=entries)


def _checks(gaps: dict[int, Any], jobs: int) -> list[tuple[Any, ...]]:
    from scipy.stats import ks_2samp  # type: ignore[import-untyped]

    drawn = [(d, len(gaps[d]), "normal") for d in CHECKS if d in gaps]
    if SENTENCE in gaps:
        drawn.append((SENTENCE, len(gaps[SENTENCE]), "uniform"))
    rows: list[tuple[Any, ...]] = []
    for (d, count, entries), dense in zip(drawn, starmap(_check_task, drawn, jobs), strict=True):
        model = gaps[d] * (1 / 12 if entries == "uniform" else 1.0)
        p = float(ks_2samp(model, dense).pvalue)
        if entries == "uniform":
            values = [f"{100 * float((sample < 2.0**-10).mean()):.2f} %" for sample in (model, dense)]
            rows.append((d, entries, count, "gap below 2^-10", *values, round(p, 3)))
        else:
            rows.append(
                (
                    d,
                    entries,
                    count,
                    "median of the smallest gap",
                    float(np.median(model)),
                    float(np.median(dense)),
                    round(p, 3),
                )
            )
    return rows


def _probabilities(key: str, gaps: dict[int, Any], conditions: dict[str, str]) -> Table:
    reading, _ = READINGS[key]
    rows = [(d, *(round(share, 3) for share in shares)) for d, shares in _shares(key, gaps)]
    return Table(
        f"fig1a_{key}",
        f"Matrices with two eigenvalues closer than the threshold, in per cent: {reading}",
        ("d", *THRESHOLDS),
        tuple(rows),
        conditions,
    )


def _shares(key: str, gaps: dict[int, Any]) -> Iterator[tuple[int, list[float]]]:
    """For each dimension the share of matrices, in per cent, with a gap below each threshold."""
    _, factor = READINGS[key]
    for d, sample in gaps.items():
        yield d, [100 * float((sample * factor(d) < threshold).mean()) for threshold in THRESHOLDS.values()]


def _draw(shares: dict[str, dict[int, list[float]]], matrices: int, folder: Any) -> str:
    """Draw the shares by reading, dimension and threshold, and what the formula predicts."""
    with figures.style() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.3))
        for axis, key in zip(axes, ("uniform", "covariance"), strict=True):
            reading, factor = READINGS[key]
            dimensions = list(shares[key])
            smooth = np.geomspace(dimensions[0], dimensions[-1], 120)
            for place, (name, threshold) in enumerate(THRESHOLDS.items()):
                colour, sampled = figures.SEQUENCE[place], [shares[key][d][place] for d in dimensions]
                expected = [100 * -math.expm1(-close_pairs(int(d), 2 * int(d), threshold / factor(d))) for d in smooth]
                axis.plot(smooth, expected, ":", color=colour, lw=1.4)
                errors = [math.sqrt(p * (100 - p) / matrices) for p in sampled]
                label = f"gap < $2^{{{name[2:]}}}$"
                axis.errorbar(dimensions, sampled, errors, fmt="o", color=colour, ms=4, lw=1, label=label)
            axis.set(title=reading, xlabel="dimension d", ylabel="matrices, %")
            axis.set_ylim(0, None)
            _mark_sentence(axis, factor(SENTENCE))
        axes[0].legend(loc="upper left")
        axes[1].set(ylim=(0, 142), yticks=range(0, 101, 20))  # with room for the legend above the curves
        axes[1].legend(loc="upper left", ncol=3)
        return figures.save(figure, folder, "fig1a")


def _mark_sentence(axis: Any, factor: float) -> None:
    """Mark the dimension of the paper's sentence, with the probability of a gap below 2^-10 there."""
    share = 100 * -math.expm1(-close_pairs(SENTENCE, 2 * SENTENCE, 2.0**-10 / factor))
    axis.axvline(SENTENCE, color=figures.RED, lw=1, ls="--", zorder=0)
    axis.plot(SENTENCE, share, "D", color=figures.RED, ms=6, zorder=5)
    axis.annotate(
        f"d = {SENTENCE}\n{share:.2g} %",
        (SENTENCE, share),
        (-8, 34),
        textcoords="offset points",
        color=figures.RED,
        weight="bold",
        ha="right",
    )


def _growth(gaps: dict[int, Any], matrices: int) -> Finding:
    """Whether close pairs become likelier with every dimension."""
    grows = [float((sample / (2 * d) < 2.0**-10).mean()) for d, sample in gaps.items()]
    return Finding(
        "The larger the matrix, the more likely are two close eigenvalues",
        "confirmed" if grows == sorted(grows) else "refuted",
        f"For X Xᵀ/n and a gap below 2^-10 the share rises from {100 * grows[0]:.2f} % at d = {min(gaps)} to "
        f"{100 * grows[-1]:.1f} % at d = {max(gaps)} ({matrices:,} matrices each).",
    )


def _sentence(sample: Any, claimed: float = 0.001) -> Finding:
    """The paper's sentence, by the smallest gaps of X Xᵀ at its dimension and their exact interval."""
    total, count = len(sample), int((sample / 12 < 2.0**-10).sum())
    low, high = clopper_pearson(count, total)
    expected = {scale: close_pairs(SENTENCE, 2 * SENTENCE, 2.0**-10 / scale) for scale in (1 / 12, 1.0)}
    covariance = float((sample / (2 * SENTENCE) < 2.0**-10).mean())
    return Finding(
        "At d = 150 there is more than a 0.1 % chance of two eigenvalues within 2^-10",
        "confirmed" if low > claimed else "refuted" if high < claimed else "undecided",
        f"For X Xᵀ with uniform entries {count:,} of {total:,} sampled, {100 * count / total:.3f} % "
        f"({100 * low:.3f} to {100 * high:.3f} %); {100 * expected[1 / 12]:.2f} % by the formula. It depends on how X "
        f"is scaled: {100 * covariance:.0f} % for X Xᵀ/n, {100 * expected[1.0]:.4f} % for X Xᵀ with entries of "
        "variance 1.",
    )
