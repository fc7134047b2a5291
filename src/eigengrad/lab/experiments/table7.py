"""Table 7: covariance poolings with AlexNet on ImageNet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .layout import cells_table
from .methods import POOLING
from .presets import Preset, claimed_steps
from .trained import Cells, TrainedExperiment
from .trials import Trials
from .verdicts import always_fails, better, never_fails

__all__ = ["Table7"]

#: Top-1 and top-5 error in per cent. SVD-PI did not converge.
PRINTED: dict[str, tuple[float | None, float | None]] = {
    "AlexNet": (41.8, 19.2),
    "Bilinear CNN": (39.89, 18.32),
    "Improved Bilinear CNN": (40.75, 18.91),
    "DeepO2P": (42.16, 19.62),
    "G2DeNet": (38.71, 17.66),
    "MPN-COV (clipped)": (38.51, 17.60),
    "Fast MPN-COV (iSQRT-COV)": (38.45, 17.52),
    "SVD-PI": (None, None),
    "SVD-Taylor": (38.74, 17.12),
}


class Table7(TrainedExperiment):
    """AlexNet with average pooling, the paper's eight covariance poolings, and the exact gradient."""

    name = "table7"
    title = "Table 7: covariance pooling with AlexNet"
    paper = "ImageNet, 1,281,167 training images, AlexNet as MPN-COV trains it (227 px, 20 epochs), 1 trial."
    protocol = "pooling"

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """The methods by label. The size of the covariance is the network's, so there is one column."""
        size = 1  # the normalisation of these networks has no groups
        return {method.label: {**method.fields, "group_size": size} for method in POOLING.values()}

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """Top-1 and top-5 error by method."""
        conditions = {"scale": scale, **chosen.conditions()}
        rows = []
        for (method, _), trials in cells.items():
            top1, top5 = PRINTED.get(method, (None, None))
            best = None if trials.best is None else round(trials.best, 2)
            failures = trials.failures_text() or None
            five = _top5(trials)
            rows.append((method, top1, top5, trials.rate_text(), best, trials.mean_text(), five, failures))
        columns = (
            "method",
            "top-1: paper",
            "top-5: paper",
            "succeeded",
            "top-1: ours, min",
            "top-1: ours, mean",
            "top-5: ours, mean",
            "how ours failed",
        )
        table = Table(
            "table7",
            "Test error (%)",
            columns,
            tuple(rows),
            conditions,
            "A dash in the paper's row of SVD-PI means that it did not converge.",
        )
        figure = Figure(
            _draw(folder, cells),
            f"Test error of the best epoch by pooling. {conditions_text(conditions)}.",
        )
        named = {method: trials for (method, _), trials in cells.items()}
        taylor, steps = named["SVD-Taylor"], claimed_steps(self.protocol)
        return Outcome(
            self.name,
            self.title,
            scale,
            chosen.conditions(),
            self.paper,
            (table, cells_table("table7_cells", cells, conditions)),
            (figure,),
            (
                never_fails(
                    "SVD-Taylor trains through covariances of all channels", {"SVD-Taylor": taylor}, steps=steps
                ),
                always_fails(
                    "SVD-PI does not converge on large covariances",
                    {"SVD-PI": named[POOLING["svd_pi"].label]},
                    steps=steps,
                ),
                *better(
                    {
                        "Covariance pooling with SVD-Taylor has a smaller error than AlexNet itself": {
                            "": (taylor, named["AlexNet"])
                        },
                        "SVD-Taylor has a smaller error than clipping (MPN-COV)": {
                            "": (taylor, named["MPN-COV (clipped)"])
                        },
                    }
                ),
                never_fails(
                    "(ours) The exact gradient by divided differences never fails",
                    {"Exact": named["Exact (ours)"]},
                ),
            ),
            (
                "The paper's other numbers are those of the methods' own papers, trained in different ways; here all "
                "are trained alike.",
                "With eight or ten classes a top-5 error says little.",
            ),
        )


def _top5(trials: Trials) -> float | None:
    """The mean top-5 error over the runs, each in the epoch with its best top-1 error."""
    found = [
        100 * result.curves["test_top5_error"][result.best_epoch - 1]
        for result in trials.results
        if result.succeeded and result.best_epoch and "test_top5_error" in result.curves
    ]
    return round(statistics.fmean(found), 2) if found else None


def _draw(folder: Path, cells: Cells) -> str:
    colours = {method.label: method.colour for method in POOLING.values()}
    with figures.style() as plt:
        figure, axis = plt.subplots(figsize=(8.4, 4.2))
        for place, ((method, _), trials) in enumerate(reversed(cells.items())):
            if trials.mean is None:
                axis.text(0.5, place, "failed", va="center", color=colours[method], weight="bold")
            else:
                axis.barh(place, trials.mean, color=colours[method], alpha=0.85, height=0.66)
                axis.plot(trials.errors, [place] * len(trials.errors), "o", color="white", mec=figures.INK, ms=5)
        axis.set_yticks(range(len(cells)), [method for method, _ in reversed(cells)])
        axis.set(xlabel="test error, %  (bar: mean, points: runs)")
        axis.grid(visible=False, axis="y")
        return figures.save(figure, folder, "table7")
