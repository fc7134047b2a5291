"""Figure 6: how the training error falls, for SVD-Taylor, SVD-PI and PI."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .experiment import Context
from .methods import WHITENING
from .presets import Preset
from .trained import Cells, TrainedExperiment
from .trials import Trials
from .verdicts import better

__all__ = ["AREA_MARGIN", "Fig6"]

#: Points of the training error, averaged over the epochs, that matter.
AREA_MARGIN = 0.5

#: Trials of a method whose steps differ by more than this factor were on a busy machine: their times say nothing.
_BUSY = 1.5

METHODS = ("pi", "power_iteration", "taylor", "exact")
SIZES = (4, 8, 16)  # the paper's


class Fig6(TrainedExperiment):
    """Curves of the runs of Table 4, and the exact gradient beside them."""

    name = "fig6"
    title = "Figure 6: convergence of PI, SVD-PI and SVD-Taylor"
    paper = "CIFAR-10, ResNet-18, d = 4, 8, 16, 350 epochs; curves of the training error over time, without numbers."
    protocol = "cifar10"

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """The paper's three methods, and the exact gradient."""
        return {WHITENING[key].label: WHITENING[key].fields for key in METHODS}

    def preset(self, scale: str, context: Context) -> Preset:
        """The protocol of Table 4 with the dimensions of the paper's figure."""
        chosen = super().preset(scale, context)
        if context.group_sizes is not None or scale == "smoke":
            return chosen
        return replace(chosen, group_sizes=SIZES)

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """Training error after each epoch, averaged over the trials that succeeded."""
        conditions = {"scale": scale, **chosen.conditions()}
        rows = []
        for (method, size), trials in cells.items():
            errors, times = _curve(trials)
            rows.append(
                (
                    method,
                    size,
                    f"{trials.succeeded} of {trials.count}",
                    *(None if not errors else round(errors[i], 2) for i in (0, len(errors) // 2, -1)),
                    None if not times else round(times[-1], 1),
                )
            )
        columns = ("method", "d", "succeeded", "first epoch %", "middle %", "last epoch %", "seconds of training")
        table = Table("fig6", "Training error over the epochs", columns, tuple(rows), conditions)
        quiet = _was_quiet(cells)
        timed = "Time: steps times the seconds a step of the quietest trial. " if quiet else ""
        figure = Figure(
            _draw(folder, cells, timed=quiet),
            f"Training error after each epoch, over epochs{' and over time' if quiet else ''}: mean of the trials that "
            f"succeeded, band: one standard deviation. {timed}{conditions_text(conditions)}.",
        )
        return Outcome(
            self.name,
            self.title,
            scale,
            chosen.conditions(),
            self.paper,
            (table,),
            (figure,),
            tuple(_faster(cells)),
            (
                "Runs that failed have no curve.",
                "The time of a step is that of the quietest trial of a method, because seconds depend on what else the "
                "machine was doing. Figure 7 has the times of the passes."
                + ("" if quiet else " Here trials of one method differ too much for a figure over time."),
            ),
        )


def _was_quiet(cells: Cells) -> bool:
    """Whether the trials of every method took about as long as each other."""
    paces = [[r.seconds_per_step for r in t.results if r.succeeded and r.seconds_per_step] for t in cells.values()]
    return all(max(of) <= _BUSY * min(of) for of in paces if of)


def _curve(trials: Trials) -> tuple[list[float], list[float]]:
    """Training error in per cent after each epoch, and the seconds of training until then, on a quiet machine."""
    errors = [100 * value for value in trials.curve("train_error")]
    paces = [r.seconds_per_step for r in trials.results if r.succeeded and r.seconds_per_step]
    steps = max((r.steps for r in trials.results if r.succeeded), default=0) / max(len(errors), 1)
    return errors, [min(paces) * steps * epoch for epoch in range(1, len(errors) + 1)] if paces else []


def _spread(trials: Trials) -> list[float]:
    """The standard deviation over the trials of the training error after each epoch, in per cent; 0 of one trial."""
    curves = [r.curves["train_error"] for r in trials.results if r.succeeded and "train_error" in r.curves]
    if len(curves) < 2:
        return [0.0] * (len(curves[0]) if curves else 0)
    return [100 * statistics.stdev(values) for values in zip(*curves, strict=False)]


def _faster(cells: Cells) -> list[Finding]:
    """Compare the areas under the training error over epochs by seed: smaller is faster."""
    taylor, pi = WHITENING["taylor"].label, WHITENING["power_iteration"].label
    pairs = [(trials, cells[pi, size]) for (method, size), trials in cells.items() if method == taylor]
    return better(
        {"The training error of SVD-Taylor falls faster than that of SVD-PI": {"": pairs}},
        margin=AREA_MARGIN,
        unit="points of mean training error",
        measure=attrgetter("area_by_seed"),
    )


def _draw(folder: Path, cells: Cells, *, timed: bool) -> str:
    """Draw the training error over epochs and, below, over time, a column for each dimension."""
    colours = {method.label: method.colour for method in WHITENING.values()}
    sizes = sorted({size for _, size in cells if size is not None})
    with figures.style() as plt:
        rows, size_of = (2, (4 * len(sizes) + 0.6, 6.8)) if timed else (1, (4 * len(sizes) + 0.6, 3.9))
        figure, axes = plt.subplots(rows, len(sizes), figsize=size_of, sharey=True, squeeze=False)
        for column, size in enumerate(sizes):
            for method in dict.fromkeys(method for method, _ in cells):
                errors, times = _curve(cells[method, size])
                if not errors:
                    continue
                spread = _spread(cells[method, size])
                low, high = ([e + sign * s for e, s in zip(errors, spread, strict=True)] for sign in (-1, 1))
                for axis, places in zip(axes[:, column], (range(1, len(errors) + 1), times), strict=False):
                    if len(places) == len(errors):
                        line = "o-" if len(errors) < 20 else "-"
                        axis.plot(places, errors, line, ms=4, color=colours[method], label=method)
                        axis.fill_between(places, low, high, color=colours[method], alpha=0.15, linewidth=0)
            axes[0][column].set(title=f"d = {size}", xlabel="epoch")
            axes[0][column].xaxis.get_major_locator().set_params(integer=True)
            if timed:
                axes[1][column].set(xlabel="seconds of training")
                axes[1][column].set_xlim(0, None)
        for row in axes:
            row[0].set_ylabel("training error, %")
        shown = [axis for axis in axes[0] if axis.lines]
        if shown:
            shown[-1].legend()
        return figures.save(figure, folder, "fig6")
