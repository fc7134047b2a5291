"""``eigengrad reproduce``: tables and figures of the paper, ours beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .experiment_options import (
    Address,
    Backend,
    DataRoot,
    DryRun,
    GroupSizes,
    Jobs,
    Results,
    Scale,
    Steps,
    Threads,
    Trials,
    context,
)
from .terminal import FAILED, complain, duration, explained, listed, say, show

if TYPE_CHECKING:
    from ..experiments import Context, Experiment

__all__ = ["reproduce"]


def reproduce(
    experiments: Annotated[
        list[str],
        typer.Argument(
            help="fig1a fig1b fig2 fig3 fig4 table3 fig5 table4 fig6 fig7 table5 table6 table7 fig9 fig10 table8 "
            "table9 table10 fig11 fidelity pooling_fidelity errors errors_cifar settings convergence survival "
            "free_runs running_statistics large_covariances whiteness, or all.",
            metavar="NAME...",
        ),
    ],
    scale: Scale = "small",
    data_root: DataRoot = None,
    trials: Trials = None,
    steps: Steps = None,
    group_size: GroupSizes = None,
    jobs: Jobs = None,
    threads: Threads = None,
    backend: Backend = "local",
    address: Address = None,
    results: Results = Path("results"),
    from_records: Annotated[
        bool,
        typer.Option("--from-records", help="Judge the runs recorded in results/NAME/SCALE/runs.json; train nothing."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Redo tables and figures of the paper.

    Each writes its tables (Markdown and CSV), figures (PNG and SVG) and what they confirm to results/NAME/SCALE, and
    all of them together are one page, results/report/index.html. Training runs that are done are not repeated.

    errors, settings, convergence, survival, free_runs and running_statistics are no tables of the paper: they decide
    its claims by many runs on the embedded digits, and go on with the same command and more --trials. So do fidelity
    and errors_cifar on CIFAR-10, pooling_fidelity and large_covariances on Imagenette, and whiteness on Artworks.

    fig1a, fig2, fig3, fig4, fig7, table10 and fig11 need no data. The others take embedded data at scale smoke,
    --data-root above: fig9, fig10, table8 and table9 a folder with train/photo, train/ukiyoe, … and the same in test/.

    **Examples**

    ```
    eigengrad reproduce fig1a fig3 fig4 fig11
    eigengrad reproduce table4 --scale smoke
    eigengrad reproduce table4 fig6 --scale small --data-root DIR --trials 3
    eigengrad reproduce all --scale small --data-root DIR --dry-run
    ```
    """
    from ..experiments import EXPERIMENTS, find

    with explained():
        names = list(EXPERIMENTS) if "all" in experiments else list(dict.fromkeys(experiments))
        chosen = [find(name) for name in names]
        settings = context(results, data_root, trials, steps, group_size, jobs, threads, backend, address)
        settings = replace(settings, from_records=from_records)
        if not from_records:
            _announce(chosen, scale, settings)
        if dry_run:
            _check_data(chosen, scale, settings)
        else:
            _run(chosen, scale, settings)


def _announce(chosen: list[Experiment], scale: str, settings: Context) -> None:
    total = 0.0
    runs: dict[str, float] = {}
    for experiment in chosen:
        plan = experiment.plan(scale, settings)
        total += plan.seconds - sum(part for key, part in plan.runs.items() if key in runs)  # shared runs once
        runs |= plan.runs
        say(f"{experiment.title}  [{scale}, {duration(plan.seconds)}]")
        for step in plan.steps:
            say(f"  {step}")
        say(f"  estimate: {plan.basis}")
    say(f"estimated time: {duration(total)}\n")


def _command(name: str, scale: str, settings: Context) -> str:
    """The command that repeats an experiment at the size that it had."""
    sizes = "".join(f" --group-size {size}" for size in settings.group_sizes or ())
    trials = "" if settings.trials is None else f" --trials {settings.trials}"
    steps = "" if settings.steps is None else f" --steps {settings.steps}"
    data = "" if settings.data_root is None else " --data-root DIR"
    return f"eigengrad reproduce {name} --scale {scale}{trials}{steps}{sizes}{data}"


def _check_data(chosen: list[Experiment], scale: str, settings: Context) -> None:
    """Say which data the experiments would miss; each data set is read once."""
    from ..data import DataError
    from ..experiments import SweptExperiment

    seen: dict[tuple[str, str | None], str | None] = {}
    missing: dict[str, list[str]] = {}
    for experiment in chosen:
        if not isinstance(experiment, SweptExperiment):
            continue
        config = experiment.configs(scale, settings)[0]
        data = (getattr(config, "data", "artworks"), config.data_root)
        if data not in seen:
            try:
                experiment.check_data(config)
                seen[data] = None
            except (DataError, OSError, ValueError) as error:
                seen[data] = str(error)
        problem = seen[data]
        if problem is not None:
            missing.setdefault(problem, []).append(experiment.name)
    for problem, names in missing.items():
        complain(f"data for {', '.join(names)} is missing. {problem}")
    if not missing:
        say("all data is there")


def _run(chosen: list[Experiment], scale: str, settings: Context) -> None:
    """Run experiments one after the other. One that fails does not stop the others; it is named at the end."""
    from ..data import DataError
    from ..experiments import DECIDING, ORDER
    from ..report import build_page
    from ..sweeps import SweepError

    problems: dict[str, str] = {}
    for experiment in chosen:
        say(f"==> {experiment.title}")
        try:
            outcome = replace(experiment.run(scale, settings), command=_command(experiment.name, scale, settings))
        except (DataError, SweepError) as error:
            problems[experiment.name] = str(error)
            if len(chosen) == 1:
                raise
            continue
        folder = settings.directory(experiment.name, scale)
        outcome.write(folder)
        for table in outcome.tables[:1]:
            show(table)
        for finding in outcome.findings:
            say(f"  {finding.label}. {finding.claim}. {finding.evidence}")
        say(f"  written to {folder}")
        page = build_page(settings.results, ORDER, DECIDING)
    if len(problems) < len(chosen):
        say(f"\nThe page: {listed(page)}")
    for name, problem in problems.items():
        complain(f"{name}: {problem}")
    if problems:
        raise typer.Exit(FAILED)
