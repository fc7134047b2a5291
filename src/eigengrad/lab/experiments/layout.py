"""Tables in the paper's layout: methods and measures down, dimensions across, the paper's number beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..report import Table
from ..report.tables import Cell
from ..statistics import clopper_pearson
from .trained import Cells
from .trials import Trials

__all__ = ["Printed", "cells_table", "paper_table", "protocol_note"]


def protocol_note(trials: int) -> str:
    """What stands under a table of one run a setting; nothing under one of several."""
    if trials > 1:
        return ""
    return (
        "Protocol check: one run for each setting shows that the protocol runs. Differences between its rows are "
        "within what another seed would change, and none is to be read from it."
    )


@dataclass(frozen=True)
class Printed:
    """What the paper prints in a cell; ``None`` is a dash there, or nothing."""

    rate: float | None = None
    best: float | None = None
    mean: str | None = None


def paper_table(
    name: str,
    title: str,
    cells: Cells,
    printed: Mapping[tuple[str, int | None], Printed],
    measures: Sequence[str],
    conditions: dict[str, str],
    note: str = "",
) -> Table:
    """The table as the paper prints it.

    Args:
        name, title, conditions, note: of the table.
        cells: (method, d) → our runs; d is ``None`` for what has no dimension.
        printed: the same for the paper's numbers.
        measures: of "success rate", "min" and "mean".
    """
    sizes = sorted({size for _, size in cells}, key=lambda size: (size is None, size or 0))
    heads = [f"d = {size}" if size is not None else "no d" for size in sizes]
    columns = ["method", "measure", *(f"{head}: {whose}" for head in heads for whose in ("paper", "ours"))]
    rows: list[tuple[Cell, ...]] = []
    for method in dict.fromkeys(method for method, _ in cells):
        for measure in measures:
            row: list[Cell] = [method, measure]
            for size in sizes:
                paper, ours = printed.get((method, size), Printed()), cells.get((method, size), Trials(()))
                row += [_printed(paper, measure), _measured(ours, measure)]
            rows.append(tuple(row))
    # A column without a value is left out.
    kept = [i for i in range(len(columns)) if i < 2 or any(row[i] is not None for row in rows)]
    return Table(
        name,
        title,
        tuple(columns[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        conditions,
        note,
    )


def cells_table(name: str, cells: Cells, conditions: dict[str, str]) -> Table:
    """One row a cell, with all that is known of it."""
    rows: list[tuple[Cell, ...]] = []
    for (method, size), trials in cells.items():
        rows.append(
            (
                method,
                size,
                trials.count,
                trials.succeeded,
                _interval(trials),
                _rounded(trials.best),
                _rounded(trials.mean),
                _rounded(trials.deviation),
                _rounded(trials.standard_error),
                trials.amplification,
                _rounded(trials.seconds_per_step, 3),
                trials.failures_text() or None,
            )
        )
    columns = (
        "method",
        "d",
        "trials",
        "succeeded",
        "rate, 95 %",
        "min %",
        "mean %",
        "std dev",
        "std error",
        "largest 1/gap",
        "s/step",
        "failures",
    )
    return Table(
        name,
        "Every cell: test error of the best epoch in per cent",
        columns,
        tuple(rows),
        conditions,
        "largest 1/gap: the largest entry that the gradient used in place of 1/(λi − λj), seen in one step of twenty; "
        "a dash where eigenvectors are not differentiated.",
    )


def _printed(paper: Printed, measure: str) -> Cell:
    if measure == "success rate":
        return None if paper.rate is None else f"{paper.rate:g} %"
    return paper.best if measure == "min" else paper.mean


def _measured(ours: Trials, measure: str) -> Cell:
    if measure == "success rate":
        return ours.rate_text()
    return _rounded(ours.best) if measure == "min" else ours.mean_text()


def _interval(trials: Trials) -> str | None:
    """The exact (Clopper–Pearson) interval of the rate of success."""
    if not trials.count:
        return None
    low, high = clopper_pearson(trials.succeeded, trials.count)
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)
