"""Sweeps: many runs, none of them done twice.

To add a way to execute runs, write a :class:`~eigengrad.lab.sweeps.run.Backend` and name it in :data:`BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...arguments import require_integer
from ...errors import unknown_choice
from ..files import make_folder
from ..training import Result, Settings
from .grid import Grid
from .local import run_locally
from .progress_table import ProgressTable
from .ray import run_on_ray
from .run import Backend, LostWorkerError, Run, SweepError

__all__ = ["BACKENDS", "Grid", "LostWorkerError", "SweepError", "sweep"]

#: What executes runs, by name.
BACKENDS: dict[str, Backend] = {"local": run_locally, "ray": run_on_ray}


def sweep(
    configs: Sequence[Settings],
    directory: Path | str,
    *,
    backend: str = "local",
    jobs: int | None = None,
    threads: int | None = None,
    address: str | None = None,
    progress: bool = True,
) -> list[Result]:
    """Execute runs, each in ``directory/<key>``, and return their results in the order of the configurations.

    What has ended is not repeated, what was interrupted goes on where it was, and configurations that differ only in
    what does not matter to them are one run. A run that another process executes, such as another sweep in the
    same folder, is left to it and its result taken; if that process dies, the run goes on here. A run that fails
    numerically has a result that says so. A run whose process dies has none: the others go on, and it is tried again
    the next time.

    Args:
        configs: what to run.
        directory: of the sweep.
        backend: "local" (processes on this machine) or "ray" (a cluster).
        jobs: how many runs at once. By default as many as there are cores for, or GPUs; with Ray, as the cluster holds.
        threads: of each run. By default its share of the cores, or one core if ``jobs`` is not given either.
        address: of the Ray cluster, such as "auto"; ``None`` starts one on this machine.
        progress: show a table of the runs at work.

    Raises:
        SweepError: some runs have no result; it says which and why, and has the results of the others.
        KeyboardInterrupt: Ctrl-C. The runs at work were saved, and the text says how to go on.
    """
    if backend not in BACKENDS:
        raise unknown_choice("backend", backend, BACKENDS)
    for argument, value in (("jobs", jobs), ("threads", threads)):
        if value is not None:
            require_integer("sweep", argument, value, minimum=1)
    directory = Path(directory)
    make_folder(directory)
    runs = {config.key(): Run(config, directory / config.key()) for config in configs}
    ended = {key: result for key, run in runs.items() if (result := run.result()) is not None}
    waiting = [run for key, run in runs.items() if key not in ended]
    with ProgressTable(len(runs), len(ended), visible=progress) as table:
        if waiting:
            try:
                BACKENDS[backend](waiting, table, jobs=jobs, threads=threads, address=address)
            except KeyboardInterrupt:
                text = f"interrupted with {table.done} of {len(runs)} runs done; the others are saved in {directory}. "
                raise KeyboardInterrupt(text + "Start the sweep again to go on") from None
    ended |= {run.key: result for run in waiting if (result := run.result()) is not None}
    results = [replace(ended[config.key()], config=config) for config in configs if config.key() in ended]
    if table.crashes:
        raise SweepError(table.crashes, results, directory)
    return results
