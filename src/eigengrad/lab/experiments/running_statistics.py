"""E7: what evaluation should average, the covariance or the whitening matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import Outcome
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .errors import by_measure, comparison_table, draw_differences, runs_table
from .fig6 import AREA_MARGIN
from .layout import cells_table
from .methods import MORE_WHITENING, WHITENING
from .presets import Preset
from .trained import Cells, TrainedExperiment
from .verdicts import MARGIN, Comparison, differences, judge, judge_table

__all__ = ["RunningStatistics"]

#: Which test error is compared.
_WHEN = ("in the best epoch", "on average over the epochs")
_COVARIANCE, _MATRIX = WHITENING["taylor"], MORE_WHITENING["taylor_subspace"]


class RunningStatistics(TrainedExperiment):
    """SVD-Taylor with either running statistic. Only evaluation uses them: runs of one seed are the same training."""

    name = "running_statistics"
    title = "Running statistics: average the covariance, or the whitening matrix?"
    paper = "argues for the covariance (Algorithm 2), because averaged whitening matrices do not whiten."
    protocol = "paired"
    keeps_curves = False

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """SVD-Taylor twice."""
        return {method.label: method.fields for method in (_COVARIANCE, _MATRIX)}

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """The test errors of both, pair by pair."""
        conditions = {"scale": scale, **chosen.conditions()}
        pairs = {size: (cells[_COVARIANCE.label, size], cells[_MATRIX.label, size]) for size in chosen.group_sizes}
        everywhere, over_epochs = list(pairs.values()), by_measure("test_area_by_seed")
        claim = "The running covariance has a smaller test error than the running whitening matrix"
        best, mean = (f"{claim}, {when}" for when in _WHEN)
        findings = judge(
            {
                best: [Comparison("", differences(everywhere))],
                mean: [Comparison("", differences(everywhere, over_epochs))],
            },
            margin={best: MARGIN, mean: AREA_MARGIN},
        )
        comparisons = [
            Comparison(f"{when}, d = {size}", differences(pair, measure))
            for when, measure in zip(_WHEN, (by_measure("error_by_seed"), over_epochs), strict=True)
            for size, pair in pairs.items()
        ]
        judged = judge_table(comparisons, [MARGIN] * len(pairs) + [AREA_MARGIN] * len(pairs))
        parts = [(judged[: len(pairs)], MARGIN), (judged[len(pairs) :], AREA_MARGIN)]
        panels = [("running covariance less matrix, points", part, margin) for part, margin in parts]
        return Outcome(
            self.name,
            self.title,
            scale,
            chosen.conditions(),
            self.paper,
            (
                cells_table(self.name, cells, conditions),
                *(
                    comparison_table(f"{self.name}_{name}", part, margin, "points", conditions)
                    for name, (part, margin) in zip(("best", "mean"), parts, strict=True)
                ),
                runs_table(f"{self.name}_runs", cells, conditions),
            ),
            (
                Figure(
                    draw_differences(folder, self.name, panels),
                    "Mean difference of the test errors, pair by pair, with its 95 % interval; the grey bands are "
                    f"the margins of {MARGIN:g} and {AREA_MARGIN:g} points. {conditions_text(conditions)}.",
                ),
            ),
            tuple(findings),
            ("Two runs with the same seed have the same weights in every step; only their evaluations differ.",),
        )
