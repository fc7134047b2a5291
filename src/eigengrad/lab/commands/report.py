"""``eigengrad report``: the page and the scoreboard of what has been run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .experiment_options import Results
from .terminal import FAILED, complain, explained, listed, say

__all__ = ["report"]


def report(
    results: Results = Path("results"),
    document: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the scoreboard between the two marks of a Markdown document."),
    ] = None,
) -> None:
    """Build the page of all experiments that have been run, and print the verdicts on their claims.

    Nothing is run: everything is read from results/NAME/SCALE/outcome.json. With --document, the scoreboard and its
    figures are written into a Markdown file that has the lines <!-- scoreboard: begin --> and <!-- scoreboard: end -->.

    **Examples**

    ```
    eigengrad report
    eigengrad report --results benchmarks/results/experiments --document docs/experiments.md
    ```
    """
    from ..experiments import DECIDING, ORDER
    from ..report import build_page, load_outcomes, update_document

    with explained():
        if not results.is_dir():
            raise FileNotFoundError(f"--results: {results} is no folder; expected what `eigengrad reproduce` writes to")
        outcomes, damaged = load_outcomes(results, ORDER)
        for _, outcome in outcomes:
            for finding in outcome.findings:
                say(f"{outcome.experiment}/{outcome.scale}  {finding.label}. {finding.claim}")
        if document is not None:
            written = update_document(document, outcomes, DECIDING)
            say(f"{document}: {len(written) - 1} figures beside it")
        say(f"The page: {listed(build_page(results, ORDER, DECIDING))}")
        for message in damaged:
            complain(message)
        if damaged:
            raise typer.Exit(FAILED)
