"""The errors of all runs of a table in one figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..report import figures
from .methods import WHITENING
from .trained import Cells
from .trials import Trials

__all__ = ["CAPTION", "draw_errors", "panels_by_size"]

CAPTION = (
    "Test error of the best epoch: every run that succeeded is a point, the mean a bar; a cross with a count marks "
    "runs that failed."
)

#: Title of a panel → label of a method → its runs and its colour.
Panels = Mapping[str, Mapping[str, tuple[Trials, str]]]


def panels_by_size(cells: Cells, network: str = "") -> dict[str, dict[str, tuple[Trials, str]]]:
    """A panel for each dimension, with the whitening methods among the cells (of a network, if they begin with one)."""
    prefix = f"{network} " if network else ""
    present = [m for m in WHITENING.values() if any(method == prefix + m.label for method, _ in cells)]
    panels = {}
    for size in sorted({size for _, size in cells if size is not None}):
        panels[f"{network + ', ' if network else ''}d = {size}"] = {
            m.label.split(" (")[0]: (
                cells.get((prefix + m.label, size)) or cells.get((prefix + m.label, None)) or Trials(()),
                m.colour,
            )
            for m in present
        }
    return panels


def draw_errors(folder: Path, name: str, panels: Panels) -> str:
    """Every run a point, every mean a bar, side by side. Returns what the figure is called."""
    every = [trials for panel in panels.values() for trials, _ in panel.values()]
    worst = max((error for trials in every for error in trials.errors), default=100.0)
    widths = [0.36 * len(panel) + 0.5 for panel in panels.values()]
    with figures.style() as plt:
        figure, axes = plt.subplots(
            1, len(panels), figsize=(sum(widths) + 1.6, 4.4), sharey=True, squeeze=False, width_ratios=widths
        )
        for axis, (title, panel) in zip(axes[0], panels.items(), strict=True):
            for place, (trials, colour) in enumerate(panel.values()):
                axis.plot([place] * len(trials.errors), trials.errors, "o", color=colour, ms=5, alpha=0.75)
                if trials.mean is not None:
                    axis.hlines(trials.mean, place - 0.32, place + 0.32, color=colour, lw=3)
                failed = trials.count - trials.succeeded
                if failed:
                    axis.plot(place, worst * 1.04, "x", color=colour, ms=8, mew=2.4)
                    axis.annotate(f"{failed}", (place, worst * 1.04), (6, 2), textcoords="offset points", fontsize=9)
            axis.set_title(title, fontsize=10)
            axis.set_xticks(range(len(panel)), list(panel), rotation=60, ha="right")
            axis.set_xlim(-0.7, len(panel) - 0.3)
            axis.grid(visible=False, axis="x")
        axes[0][0].set_ylabel("test error, %  (× failed)")
        return figures.save(figure, folder, name)
