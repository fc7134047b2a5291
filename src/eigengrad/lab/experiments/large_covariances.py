"""E5, the trainings: does SVD-PI converge where a covariance has 256 channels, as in Table 7?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..report import Finding, Outcome, Table, figures
from ..report.outcome import REFUTED, UNDECIDED, Figure
from ..report.tables import Cell, conditions_text
from ..statistics import runs_for_bound
from ..training import Result
from .fig6 import AREA_MARGIN
from .methods import POOLING
from .presets import Preset
from .trained import Cells, TrainedExperiment
from .trials import Trials
from .verdicts import NEVER, better

__all__ = ["LargeCovariances", "learned"]

_COMPARED = ("svd_pi", "svd_taylor", "exact")
#: Scale → channels of the covariance, and classes.
_SIZES = {"smoke": (16, 10), "small": (256, 8), "paper": (256, 1000)}
#: What guessing reaches once in a thousand trainings has not been learned.
_CHANCE = 1e-3


class LargeCovariances(TrainedExperiment):
    """AlexNet with covariance pooling of all of its channels, by three gradients."""

    name = "large_covariances"
    title = "Large covariances: does SVD-PI converge at 256 channels?"
    paper = (
        "reports that it did not on ImageNet (Table 7), because it discards eigenvectors with small eigenvalues, and "
        "that SVD-Taylor did."
    )
    protocol = "large_covariances"

    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """SVD-PI, SVD-Taylor and the exact gradient; these networks have no groups."""
        return {POOLING[key].label: {**POOLING[key].fields, "group_size": 1} for key in _COMPARED}

    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """The training error of every run, what SVD-PI kept, and whether it learned."""
        channels, classes = _SIZES[scale]
        conditions = {"scale": scale, **chosen.conditions()}
        named = {method: trials for (method, _), trials in cells.items()}
        pi, taylor, exact = (named[POOLING[key].label] for key in _COMPARED)
        unit, measure = "points of mean training error", attrgetter("area_by_seed")
        return Outcome(
            self.name,
            self.title,
            scale,
            chosen.conditions(),
            self.paper,
            (_table(cells, chosen, classes, conditions),),
            (
                Figure(
                    _draw(folder, cells, classes),
                    "Training error after each epoch, every run a line; dotted: guessing. "
                    f"{conditions_text(conditions)}.",
                ),
            ),
            (
                _does_not_converge(channels, pi, chosen, classes),
                *better(
                    {
                        f"At {channels} channels the training error of SVD-Taylor falls faster than that of SVD-PI": {
                            "": (taylor, pi)
                        },
                        f"(ours) At {channels} channels the training error of the exact gradient falls faster than "
                        "that of SVD-Taylor": {"": (exact, taylor)},
                    },
                    margin=AREA_MARGIN,
                    unit=unit,
                    measure=measure,
                ),
            ),
            (
                "A run has learned if its training error in the last epoch is one that guessing reaches at most once "
                f"in {1 / _CHANCE:,.0f} trainings. It has not converged if it fails, or has learned nothing.",
                "SVD-PI is Algorithm 1: eigenvectors at ε are missing from the pooled square root as well.",
            ),
        )


def learned(result: Result, images: int, classes: int) -> bool:
    """Whether a run ended with a training error that guessing is unlikely to reach."""
    from scipy.stats import binom  # type: ignore[import-untyped]

    curve = result.curves.get("train_error")
    if not result.succeeded or not curve or not math.isfinite(curve[-1]):
        return False
    return float(binom.cdf(round(curve[-1] * images), images, 1 - 1 / classes)) < _CHANCE


def _does_not_converge(channels: int, pi: Trials, chosen: Preset, classes: int) -> Finding:
    """Judge SVD-PI by its runs: one that learns shows that large covariances alone do not keep it from converging."""
    claim = f"A covariance of {channels} channels is enough for SVD-PI not to converge"
    count = sum(learned(r, chosen.train_images, classes) for r in pi.results)
    last = [100 * r.curves["train_error"][-1] for r in pi.results if r.succeeded and r.curves.get("train_error")]
    kept = [r.gradient["rank"] for r in pi.results if "rank" in r.gradient]
    evidence = f"{count} of {pi.count} runs learned"
    if last:
        evidence += f": a training error of {min(last):.1f} to {max(last):.1f} %, where guessing has "
        evidence += f"{100 * (1 - 1 / classes):.1f} %"
    if kept:
        evidence += f". It kept {statistics.fmean(kept):.0f} of {channels} eigenvectors"
    missing = runs_for_bound(NEVER) - pi.count
    return Finding(
        claim,
        REFUTED if count else UNDECIDED,
        f"{evidence}. (The paper's run was on ImageNet, which this is not.)",
        detail="" if count else f"needs {max(missing, 1)} more runs",
        effect=f"{count} of {pi.count} learned",
        runs=f"{pi.count} runs",
    )


def _table(cells: Cells, chosen: Preset, classes: int, conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (method, _), trials in cells.items():
        for r in trials.results:
            curve = [round(100 * value, 2) for value in r.curves.get("train_error", ()) if math.isfinite(value)]
            loss = [round(value, 3) for value in r.curves.get("train_loss", ()) if math.isfinite(value)]
            ends = [(c[0], c[-1]) if c else (None, None) for c in (curve, loss)]
            best = None if r.best_error is None else round(100 * r.best_error, 2)
            rank = r.gradient.get("rank")
            verdict = "yes" if learned(r, chosen.train_images, classes) else "no"
            failed = None if r.failure is None else f"{r.failure.reason} at step {r.failure.step}"
            rows.append(
                (
                    *(method, r.seed, r.steps, *ends[0], *ends[1], best),
                    *(None if rank is None else round(rank, 1), verdict, failed),
                )
            )
    columns = (
        *("method", "seed", "steps", "training error: first epoch %", "last epoch %"),
        *("training loss: first epoch", "last epoch", "best test error %", "eigenvectors kept", "learned", "failure"),
    )
    return Table("large_covariances", "Every run", columns, tuple(rows), conditions)


def _draw(folder: Path, cells: Cells, classes: int) -> str:
    colours = {method.label: method.colour for method in POOLING.values()}
    with figures.style() as plt:
        figure, axis = plt.subplots(figsize=(7.2, 3.8))
        for (method, _), trials in cells.items():
            curves = [[100 * v for v in r.curves["train_error"]] for r in trials.results if r.curves.get("train_error")]
            for number, curve in enumerate(curves):
                label = None if number else method
                axis.plot(range(1, len(curve) + 1), curve, "o-", ms=3, lw=1.3, color=colours[method], label=label)
        axis.axhline(100 * (1 - 1 / classes), color=figures.INK, lw=0.9, ls=":", label="guessing")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set(xlabel="epoch", ylabel="training error, %")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside right center")
        return figures.save(figure, folder, "large_covariances")
