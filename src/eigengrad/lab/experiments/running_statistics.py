"""E7: what evaluation should average, the covariance or the whitening matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import Outcome
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .errors import comparison_table, draw_differences, runs_table
from .layout import cells_table
from .methods import MORE_WHITENING, WHITENING
from .presets import Preset
from .trained import Cells, TrainedExperiment
from .verdicts import MARGIN, Comparison, better, differences, judge_table

__all__ = ["RunningStatistics"]

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
        judged = judge_table([Comparison(f"d = {size}", differences(pair)) for size, pair in pairs.items()], MARGIN)
        claim = "The running covariance has a smaller test error than the running whitening matrix"
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
                    draw_differences(folder, self.name, [("running covariance less matrix, points", judged, MARGIN)]),
                    "Mean difference of the test errors, pair by pair, with its 95 % interval; the grey band is the "
                    f"margin of {MARGIN:g} points. {conditions_text(conditions)}.",
                ),
            ),
            tuple(better({claim: {"": list(pairs.values())}})),
            ("Two runs with the same seed have the same weights in every step; only their evaluations differ.",),
        )
