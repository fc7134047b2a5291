"""The options that ``sweep`` and ``reproduce`` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "Address",
    "Backend",
    "DataRoot",
    "DryRun",
    "GroupSizes",
    "Jobs",
    "Results",
    "Scale",
    "Steps",
    "Threads",
    "Trials",
    "context",
]

Scale = Annotated[
    str,
    typer.Option(
        help="smoke: embedded digits, seconds. small: a subset of the real data, up to an hour on two cores. "
        "paper: its full protocol, for GPUs."
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder with the files of the data, or with a folder named after it, such as cifar10."
    ),
]
Trials = Annotated[int | None, typer.Option(min=1, help="Seeds for each setting. Default: what the scale says.")]
Steps = Annotated[
    int | None,
    typer.Option(min=1, help="Steps of each training, for fidelity and survival. Default: what the scale says."),
]
GroupSizes = Annotated[
    list[int] | None,
    typer.Option("--group-size", min=1, help="Dimension d; repeat it for several. Default: what the scale says."),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time. Default: one a core, or one a GPU.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of each run.")]
Backend = Annotated[str, typer.Option(help="local: processes of this machine. ray: a Ray cluster (extra cluster).")]
Address = Annotated[str | None, typer.Option(help="Of the Ray cluster, such as auto.")]
Results = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and the estimated time, and do nothing.")]


def context(
    results: Path,
    data_root: Path | None,
    trials: int | None,
    steps: int | None,
    group_sizes: list[int] | None,
    jobs: int | None,
    threads: int | None,
    backend: str,
    address: str | None,
) -> Any:
    """The context of an experiment that the options describe."""
    from ...errors import unknown_choice
    from ..experiments import Context
    from ..sweeps import BACKENDS
    from .terminal import say

    if results.exists() and not results.is_dir():
        raise ValueError(f"--results: {results} is a file; expected a folder")
    if backend not in BACKENDS:
        raise unknown_choice("backend", backend, BACKENDS)
    return Context(
        results=results,
        data_root=data_root,
        trials=trials,
        steps=steps,
        group_sizes=tuple(group_sizes) if group_sizes else None,
        jobs=jobs,
        threads=threads,
        backend=backend,
        address=address,
        progress=True,
        say=say,
    )
