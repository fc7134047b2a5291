"""E4: the influence of ε and K, by pairs of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from .verdicts import MARGIN, Comparison, differences, judge, judge_table, never_fails, some_fail

__all__ = ["HyperparameterPairs"]

_BEST = "ε = 1e-2, K = 9"

#: What is compared: the property of trials, in words, the margin.
_MEASURES = {
    "error_by_seed": ("test error", MARGIN),
    "rises_by_seed": ("sum of rises of the test error", RISES_MARGIN),
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
        claims: dict[str, list[Comparison]] = {}
        margins: dict[str, float] = {}
        for measure, (words, margin) in _MEASURES.items():
            for other in others:
                claim = f"{_BEST} has a smaller {words} than {other}"
                found = differences((named[_BEST], named[other]), by_measure(measure))
                claims[claim], margins[claim] = [Comparison("", found)], margin
        comparisons = [
            replace(c, name=f"against {o}") for of, o in zip(claims.values(), others * 3, strict=True) for c in of
        ]
        judged = judge_table(comparisons, list(margins.values()))  # one table, whatever the measure
        parts = {words: judged[2 * i : 2 * i + 2] for i, (words, _) in enumerate(_MEASURES.values())}
        findings: list[Finding] = judge(claims, margin=margins)
        tables = [
            comparison_table(f"{self.name}_{measure.split('_')[0]}", parts[words], margin, "points", conditions)
            for measure, (words, margin) in _MEASURES.items()
        ]
        steps = claimed_steps("hyperparameters")
        findings += [
            never_fails("With ε = 1e-2 and K = 9 no run fails", {_BEST: named[_BEST]}, steps=steps),
            some_fail("With K = 19 some runs fail", {o: named[o] for o in others}, steps=steps),
        ]
        panels = [(f"{words}: difference, points", parts[words], margin) for words, margin in _MEASURES.values()]
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
                    draw_differences(folder, self.name, panels),
                    "Mean difference, pair by pair, with its 95 % interval; the grey bands are the "
                    f"margins. {conditions_text(conditions)}.",
                ),
            ),
            tuple(findings),
            (
                "Margins: " + "; ".join(f"{words}: {margin:g} points" for words, margin in _MEASURES.values()) + ".",
                "The rises of the test error are summed over the epochs; the training error is averaged over them.",
            ),
        )
