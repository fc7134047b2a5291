"""E6: whose training error falls faster, from the runs of the comparison of errors."""

from __future__ import annotations

from pathlib import Path

from ..report import Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import Cell, conditions_text
from .errors import Errors, against, by_measure, comparison_table
from .fig6 import AREA_MARGIN
from .methods import WHITENING
from .presets import Preset
from .trained import Cells
from .verdicts import Comparison, better, differences, judge_table

__all__ = ["Convergence"]


class Convergence(Errors):
    """The area under the training error over the epochs, pair by pair."""

    name = "convergence"
    title = "Convergence: whose training error falls faster, by pairs of runs"
    paper = "shows curves of the training error on CIFAR-10 (Figure 6), without numbers."
    compared = ("taylor", "power_iteration", "clip", "exact")  # of the runs of ``errors``

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """The mean training error over the epochs, compared pair by pair."""
        conditions = {"scale": scale, **chosen.conditions()}
        area = by_measure("area_by_seed")
        taylor, pi, exact = (WHITENING[key].label for key in ("taylor", "power_iteration", "exact"))
        findings = better(
            {
                f"The training error of {taylor} falls faster than that of {pi}": {
                    "": against(cells, "taylor", "power_iteration")
                },
                "(ours) The training error of the exact gradient falls faster than that of SVD-Taylor": {
                    "": against(cells, "exact", "taylor")
                },
            },
            margin=AREA_MARGIN,
            unit="points of mean training error",
            measure=area,
        )
        comparisons = [
            Comparison(
                f"{a} − {b}, d = {size}".replace(" (ours)", ""), differences((cells[a, size], cells[b, size]), area)
            )
            for a, b in ((taylor, pi), (exact, taylor))
            for size in chosen.group_sizes
        ]
        judged = judge_table(comparisons, AREA_MARGIN)
        return Outcome(
            self.name,
            self.title,
            scale,
            chosen.conditions(),
            self.paper,
            (
                _epochs(cells, conditions),
                comparison_table(f"{self.name}_comparisons", judged, AREA_MARGIN, "points", conditions),
            ),
            (
                Figure(
                    _draw(folder, cells),
                    "Training error after each epoch: mean over the seeds, and the range of the middle half of them. "
                    f"{conditions_text(conditions)}.",
                ),
            ),
            tuple(findings),
            (
                "The area under the curve over the epochs, not over seconds: Figure 7 has the times.",
                f"The margin is {AREA_MARGIN:g} points of the training error, averaged over the epochs.",
            ),
        )


def _epochs(cells: Cells, conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (method, size), trials in cells.items():
        curve = [round(100 * value, 2) for value in trials.curve("train_error")]
        area = trials.area_by_seed.values()
        mean = round(sum(area) / len(area), 3) if area else None
        shown = [curve[i] if i < len(curve) else None for i in (0, 1, 2)]
        rows.append((method, size, trials.succeeded, mean, *shown, curve[-1] if curve else None))
    columns = ("method", "d", "runs", "mean over epochs %", "epoch 1 %", "epoch 2 %", "epoch 3 %", "last epoch %")
    return Table("convergence", "Training error over the epochs", columns, tuple(rows), conditions)


def _draw(folder: Path, cells: Cells) -> str:
    import numpy as np

    colours = {method.label: method.colour for method in WHITENING.values()}
    sizes = sorted({size for _, size in cells if size is not None})
    with figures.style() as plt:
        figure, axes = plt.subplots(1, len(sizes), figsize=(3.6 * len(sizes) + 1.4, 3.7), sharey=True, squeeze=False)
        for axis, size in zip(axes[0], sizes, strict=True):
            for method in dict.fromkeys(method for method, _ in cells):
                curves = [r.curves["train_error"] for r in cells[method, size].results if r.succeeded]
                if not curves:
                    continue
                values = 100 * np.array(curves)
                epochs = np.arange(1, values.shape[1] + 1)
                low, high = np.quantile(values, [0.25, 0.75], axis=0)
                axis.fill_between(epochs, low, high, color=colours[method], alpha=0.15, lw=0)
                axis.plot(epochs, values.mean(0), color=colours[method], lw=1.6, label=method)
            axis.set(title=f"d = {size}", xlabel="epoch", yscale="log")
        axes[0][0].set_ylabel("training error, %")
        handles, labels = axes[0][0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside right center")
        return figures.save(figure, folder, "convergence")
