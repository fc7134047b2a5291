"""The commands of :mod:`eigengrad.lab.commands`, put together. To add one, write its file, import it, add its line."""

from __future__ import annotations

from typing import Annotated

import typer

from .commands.bench import bench
from .commands.color import color
from .commands.compare import compare
from .commands.doctor import doctor
from .commands.fetch import fetch
from .commands.info import info
from .commands.reproduce import reproduce
from .commands.studio import studio
from .commands.stylize import stylize
from .commands.sweep import sweep
from .commands.train import train
from .commands.translate import translate
from .commands.warmup import warmup

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_show_locals=False, rich_markup_mode="markdown", add_completion=False
)
app.command()(compare)
app.command()(train)
app.command()(sweep)
app.command()(reproduce)
app.command()(fetch)
app.command()(bench)
app.command()(info)
app.command()(warmup)
app.command()(doctor)
app.command()(studio)
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
