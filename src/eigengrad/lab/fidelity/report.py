"""What a recording shows: a table and a figure of the error of every method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...gradients import GradientRule
from ..report import Outcome, Table, figures
from ..report.outcome import Figure
from .measure import Measurement, Spectrum, measure, spectrum
from .methods import (
    ALGORITHM_1,
    ALL_PAIRS,
    EXACT,
    PAPER_DEGREE,
    RELEASED,
    SVD,
    TAYLOR_DEGREES,
    fidelity_methods,
    taylor_name,
)
from .snapshot import Snapshot

__all__ = ["COLOURS", "Entry", "Fidelity", "Summary", "draw_degrees", "entry", "summarise"]

#: Of what stands beside the Taylor expansion in figures.
COLOURS = {
    EXACT: figures.GREEN,
    "SVD-Clip": figures.BLUE,
    ALGORITHM_1: figures.ORANGE,
    ALL_PAIRS: figures.YELLOW,
    "PI": figures.PINK,
    RELEASED: "#b35900",
    "Saturate": figures.TEAL,
    "Lorentzian": "#7a5195",
    "Mask": figures.INK,
    SVD: figures.GREY,
}
_PAPER = taylor_name(PAPER_DEGREE)


@dataclass(frozen=True)
class Entry:
    """One snapshot, measured: the layer and step, its spectrum, and every method by name."""

    layer: str
    step: int
    spectrum: Spectrum
    methods: Mapping[str, Measurement]


@dataclass(frozen=True)
class Summary:
    """A method over several snapshots.

    Attributes:
        error, cosine, error_x, cosine_x: the medians over the snapshots with a finite gradient; NaN if there is none.
        worst: the largest error of the gradient of M.
        finite: the share of snapshots with a finite gradient.
    """

    error: float
    worst: float
    cosine: float
    error_x: float
    cosine_x: float
    finite: float


def entry(
    snapshot: Snapshot,
    methods: Mapping[str, str | GradientRule] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Entry:
    """Measure every method on a snapshot: those of this library, and others by name."""
    chosen = {**fidelity_methods(snapshot.eps), **(methods or {})}
    measured = {name: measure(snapshot, gradient, dtype) for name, gradient in chosen.items()}
    return Entry(snapshot.layer, snapshot.step, spectrum(snapshot), measured)


def summarise(measurements: Sequence[Measurement]) -> Summary:
    """The medians of a method over snapshots."""
    fine = [m for m in measurements if m.finite]
    share = len(fine) / len(measurements) if measurements else math.nan
    if not fine:
        return Summary(math.nan, math.nan, math.nan, math.nan, math.nan, share)
    names = ("error", "cosine", "error_x", "cosine_x")
    error, cosine, error_x, cosine_x = (statistics.median(getattr(m, name) for m in fine) for name in names)
    return Summary(error, max(m.error for m in fine), cosine, error_x, cosine_x, share)


@dataclass(frozen=True)
class Fidelity:
    """The error of every method on every snapshot of a recording."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], methods: Mapping[str, str | GradientRule] | None = None) -> Fidelity:
        """Measure every method on every snapshot, in float32.

        Raises:
            ValueError: there is no snapshot.
        """
        if not snapshots:
            raise ValueError(
                "fidelity: nothing was recorded; expected a backward pass in training mode, inside the context"
            )
        return cls(tuple(entry(snapshot, methods) for snapshot in snapshots))

    @property
    def layers(self) -> list[str]:
        """The names of the layers, in the order they were met."""
        return list(dict.fromkeys(e.layer for e in self.entries))

    def summary(self, layer: str) -> dict[str, Summary]:
        """Method → its medians for one layer."""
        of_layer = [e.methods for e in self.entries if e.layer == layer]
        return {name: summarise([methods[name] for methods in of_layer]) for name in of_layer[0]}

    def tables(self) -> tuple[Table, ...]:
        """The methods by layer, and the spectra they met."""
        rows: list[tuple[Any, ...]] = []
        spectra: list[tuple[Any, ...]] = []
        for layer in self.layers:
            for name, s in self.summary(layer).items():
                values = (s.error, s.worst, s.cosine, s.error_x, s.cosine_x)
                rows.append((layer, name, *(_short(v) for v in values), f"{100 * (1 - s.finite):.0f} %"))
            met = [e.spectrum for e in self.entries if e.layer == layer]
            middle = {field: statistics.median(getattr(s, field) for s in met) for field in vars(met[0])}
            spectra.append(
                (
                    layer,
                    len(met),
                    f"{100 * middle['first']:.0f} %",
                    _short(min(s.gap for s in met)),
                    *(_short(middle[name]) for name in ("tied", "kept", "bound")),
                )
            )
        conditions = {"snapshots": str(len(self.entries)), "arithmetic": "float32 against float64"}
        columns = ("layer", "method", "error", "worst", "cosine", "error at x", "cosine at x", "not finite")
        spectrum_columns = (
            *("layer", "snapshots", "share of λ₁", "smallest gap", "eigenvalues at ε"),
            *("SVD-PI keeps", "n(K+1)/ε"),
        )
        return (
            Table(
                "fidelity",
                "Relative error and cosine of every method's gradient",
                columns,
                tuple(rows),
                conditions,
                "Medians over the snapshots, and the worst error of the gradient of the covariance. The last two are "
                "of what reaches the input of the layer.",
            ),
            Table(
                "fidelity_spectra",
                "The spectra of the layers",
                spectrum_columns,
                tuple(spectra),
                conditions,
                "Medians over the snapshots, and the smallest gap of all, relative to the largest eigenvalue.",
            ),
        )

    def outcome(self, folder: Path, title: str = "Fidelity of gradients", note: str = "") -> Outcome:
        """The tables and the figure, which is written to ``folder``."""
        conditions = {"snapshots": str(len(self.entries)), "layers": ", ".join(self.layers)}
        figure = Figure(
            self._draw(folder),
            "Left: relative error of the gradient of the covariance, median over the snapshots, against the degree K; "
            "the other methods are lines, dotted where a gradient was not always finite. Right: the same along the "
            "training.",
        )
        notes = (
            "The reference is the gradient by divided differences in float64, on the same covariance and the same "
            "gradient of the whitening matrix.",
            *([note] if note else []),
        )
        return Outcome(
            "fidelity",
            title,
            "own",
            conditions,
            "claims that few terms are enough.",
            self.tables(),
            (figure,),
            (),
            notes,
        )

    def write(self, directory: Path | str) -> Path:
        """Write ``README.md``, a CSV a table and the figure to a folder; return the README."""
        return self.outcome(Path(directory)).write(Path(directory))

    def __str__(self) -> str:
        lines = []
        for layer in self.layers:
            lines.append(f"{layer}: median relative error of the gradient, and its cosine")
            for name, s in self.summary(layer).items():
                broken = "" if s.finite == 1 else f"  ({100 * (1 - s.finite):.0f} % not finite)"
                lines.append(f"  {name:<22}{s.error:>10.2g}{s.cosine:>8.3f}{broken}")
        return "\n".join(lines)

    def _draw(self, folder: Path) -> str:
        layers = self.layers[:4]  # of a deep network the first show it
        with figures.style() as plt:
            figure, axes = plt.subplots(len(layers), 2, figsize=(11, 3.9 * len(layers)), squeeze=False, sharey="row")
            for (left, right), layer in zip(axes, layers, strict=True):
                draw_degrees(left, self.summary(layer))
                left.set(title=f"Layer {layer}", ylabel="relative error of gM")
                of_layer = [e for e in self.entries if e.layer == layer]
                for name in (_PAPER, *COLOURS):
                    values = [e.methods[name].error for e in of_layer if name in e.methods]
                    colour = COLOURS.get(name, figures.RED)
                    right.plot([e.step for e in of_layer], values, "o-", ms=3, lw=1.3, color=colour, label=name)
                right.set(xlabel="training step", yscale="log")
                right.legend(loc="upper left", bbox_to_anchor=(1, 1))
            return figures.save(figure, folder, "fidelity")


def draw_degrees(axis: Any, summaries: Mapping[str, Summary], *, labels: bool = True) -> None:
    """Draw the error of Taylor expansions against K, with the other methods as horizontal lines.

    A line is dotted where the gradient of the method was not always finite: its median is over the other snapshots.
    """
    errors = [summaries[taylor_name(degree)].error for degree in TAYLOR_DEGREES]
    axis.plot(TAYLOR_DEGREES, errors, "o-", ms=4, color=figures.RED, label="SVD-Taylor" if labels else None)
    for name, colour in COLOURS.items():
        if name in summaries and math.isfinite(summaries[name].error):
            style = "-" if name in (EXACT, ALGORITHM_1, "SVD-Clip") else "--"
            style = style if summaries[name].finite == 1 else ":"
            axis.axhline(summaries[name].error, color=colour, lw=1.4, ls=style, label=name if labels else None)
    axis.set(xscale="log", yscale="log", xlabel="degree K of the Taylor expansion")
    axis.set_xticks(TAYLOR_DEGREES[::2], [str(degree) for degree in TAYLOR_DEGREES[::2]])
    axis.minorticks_off()


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None
