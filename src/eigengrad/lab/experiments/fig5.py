"""Figure 5: training and test error over the epochs, for the three settings of Table 3."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import numpy as np

from ..report import Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .presets import Preset
from .table3 import SETTINGS, Table3
from .trained import Cells
from .verdicts import better

__all__ = ["RISES_MARGIN", "Fig5"]

#: Points in the sum of the rises of the test error that matter: one rise of so much in a whole training.
RISES_MARGIN = 0.5


class Fig5(Table3):
    """The curves of the runs of Table 3."""

    name = "fig5"
    title = "Figure 5: convergence with different ε and K"

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """How smooth the test error is: the mean change from one epoch to the next, in either direction."""
        conditions = {"scale": scale, **chosen.conditions(), "d": ", ".join(map(str, chosen.group_sizes))}
        rough: dict[str, tuple[float, float]] = {}
        for (name, _), trials in cells.items():
            curves = [np.array(result.curves["test_error"]) * 100 for result in trials.results if result.succeeded]
            rises = [float(np.clip(np.diff(curve), 0, None).sum()) for curve in curves if len(curve) > 1]
            gaps = [
                float(np.mean(np.array(r.curves["test_error"]) - np.array(r.curves["train_error"])) * 100)
                for r in trials.results
                if r.succeeded
            ]
            rough[name] = (float(np.mean(rises)) if rises else np.nan, float(np.mean(gaps)) if gaps else np.nan)
        rows = [(name, f"{rise:.2f}", f"{gap:.2f}") for name, (rise, gap) in rough.items()]
        table = Table(
            "fig5",
            "How steadily the test error falls",
            ("setting", "sum of rises of the test error, %", "test minus training error, %"),
            tuple(rows),
            conditions,
            "Means over the runs that succeeded. A curve that only falls has a sum of rises of 0.",
        )
        figure = Figure(
            _draw(folder, cells),
            f"Training (dashed) and test error (solid) of every run. {conditions_text(conditions)}.",
        )
        named = {name: trials for (name, _), trials in cells.items()}
        steady = "ε = 1e-2, K = 9"
        findings = better(
            {
                f"The test error rises less with {steady} than with {name}": {"": (named[steady], trials)}
                for name, trials in named.items()
                if name != steady
            },
            margin=RISES_MARGIN,
            unit="points of rises",
            measure=attrgetter("rises_by_seed"),
        )
        return Outcome(
            self.name, self.title, scale, chosen.conditions(), self.paper, (table,), (figure,), tuple(findings), ()
        )


def _draw(folder: Path, cells: Cells) -> str:
    with figures.style() as plt:
        figure, axes = plt.subplots(1, len(cells), figsize=(4 * len(cells), 3.9), sharey=True, squeeze=False)
        for axis, ((name, _), trials) in zip(axes[0], reversed(cells.items()), strict=True):
            for number, result in enumerate(r for r in trials.results if r.succeeded):
                epochs = range(1, len(result.curves["test_error"]) + 1)
                first = number == 0
                train = [100 * value for value in result.curves["train_error"]]
                test = [100 * value for value in result.curves["test_error"]]
                axis.plot(epochs, train, "--", color=figures.GREY, lw=1.3, label="training" if first else None)
                axis.plot(epochs, test, color=figures.RED, lw=1.6, alpha=0.8, label="test" if first else None)
            axis.set(title=f"{SETTINGS[name][5]} {name}", xlabel="epoch")
            if trials.succeeded:
                axis.legend()
        axes[0][0].set_ylabel("error, %")
        return figures.save(figure, folder, "fig5")
