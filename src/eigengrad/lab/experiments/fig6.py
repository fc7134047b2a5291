"""Figure 6: how the training error falls, for SVD-Taylor, SVD-PI and PI."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .methods import WHITENING
from .presets import Preset
from .trained import Cells, TrainedExperiment
from .trials import Trials
from .verdicts import better

__all__ = ["AREA_MARGIN", "Fig6"]

#: Points of the training error, averaged over the epochs, that matter.
AREA_MARGIN = 0.5

METHODS = ("pi", "power_iteration", "taylor", "exact")


class Fig6(TrainedExperiment):
    """Curves of the runs of Table 4, and the exact gradient beside them."""

    name = "fig6"
    title = "Figure 6: convergence of PI, SVD-PI and SVD-Taylor"
    paper = "CIFAR-10, ResNet-18, d = 4, 8, 16, 350 epochs; curves of the training error over time, without numbers."
    protocol = "cifar10"

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """The paper's three methods, and the exact gradient."""
        return {WHITENING[key].label: WHITENING[key].fields for key in METHODS}

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
        figure = Figure(
            _draw(folder, cells),
            f"Training error after each epoch, mean of the trials that succeeded. {conditions_text(conditions)}.",
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
                "Drawn over epochs: seconds depend on what else the machine was doing. Figure 7 has the times.",
            ),
        )


def _curve(trials: Trials) -> tuple[list[float], list[float]]:
    """Training error in per cent, and the seconds spent training until then."""
    errors = [100 * value for value in trials.curve("train_error")]
    return errors, list(accumulate(trials.curve("seconds")))


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


def _draw(folder: Path, cells: Cells) -> str:
    colours = {method.label: method.colour for method in WHITENING.values()}
    sizes = sorted({size for _, size in cells if size is not None})
    with figures.style() as plt:
        figure, axes = plt.subplots(1, len(sizes), figsize=(4 * len(sizes) + 0.6, 3.9), sharey=True, squeeze=False)
        for axis, size in zip(axes[0], sizes, strict=True):
            for method in dict.fromkeys(method for method, _ in cells):
                errors, _ = _curve(cells[method, size])
                if errors:
                    epochs = range(1, len(errors) + 1)
                    axis.plot(
                        epochs, errors, "o-" if len(errors) < 20 else "-", ms=4, color=colours[method], label=method
                    )
            axis.set(title=f"d = {size}", xlabel="epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
        axes[0][0].set_ylabel("training error, %")
        shown = [axis for axis in axes[0] if axis.lines]
        if shown:
            shown[-1].legend()
        return figures.save(figure, folder, "fig6")
