"""E2: who has the smaller error, with enough pairs of runs to say so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import Cell, conditions_text
from .layout import cells_table
from .methods import WHITENING
from .presets import Preset, claimed_steps
from .trained import Cells, TrainedExperiment
from .trials import Trials
from .verdicts import MARGIN, Comparison, Judged, better, differences, judge_table, never_fails

__all__ = ["COMPARED", "Errors", "against", "comparison_table", "draw_differences", "runs_table"]

#: The paper's three that survive, and ours.
COMPARED = ("taylor", "power_iteration", "clip", "exact", "iternorm", "batchnorm")

#: First and second of every comparison: the claim is that the first has the smaller error.
_PAIRS = (
    ("taylor", "clip"),
    ("taylor", "power_iteration"),
    ("exact", "taylor"),
    ("exact", "iternorm"),
    ("taylor", "batchnorm"),
    ("exact", "batchnorm"),
)


class Errors(TrainedExperiment):
    """The methods of Table 4 that survive, on data small enough for many seeds."""

    name = "errors"
    title = "Errors: who has the smaller one, by pairs of runs"
    paper = "compares them on CIFAR-10 with 350 epochs and 15 trials (Table 4), without a test."
    protocol = "paired"
    keeps_curves = False
    compared: ClassVar[tuple[str, ...]] = COMPARED
    pairs: ClassVar[tuple[tuple[str, str], ...]] = _PAIRS

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """What is compared, by label."""
        return {WHITENING[key].label: WHITENING[key].fields for key in self.compared}

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """Every comparison pooled over the dimensions, and at each of them."""
        conditions = {"scale": scale, **chosen.conditions()}
        claims = {_claim(a, b): {"": against(cells, a, b)} for a, b in self.pairs}
        steps = claimed_steps("cifar10")
        stable = {f"{m}, d = {d}": t for (m, d), t in cells.items() if m in map(_label, ("taylor", "clip"))}
        findings: list[Finding] = [
            *better(claims),
            never_fails("SVD-Taylor and SVD-Clip never fail", stable, steps=steps),
        ]
        judged = _by_dimension(cells, chosen, self.pairs)
        return Outcome(
            self.name,
            self.title,
            scale,
            chosen.conditions(),
            self.paper,
            (
                cells_table(self.name, cells, conditions),
                comparison_table(f"{self.name}_comparisons", judged, MARGIN, "points", conditions),
                runs_table(f"{self.name}_runs", cells, conditions),
            ),
            (
                Figure(
                    draw_differences(folder, self.name, [("difference of the test errors, points", judged, MARGIN)]),
                    "Mean difference of the test errors at each dimension, pair by pair, with its 95 % interval; the "
                    f"grey band is the margin of {MARGIN:g} points. {conditions_text(conditions)}.",
                ),
            ),
            tuple(findings),
            (
                "Runs with the same seed have the same initial weights and the same order of images, and are compared "
                "with each other. For the verdicts the differences of a seed are averaged over the dimensions.",
                f"Differences and equivalences (within {MARGIN:g} points) are tested at 5 % for all comparisons of a "
                "table together, by Holm's correction.",
            ),
        )


def _label(key: str) -> str:
    return WHITENING[key].label


def _claim(first: str, second: str) -> str:
    ours = "(ours) " if WHITENING[first].ours else ""
    return f"{ours}{_label(first)} has a smaller error than {_label(second)}".replace(
        "(ours) Exact (ours)", "(ours) Exact"
    )


def against(cells: Cells, first: str, second: str) -> list[tuple[Trials, Trials]]:
    """The trials of two methods at every dimension that both have; batch norm has one for all."""
    one, other = _label(first), _label(second)
    found = []
    for (method, size), trials in cells.items():
        rival = cells.get((other, size)) or cells.get((other, None))
        if method == one and rival is not None:
            found.append((trials, rival))
    return found


def _by_dimension(cells: Cells, chosen: Preset, pairs: Sequence[tuple[str, str]]) -> list[Judged]:
    comparisons = []
    for first, second in pairs:
        for size in chosen.group_sizes:
            rival = cells.get((_label(second), size)) or cells[_label(second), None]
            name = f"{_label(first)} − {_label(second)}, d = {size}".replace(" (ours)", "")
            comparisons.append(Comparison(name, differences((cells[_label(first), size], rival))))
    return judge_table(comparisons, MARGIN)


def comparison_table(name: str, judged: list[Judged], margin: float, unit: str, conditions: dict[str, str]) -> Table:
    """Every comparison of a table with its interval, its tests and what it could have seen."""
    rows: list[tuple[Cell, ...]] = []
    for j in judged:
        found = j.found
        numbers: tuple[Cell, ...] = (None,) * 4
        if found is not None:
            numbers = (round(found.mean, 3), round(found.low, 3), round(found.high, 3), round(found.deviation, 3))
        more = j.missing or None
        rows.append(
            (
                *(j.name, j.pairs, *numbers, _p(j.p_different), _p(j.p_equivalent)),
                *(round(j.detectable, 3) if j.detectable < 1e6 else None, j.verdict, more),
            )
        )
    columns = (
        *("comparison", "pairs", "mean difference", "from", "to", "std dev"),
        *("p (difference)", f"p (within {margin:g})", "visible", "verdict", "more pairs"),
    )
    return Table(
        name,
        f"Every comparison, in {unit}",
        columns,
        tuple(rows),
        conditions,
        "The claim is that the difference is negative. p-values are Holm's, over the table; visible: the smallest "
        "difference that so many pairs find with a power of 80 %.",
    )


def runs_table(name: str, cells: Cells, conditions: dict[str, str]) -> Table:
    """One row a run: what every number of the other tables can be computed from."""
    rows: list[tuple[Cell, ...]] = []
    for (method, size), trials in cells.items():
        areas, rises = trials.area_by_seed, trials.rises_by_seed
        for r in trials.results:
            error = None if r.best_error is None or not r.succeeded else round(100 * r.best_error, 3)
            area, rise = (None if r.seed not in of else round(of[r.seed], 3) for of in (areas, rises))
            failed = None if r.failure is None else f"{r.failure.reason} at step {r.failure.step}"
            rows.append((method, size, r.seed, r.steps, error, area, rise, failed))
    columns = ("method", "d", "seed", "steps", "best error %", "mean training error %", "rises %", "failure")
    return Table(name, "Every run", columns, tuple(rows), conditions)


def draw_differences(folder: Path, name: str, panels: Sequence[tuple[str, Sequence[Judged], float]]) -> str:
    """Draw the intervals of mean differences, one line each.

    Args:
        folder, name: of the figure.
        panels: one above the other, each with its own scale: the label of its axis, its comparisons, and the margin,
            which is drawn as a band.
    """
    colours = {
        "confirmed": figures.GREEN,
        "refuted": figures.RED,
        "equivalent": figures.BLUE,
        "undecided": figures.GREY,
    }
    heights = [0.27 * len(judged) + 0.9 for _, judged, _ in panels]
    with figures.style() as plt:
        figure, axes = plt.subplots(
            len(panels), 1, figsize=(8.6, sum(heights) + 0.3), squeeze=False, height_ratios=heights
        )
        handles: dict[str, Any] = {}
        for axis, (label, judged, margin) in zip(axes[:, 0], panels, strict=True):
            axis.axvspan(-margin, margin, color="#eeeeee")
            axis.axvline(0, color=figures.INK, lw=0.8)
            for place, j in enumerate(reversed(judged)):
                if j.found is not None:
                    axis.plot([j.found.low, j.found.high], [place, place], color=colours[j.verdict], lw=2)
                    (handles[j.verdict],) = axis.plot([j.found.mean], [place], "o", ms=5, color=colours[j.verdict])
            axis.set_yticks(range(len(judged)), [j.name for j in reversed(judged)])
            axis.set(xlabel=f"{label}  (left: the first is better)", ylim=(-0.7, len(judged) - 0.3))
            axis.grid(visible=False, axis="y")
        if handles:
            figure.legend(handles.values(), handles, loc="outside right upper")
        return figures.save(figure, folder, name)


def by_measure(name: str) -> Callable[[Trials], Mapping[int, float]]:
    """A measure of trials by the name of their property."""
    getter: Callable[[Trials], Mapping[int, float]] = attrgetter(name)
    return getter


def _p(value: float) -> float:
    return float(f"{value:.3g}")
