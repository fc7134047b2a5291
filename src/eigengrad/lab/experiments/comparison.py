"""Every method on the digits that come with scikit-learn: what ``eigengrad compare`` shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import Outcome, Table
from ..report.outcome import Figure
from ..report.tables import Cell, conditions_text
from .errors_figure import CAPTION, draw_errors, panels_by_size
from .methods import WHITENING
from .presets import Preset
from .trained import Cells, TrainedExperiment
from .verdicts import never_fails

__all__ = ["Comparison"]


class Comparison(TrainedExperiment):
    """The methods of Table 4, one dimension, two seeds."""

    name = "compare"
    title = "Every method on embedded data"
    paper = "compares the first five of these on CIFAR-10 (Table 4)."
    protocol = "digits"

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """All methods of the comparison."""
        return {method.label: method.fields for method in WHITENING.values()}

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """A table of which methods survive, their errors, and the time of a step."""
        conditions = {"scale": scale, **chosen.conditions(), "d": ", ".join(map(str, chosen.group_sizes))}
        picture = draw_errors(folder, "compare", panels_by_size(cells))
        figure = Figure(picture, f"{CAPTION} {conditions_text(conditions)}.")
        stable = [WHITENING[key].label for key in ("clip", "power_iteration", "taylor", "exact")]
        return Outcome(
            self.name,
            self.title,
            scale,
            {**chosen.conditions(), "d": conditions["d"]},
            self.paper,
            (_table(cells, conditions),),
            (figure,),
            (
                never_fails(
                    "The regularised gradients and the exact one of the matrix function never fail",
                    {method: trials for (method, _), trials in cells.items() if method in stable},
                ),
            ),
            (
                "The first convolution sees nine pixels of one colour, so its features span at most nine dimensions: "
                "at least seven of the 16 eigenvalues of a group are equal. Plain SVD divides by their differences.",
                "max 1/gap is the largest entry that the gradient used in place of 1/(λi − λj), seen in one step of "
                "twenty; max |g| the largest gradient of the whole network. Both show trouble before anything fails.",
            ),
        )


def _table(cells: Cells, conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (method, size), trials in cells.items():
        step = trials.seconds_per_step
        rows.append(
            (
                method,
                size,
                f"{trials.succeeded} of {trials.count}",
                None if trials.best is None else round(trials.best, 1),
                None if trials.mean is None else round(trials.mean, 1),
                trials.amplification,
                trials.largest_gradient,
                None if step is None else round(1e3 * step, 1),
                trials.failures_text() or None,
            )
        )
    columns = ("method", "d", "ok", "min %", "mean %", "max 1/gap", "max |g|", "ms/step", "failures")
    return Table(
        "compare", "Every method on the digits: test error, gradients, speed", columns, tuple(rows), conditions
    )
