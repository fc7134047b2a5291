"""E4: the influence of ε and K, by pairs of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import Finding, Outcome
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .errors import by_measure, comparison_table, draw_differences, runs_table
from .fig5 import RISES_MARGIN
from .fig6 import AREA_MARGIN
from .layout import cells_table
from .presets import Preset, claimed_steps
from .table3 import SETTINGS, settings
from .trained import Cells, TrainedExperiment
from .verdicts import MARGIN, Comparison, better, differences, judge_table, never_fails, some_fail

__all__ = ["HyperparameterPairs"]

_BEST = "ε = 1e-2, K = 9"

#: What is compared: the property of trials, in words, the margin.
_MEASURES = {
    "error_by_seed": ("test error", MARGIN),
    "rises_by_seed": ("rises of the test error", RISES_MARGIN),
    "area_by_seed": ("mean training error", AREA_MARGIN),
}


class HyperparameterPairs(TrainedExperiment):
    """The three settings of Table 3 on data small enough for many seeds."""

    name = "settings"
    title = "Settings: the influence of ε and K, by pairs of runs"
    paper = "compares them on CIFAR-100 with 350 epochs and 8 trials (Table 3, Figure 5), without a test."
    protocol = "paired_settings"
    keeps_curves = False

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """One method for each setting."""
        return settings()

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """Error, rises of the test error and convergence of ε = 1e-2, K = 9 against the others."""
        conditions = {"scale": scale, **chosen.conditions(), "d": ", ".join(map(str, chosen.group_sizes))}
        named = {name: trials for (name, _), trials in cells.items()}
        others = [name for name in SETTINGS if name != _BEST]
        findings: list[Finding] = []
        tables, judged = [], []
        for measure, (words, margin) in _MEASURES.items():
            getter = by_measure(measure)
            claims = {
                f"{_BEST} has a smaller {words} than {o}".replace("smaller rises", "smaller sum of rises"): {
                    "": (named[_BEST], named[o])
                }
                for o in others
            }
            findings += better(claims, margin=margin, measure=getter)
            comparisons = [
                Comparison(f"{words}, against {o}", differences((named[_BEST], named[o]), getter)) for o in others
            ]
            judged.append((measure, margin, judge_table(comparisons, margin)))
        for measure, margin, found in judged:
            tables.append(comparison_table(f"{self.name}_{measure.split('_')[0]}", found, margin, "points", conditions))
        steps = claimed_steps("hyperparameters")
        findings += [
            never_fails("With ε = 1e-2 and K = 9 no run fails", {_BEST: named[_BEST]}, steps=steps),
            some_fail("With K = 19 some runs fail", {o: named[o] for o in others}, steps=steps),
        ]
        everything = [j for _, _, found in judged for j in found]
        return Outcome(
            self.name,
            self.title,
            scale,
            {**chosen.conditions(), "d": conditions["d"]},
            self.paper,
            (
                cells_table(self.name, cells, conditions),
                *tables,
                runs_table(f"{self.name}_runs", cells, conditions),
            ),
            (
                Figure(
                    draw_differences(folder, self.name, everything, MARGIN, f"{_BEST} less the other setting, points"),
                    "Mean difference, pair by pair, with its 95 % interval; the grey band is the margin of the test "
                    f"error. {conditions_text(conditions)}.",
                ),
            ),
            tuple(findings),
            (
                "Margins: " + "; ".join(f"{words}: {margin:g} points" for words, margin in _MEASURES.values()) + ".",
                "The rises of the test error are summed over the epochs; the training error is averaged over them.",
            ),
        )
