"""The options that ``sweep`` and ``reproduce`` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "Address",
    "Backend",
    "DataRoot",
    "DryRun",
    "Gradients",
    "GroupSizes",
    "Jobs",
    "Overrides",
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
        help="smoke: embedded digits, seconds. small: a subset of the real data, up to two hours on two cores. "
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
    typer.Option(min=1, help="Steps of each training, for fidelity, pooling_fidelity and survival. Default: by scale."),
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
Gradients = Annotated[
    list[str] | None,
    typer.Option(
        "--gradient",
        help="Whiten with this gradient instead of the table's methods, such as 'clip(threshold=50)'; repeat it for "
        "several.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another value than the protocol's for a field of every run, such as eps=1e-4, average=whitening, "
        "whitening=pca, whitened=all, norm_momentum=0.2, pooling_eps=1e-3 or epochs=12; repeat it for several.",
    ),
]
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
    gradients: list[str] | None = None,
    overrides: list[str] | None = None,
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
        gradients=tuple(gradients or ()),
        overrides=_fields(overrides or ()),
        backend=backend,
        address=address,
        progress=True,
        say=say,
    )


def _fields(settings: Iterable[str]) -> dict[str, Any]:
    """Fields of a configuration from NAME=VALUE, each value of the type that the field has."""
    from dataclasses import fields

    from ..training import Config

    defaults = {field.name: field.default for field in fields(Config)}
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in defaults:
            raise ValueError(f"--set: got {setting!r}; expected NAME=VALUE with one of the names {', '.join(defaults)}")
        if name in ("seed", "data", "data_root", "data_digest", "threads"):
            raise ValueError(f"--set: got {setting!r}; {name} is not for a sweep to set this way")
        found[name] = _typed(name, value, defaults[name])
    return found


def _typed(name: str, value: str, default: Any) -> Any:
    if isinstance(default, str):
        return value
    if value.lower() == "none" and default is None:
        return None
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise ValueError(f"--set: got {name}={value}; expected a number")
