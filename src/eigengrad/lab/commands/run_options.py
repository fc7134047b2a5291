"""What the commands that train one network, ``train`` and ``translate train``, have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import FAILED, complain

if TYPE_CHECKING:
    from ..training import Result

__all__ = ["DATA", "NETWORK", "RUN", "SCHEDULE", "DryRun", "Fresh", "Out", "Precision", "Threads", "folder", "option"]
__all__ += ["require_success"]

DATA, NETWORK, SCHEDULE, RUN = "Data", "Network", "Training", "The run"


def option(text: str, panel: str, *names: str, **more: Any) -> Any:
    """An option on a panel of the help, whose default is the paper's and stands in the text."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


Precision = Annotated[str | None, option("no (float32), float64, bf16, fp16.", SCHEDULE)]
Threads = Annotated[int | None, option("CPU threads.", RUN)]
Out = Annotated[
    Path | None, option("Folder of the run. Default: results/runs/ and the name of the run.", RUN, metavar="DIR")
]
Fresh = Annotated[bool, option("Start over instead of continuing what is in the folder.", RUN, "--fresh")]
DryRun = Annotated[bool, option("Say what would be done, and measure how long it would take.", RUN, "--dry-run")]


def folder(out: Path | None, key: str) -> Path:
    """The folder of a run with this name, unless ``--out`` gives one."""
    return out or Path("results") / "runs" / key


def require_success(result: Result, directory: Path) -> None:
    """End the command with an error if the run failed; the failure was reported when it happened."""
    from ..training.result import RESULT_FILE

    failure = result.failure
    if failure is not None:
        complain(f"the run failed at step {failure.step}: {failure.reason}. More in {directory / RESULT_FILE}")
        raise typer.Exit(FAILED)
