"""``eigengrad bench``: the benchmarks of a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from .terminal import MISUSE, complain, explained, say

__all__ = ["bench"]

#: The subjects of benchmarks/run.py.
SUBJECTS = (
    *("whitening", "eigh", "dispatch", "derivatives", "block", "pooling", "style", "training"),
    *("contention", "first_use", "ablation", "checks"),
)


def bench(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"{', '.join(SUBJECTS)}. Default: all.",
            metavar="[NAME]...",
        ),
    ] = None,
    threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Threads to measure with; repeat it for several.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and do nothing.")] = False,
) -> None:
    """Run the benchmarks against torch.linalg and write benchmarks/results.

    The contestants take turns, so that a disturbance of the machine hits all of them alike. They are not part of the
    installed package: run this in a checkout of the repository. A subject takes a few minutes.

    **Examples**

    ```
    eigengrad bench whitening
    eigengrad bench eigh pooling --threads 1 --threads 2
    ```
    """
    with explained():
        chosen = list(dict.fromkeys(subjects or SUBJECTS))
        for name in chosen:
            if name not in SUBJECTS:
                complain(f"no benchmark is called {name!r}; there are: {', '.join(SUBJECTS)}")
                raise typer.Exit(MISUSE)
        script = _script()
        command = [sys.executable, str(script), *chosen]
        if threads:
            command += ["--threads", *map(str, threads)]
        say(" ".join(command))
        if dry_run:
            say(f"estimated time: {4 * len(chosen)} min. Results go to {script.parent / 'results'}")
            return
        code = subprocess.run(command, cwd=script.parent.parent, check=False).returncode
    if code:
        raise typer.Exit(code)


def _script() -> Path:
    """benchmarks/run.py of the checkout that the package belongs to, or of the working directory."""
    package = Path(__file__).resolve().parents[4]
    for root in (package, Path.cwd()):
        script = root / "benchmarks" / "run.py"
        if script.is_file():
            return script
    raise FileNotFoundError(
        f"benchmarks/run.py is neither in {package} nor in {Path.cwd()}: benchmarks are not part of the installed "
        "package. Clone the repository of eigengrad, install it there with pip install --editable '.[lab,fast]', and "
        "run this in the clone"
    )
