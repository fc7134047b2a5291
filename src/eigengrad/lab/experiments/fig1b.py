"""Figure 1(b): how often training with plain SVD fails, by dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..report import Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .experiment import Context
from .methods import WHITENING
from .presets import Preset, claimed_steps
from .trained import Cells, TrainedExperiment
from .verdicts import always_fails

__all__ = ["Fig1b"]

#: Per cent that failed. The figure's 18 attempts are described as "more than 50 %" at d = 4 and all above.
PRINTED = {4: "> 50 %", 8: "100 %", 16: "100 %", 32: "100 %", 64: "100 %"}
ATTEMPTS = 18


class Fig1b(TrainedExperiment):
    """The failures of plain SVD. The runs are those of Table 4."""

    name = "fig1b"
    title = "Figure 1(b): rate at which training with plain SVD fails"
    paper = "CIFAR-10, ZCA normalisation with plain SVD, 18 attempts for each dimension."
    protocol = "cifar10"

    def preset(self, scale: str, context: Context) -> Preset:
        """The preset of Table 4, with the figure's number of attempts in the paper's protocol."""
        if scale == "paper" and context.trials is None:
            context = replace(context, trials=ATTEMPTS)
        return super().preset(scale, context)

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """Plain SVD, the only method of the figure."""
        return {WHITENING["svd"].label: WHITENING["svd"].fields}

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """A table and a figure of how many runs fail, in which epoch and why."""
        conditions = {"scale": scale, **chosen.conditions()}
        rows = []
        for (_, size), trials in cells.items():
            failed = trials.count - trials.succeeded
            ours = f"{100 * failed / trials.count:.0f} % ({failed} of {trials.count})"
            rows.append((size, PRINTED.get(size or 0), ours, trials.failures_text() or None))
        table = Table("fig1b", "Runs that failed", ("d", "paper", "ours", "how ours failed"), tuple(rows), conditions)
        figure = Figure(
            _draw(folder, cells),
            f"Share of runs with plain SVD that failed. {conditions_text(conditions)}.",
        )
        larger = {f"d = {size}": trials for (_, size), trials in cells.items() if (size or 0) >= 8}
        return Outcome(
            self.name,
            self.title,
            scale,
            chosen.conditions(),
            self.paper,
            (table,),
            (figure,),
            (
                always_fails(
                    "For d > 4 training with plain SVD fails every time", larger, steps=claimed_steps(self.protocol)
                ),
            ),
            (
                "A run fails when a loss or a gradient is not finite, when it diverges, or when the decomposition does "
                "not converge. Whether an exact tie becomes infinity depends on the arithmetic: the paper used a GPU.",
                "A failure is a matter of time: the paper's runs have 350 epochs to meet a tie.",
            ),
        )


def _draw(folder: Path, cells: Cells) -> str:
    sizes = [size for _, size in cells]
    ours = [100 * (1 - trials.succeeded / trials.count) for trials in cells.values()]
    printed = [100 * 8 / 15 if size == 4 else 100.0 for size in sizes]
    with figures.style() as plt:
        figure, axis = plt.subplots(figsize=(6.4, 3.9))
        places = range(len(sizes))
        axis.bar([p - 0.2 for p in places], printed, 0.38, color=figures.GREY, label="paper (d = 4: Table 4)")
        bars = axis.bar([p + 0.2 for p in places], ours, 0.38, color=figures.RED, label="ours")
        axis.bar_label(bars, [f"{t.count - t.succeeded} of {t.count}" for t in cells.values()], padding=2, fontsize=9)
        axis.set_xticks(list(places), [f"d = {size}" for size in sizes])
        axis.set(ylabel="runs that failed, %", ylim=(0, 110), title="Plain SVD")
        axis.grid(visible=False, axis="x")
        axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
        return figures.save(figure, folder, "fig1b")
