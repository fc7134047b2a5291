"""``eigengrad warmup``: compile the CPU kernels ahead of their first use."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ... import kernels
from .terminal import FAILED, complain, console, duration, explained, say

__all__ = ["warmup"]


def warmup(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            help="eigensolvers, vjp (backward passes), feature_maps (layers). Default: all.", metavar="[NAME]..."
        ),
    ] = None,
    float64: Annotated[bool, typer.Option("--float64", help="Compile for float64 as well.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be compiled, and do nothing.")] = False,
) -> None:
    """Compile the CPU kernels now, so that no later call waits for the compiler.

    They are kept in the folder that `eigengrad info` shows, for every later process of this user on this kind of CPU.
    Kernels that are there already are only loaded; the others take seconds each.

    **Examples**

    ```
    eigengrad warmup
    eigengrad warmup eigensolvers vjp --float64
    ```
    """
    dtypes = [torch.float32, torch.float64] if float64 else [torch.float32]
    with explained():
        if dry_run:
            what, types = ", ".join(subjects or ["all kernels"]), " and ".join(str(dtype) for dtype in dtypes)
            say(f"would compile {what} for {types}")
            return
        reason = kernels.why_not()
        if reason is not None:
            complain(f"kernels cannot be compiled: {reason}")
            raise typer.Exit(FAILED)
        try:
            seconds = _compile_with_bar(subjects, dtypes)
        except kernels.KernelsUnavailableError as error:
            complain(str(error))
            raise typer.Exit(FAILED) from None
        say(f"kernels ready after {duration(seconds)}; `eigengrad info` shows where they are kept")


def _compile_with_bar(subjects: list[str] | None, dtypes: list[torch.dtype]) -> float:
    """Compile, with a bar that names the kernel at work; the seconds that it took."""
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        return kernels.warmup(*dtypes, subjects=subjects, progress=progress)
