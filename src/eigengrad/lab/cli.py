"""The command ``eigengrad``: it only puts the commands of :mod:`eigengrad.lab.commands` together.

To add one, write its file, import it and add its line.
"""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from .commands.bench import bench
from .commands.color import color
from .commands.compare import compare
from .commands.reproduce import reproduce
from .commands.stylize import stylize
from .commands.sweep import sweep
from .commands.terminal import INTERRUPTED
from .commands.train import train
from .commands.translate import translate

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_show_locals=False, rich_markup_mode="markdown", add_completion=False
)
app.command()(compare)
app.command()(train)
app.command()(sweep)
app.command()(reproduce)
app.command()(bench)
app.command()(color)
app.add_typer(stylize)
app.add_typer(translate, name="translate")


def _version(wanted: bool) -> None:
    if wanted:
        import eigengrad

        typer.echo(f"eigengrad {eigengrad.__version__}")
        raise typer.Exit()


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Eigendecomposition that you can train through: train with it, compare the methods, redo the paper.

    Start with `eigengrad compare`. Every command has examples: `eigengrad COMMAND --help`.

    Exit codes: 0 done, 1 a run failed, 2 misuse, 130 interrupted.
    """


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 a run failed, 2 misuse, 130 interrupted."""
    # How much of a gradient the paper's rules remove stands in the record of a run.
    warnings.filterwarnings("ignore", ".*eigengrad.GradientWarning", UserWarning)
    try:
        app()
    except KeyboardInterrupt:  # between two commands' own handling, such as during imports
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
