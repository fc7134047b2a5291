"""``eigengrad compare``: every method on embedded data, in about a minute."""

from __future__ import annotations

import time
from pathlib import Path

from .experiment_options import DryRun, Jobs, Results, Threads, Trials
from .terminal import duration, explained, listed, say, show

__all__ = ["compare"]


def compare(
    trials: Trials = None,
    jobs: Jobs = None,
    threads: Threads = None,
    results: Results = Path("results"),
    dry_run: DryRun = False,
) -> None:
    """Compare every method on the digits that come with scikit-learn.

    Trains a small network with each gradient of the whitening layer (plain SVD, power iteration, clipping, SVD-PI,
    SVD-Taylor, exact), with IterNorm and with batch norm; prints who survives, how well it does and how long a step
    takes; and writes the page. It needs no data and takes about a minute on two cores.

    **Examples**

    ```
    eigengrad compare
    eigengrad compare --trials 5
    ```
    """
    from ..experiments import DECIDING, ORDER, Context
    from ..experiments.comparison import Comparison
    from ..report import build_page

    with explained():
        start = time.perf_counter()
        settings = Context(
            results=results,
            trials=trials,
            jobs=jobs,
            threads=threads or (None if jobs else 1),
            progress=True,
            say=say,
        )
        experiment = Comparison()
        plan = experiment.plan("smoke", settings)
        say(f"{plan.steps[0]}\nestimated time: {duration(plan.seconds)}")
        if dry_run:
            return
        outcome = experiment.run("smoke", settings)
        outcome.write(settings.directory(experiment.name, "smoke"))
        (table,) = outcome.tables
        show(table)
        for finding in outcome.findings:
            say(f"{finding.label}. {finding.claim}. {finding.evidence}")
        page = build_page(results, [experiment.name, *ORDER], DECIDING)
        say(f"\nDone in {time.perf_counter() - start:.0f} s. The page: {listed(page)}")
