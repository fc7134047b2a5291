"""``eigengrad sweep``: the training runs of a table, resumable and parallel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .experiment_options import (
    Address,
    Backend,
    DataRoot,
    DryRun,
    Gradients,
    GroupSizes,
    Jobs,
    Overrides,
    Results,
    Scale,
    Threads,
    Trials,
    context,
)
from .terminal import MISUSE, complain, duration, explained, say

__all__ = ["sweep"]


def sweep(
    experiment: Annotated[
        str,
        typer.Argument(
            help="fig1b, table3 to table9, fig5, fig6, fig9, fig10, errors, errors_cifar, settings, convergence, "
            "free_runs, running_statistics, large_covariances or whiteness."
        ),
    ],
    scale: Scale = "small",
    data_root: DataRoot = None,
    trials: Trials = None,
    group_size: GroupSizes = None,
    gradient: Gradients = None,
    overrides: Overrides = None,
    jobs: Jobs = None,
    threads: Threads = None,
    backend: Backend = "local",
    address: Address = None,
    results: Results = Path("results"),
    dry_run: DryRun = False,
) -> None:
    """Do the training runs of an experiment.

    Every run has its folder in results/runs. Finished runs are never repeated, interrupted ones continue: stop a sweep
    when you need the machine and start it again later. Experiments that need the same run share it. A run that fails
    numerically is a result, and counted as one; a run whose process dies is tried again the next time.

    When it is done, eigengrad reproduce makes the table and the figure from the runs. With --gradient or --set the runs
    are yours and no table's: their errors are printed.

    **Examples**

    ```
    eigengrad sweep table4 --scale smoke
    eigengrad sweep table4 --scale small --data-root DIR --trials 5 --jobs 2 --threads 1
    eigengrad sweep table4 --scale small --data-root DIR --group-size 4 --group-size 64 --dry-run
    eigengrad sweep table4 --scale smoke --gradient mask --gradient "clip(threshold=50)" --set eps=1e-4
    eigengrad sweep table4 --scale paper --data-root DIR --backend ray --address auto
    ```
    """
    from ..experiments import SweptExperiment, find
    from ..experiments.trained import TrainedExperiment

    with explained():
        chosen = find(experiment)
        if not isinstance(chosen, SweptExperiment):
            complain(
                f"{experiment} trains nothing, so there is nothing to sweep; use: eigengrad reproduce {experiment}"
            )
            raise typer.Exit(MISUSE)
        own = bool(gradient or overrides)
        if own and not isinstance(chosen, TrainedExperiment):
            complain(f"{experiment} translates pictures; --gradient and --set are for the experiments that classify")
            raise typer.Exit(MISUSE)
        settings = context(
            results, data_root, trials, None, group_size, jobs, threads, backend, address, gradient, overrides
        )
        plan = chosen.plan(scale, settings)
        for step in plan.steps:
            say(step)
        say(f"estimated time: {duration(plan.seconds)} ({plan.basis})")
        if dry_run:
            return
        found = chosen.train(scale, settings)
        failed = sum(not result.succeeded for result in found)
        say(
            f"{len(found)} runs are done: {len(found) - failed} succeeded, {failed} failed. They are in {settings.runs}"
        )
        if not own:
            say(f"The table: eigengrad reproduce {experiment} --scale {scale} --results {results}")
        for result in found if own else ():
            error = f"{100 * result.best_error:.2f} %" if result.best_error is not None else "failed"
            say(f"  {result.config.key():<60} {error}")
