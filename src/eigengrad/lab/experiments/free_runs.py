"""E3's other half: trainings that each method carries out itself, and how long they last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..report import Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import Cell, conditions_text
from ..statistics import hazard, kaplan_meier
from .errors import runs_table
from .methods import WHITENING
from .presets import Preset, claimed_steps
from .trained import Cells, TrainedExperiment
from .trials import Trials
from .verdicts import always_fails, never_fails, some_fail

__all__ = ["FreeRuns"]

_LARGE_K = "SVD-Taylor, ε = 1e-4, K = 19"
_FREE = ("svd", "pi", "clip", "power_iteration", "taylor", "exact")


class FreeRuns(TrainedExperiment):
    """Long trainings with every method, on data small enough for many steps."""

    name = "free_runs"
    title = "Free runs: how long trainings last"
    paper = "reports that plain SVD fails for d ≥ 8, PI for d ≥ 16, and K = 19 in half of the runs at ε = 1e-4."
    protocol = "free_runs"
    keeps_curves = False

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """The methods of Table 4 that differentiate eigenvectors, the exact gradient, and K = 19 with ε = 1e-4."""
        methods: dict[str, Mapping[str, Any]] = {WHITENING[key].label: WHITENING[key].fields for key in _FREE}
        return {**methods, _LARGE_K: {**WHITENING["taylor"].fields, "eps": 1e-4, "degree": 19}}

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """The share of runs that survives, by method and dimension."""
        conditions = {"scale": scale, **chosen.conditions(), "steps": f"{chosen.steps:,}"}
        length = claimed_steps("cifar10")

        def of(label: str, smallest: int = 0) -> dict[str, Trials]:
            return {f"d = {d}": t for (method, d), t in cells.items() if method == label and (d or 0) >= smallest}

        return Outcome(
            self.name,
            self.title,
            scale,
            {**chosen.conditions(), "steps": f"{chosen.steps:,}"},
            self.paper,
            (_hazards(cells, length, conditions), runs_table(f"{self.name}_runs", cells, conditions)),
            (
                Figure(
                    _draw(folder, cells),
                    "Share of runs that have not failed (Kaplan–Meier), with its 95 % interval. "
                    f"{conditions_text(conditions)}.",
                ),
            ),
            (
                always_fails("Plain SVD fails in every run for d ≥ 8", of("SVD", 8), steps=length),
                always_fails("Plain PI fails in every run for d ≥ 16", of("PI", 16), steps=length),
                some_fail("With ε = 1e-4 and K = 19 some runs fail", of(_LARGE_K), steps=length),
                never_fails("SVD-Taylor with K = 9 never fails", of(WHITENING["taylor"].label), steps=length),
                never_fails("(ours) The exact gradient never fails", of(WHITENING["exact"].label)),
            ),
            (
                "A run fails when a loss or a gradient is not finite, when it diverges, or when the decomposition does "
                "not converge. The hazard is taken to be constant.",
            ),
        )


def _hazards(cells: Cells, length: int, conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (method, d), trials in cells.items():
        steps, failed = _lives(trials)
        found = hazard(sum(failed), max(sum(steps), 1))
        _, low, high = found.failing_within(length)
        numbers = (float(f"{value:.3g}") for value in (found.rate, found.low, found.high))
        share = f"{100 * low:.0f} to {100 * high:.0f} %"
        rows.append(
            (method, d, trials.rate_interval_text(), sum(steps), *numbers, share, trials.failures_text() or None)
        )
    columns = (
        *("method", "d", "runs", "steps of all", "failures a step", "from", "to"),
        *(f"would fail within {length:,} steps", "how they failed"),
    )
    return Table("free_runs", "Runs that failed, and the hazard of failing", columns, tuple(rows), conditions)


def _lives(trials: Trials) -> tuple[Sequence[int], Sequence[bool]]:
    """How long each run lasted, and whether it failed."""
    steps = [r.steps if r.failure is None else r.failure.step for r in trials.results]
    return steps, [r.failure is not None for r in trials.results]


def _draw(folder: Path, cells: Cells) -> str:
    colours = {method.label: method.colour for method in WHITENING.values()} | {_LARGE_K: figures.YELLOW}
    sizes = sorted({size for _, size in cells if size is not None})
    with figures.style() as plt:
        figure, axes = plt.subplots(1, len(sizes), figsize=(3.4 * len(sizes) + 2, 3.5), sharey=True, squeeze=False)
        for axis, size in zip(axes[0], sizes, strict=True):
            for method in dict.fromkeys(method for method, _ in cells):
                steps, failed = _lives(cells[method, size])
                curve = kaplan_meier(steps, failed)
                times, colour = [0.0, *curve.times], colours[method]
                axis.step(times, [1.0, *curve.surviving], where="post", color=colour, lw=1.6, label=method)
                if any(failed):
                    low, high = [1.0, *curve.low], [1.0, *curve.high]
                    axis.fill_between(times, low, high, step="post", color=colour, alpha=0.12, lw=0)
            axis.set(title=f"d = {size}", xlabel="training step", ylim=(-0.03, 1.05))
        axes[0][0].set_ylabel("share of runs that survive")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center")
        return figures.save(figure, folder, "free_runs")
