"""What the commands share: how they print, and how an error becomes a sentence and an exit code.

0 is success, 1 a run that failed or could not be finished, 2 misuse, 130 an interruption.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from ..files import DamagedFileWarning

if TYPE_CHECKING:
    from ..report import Table

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "MISUSE",
    "complain",
    "conclude",
    "console",
    "duration",
    "explained",
    "listed",
    "progress_bar",
    "say",
    "show",
]

FAILED, MISUSE, INTERRUPTED = 1, 2, 130
_SENTENCE = 24  # characters: what is longer is no name or number
_GAP = 2  # characters between two columns

console = Console()
_errors = Console(stderr=True)


def say(text: str) -> None:
    """Print a line on standard output. Paths are never broken, and brackets are no markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """Print an error as a line on standard error."""
    _errors.print(f"[bold red]error:[/] {_escaped(text)}", highlight=False, soft_wrap=True)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[float], None]]:
    """Context with a bar on standard error, if that is a terminal; gives the function to tell the share done to."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=_errors, transient=True, disable=not _errors.is_terminal) as progress:
        bar = progress.add_task(name, total=1.0)
        yield lambda share: progress.update(bar, completed=share)


@contextmanager
def explained(options: Collection[str] = ()) -> Iterator[None]:
    """Turn what a user can put right into a sentence and an exit code; all else is a bug and keeps its traceback.

    Settings that ``options`` have given are called as those are.
    """
    try:
        with _damage_named():
            yield
    except KeyboardInterrupt as interruption:
        _errors.print(str(interruption) or "interrupted", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        complain(_by_option(_sentence(error), options))
        raise typer.Exit(MISUSE) from None
    except (OSError, ModuleNotFoundError) as error:
        complain(_sentence(error))
        raise typer.Exit(FAILED) from None
    except RuntimeError as error:
        from ..sweeps import LostWorkerError, SweepError  # a quarter of a second, which most commands do without

        if not isinstance(error, LostWorkerError | SweepError):
            raise
        complain(str(error))
        raise typer.Exit(FAILED) from None


@contextmanager
def _damage_named() -> Iterator[None]:
    """Context in which a warning about a damaged file is a line that names it, without a place in the source."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, DamagedFileWarning):
                complain(str(message))
            else:
                before(message, category, *rest, **more)

        warnings.showwarning = show
        warnings.simplefilter("always", DamagedFileWarning)
        yield


def conclude(failed: int, pictures: int, output: Path, *, broken: bool = False) -> None:
    """End a command on so many pictures, some of which failed, or for which something else could not be read."""
    if failed and pictures > 1:
        complain(f"{failed} of {pictures} pictures could not be done; the others are in {output}")
    if failed or broken:
        raise typer.Exit(FAILED)


def _sentence(error: Exception) -> str:
    """The message of an error, without the system's number for it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, ModuleNotFoundError):
        return f"{error}: it comes with the extra `lab`" if "pip install" not in str(error) else str(error)
    return str(error)


def _by_option(text: str, options: Collection[str]) -> str:
    """Name settings by their options: ``Config: batch_size must …`` becomes ``--batch-size must …``."""
    setting = re.fullmatch(r"\w*Config: ((\w+) .*)", text, re.DOTALL)
    if setting is None or setting[2] not in options:
        return text
    return re.sub(r"\w+", lambda w: f"--{w[0].replace('_', '-')}" if w[0] in options else w[0], setting[1])


def duration(seconds: float) -> str:
    """Format a duration as precisely as an estimate deserves: ``40 s``, ``12 min``, ``3 h``, ``250 days``."""
    for limit, unit, name in ((100, 1, "s"), (100 * 60, 60, "min"), (100 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(1, round(seconds / unit))} {name}"
    return f"{seconds / 86400:,.0f} days"


def show(table: Table) -> None:
    """Print a table of the report on the terminal, without empty columns, and no wider than the terminal.

    Where there is no room for a column of sentences, it follows as lines of its own. Where there is none for all the
    others, they follow in blocks, each with the first column; what does not fit by itself is broken.
    """
    from ..report.tables import cell_text

    chosen = [i for i in range(len(table.columns)) if any(row[i] is not None for row in table.rows)]
    texts = [{i: cell_text(row[i]) for i in chosen} for row in table.rows]
    widths = {i: max([len(table.columns[i]), *(len(text[i]) for text in texts)]) for i in chosen}
    wordy = [i for i in chosen if any(len(text[i]) > _SENTENCE for text in texts)]
    below = wordy if sum(widths.values()) + _GAP * len(chosen) > console.width else []
    blocks = _blocks([i for i in chosen if i not in below], widths, console.width)
    for number, block in enumerate(blocks):
        rich = RichTable(
            title=table.title if number == 0 else None,
            caption=_caption(table) if number == len(blocks) - 1 else None,
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
        )
        for i in block:
            numbers = all(isinstance(row[i], int | float | None) for row in table.rows)
            rich.add_column(_escaped(table.columns[i]), justify="right" if numbers else "left", overflow="fold")
        for text in texts:
            rich.add_row(*(_escaped(text[i]) for i in block))
        console.print(rich)
    for i in below:
        for row, text in zip(table.rows, texts, strict=True):
            if row[i] is not None:
                say(f"{text[chosen[0]]}, {table.columns[i]}: {text[i]}")


def _blocks(columns: list[int], widths: dict[int, int], room: int) -> list[list[int]]:
    """The columns in as few blocks as there is room for, each beginning with the first column."""
    if not columns:
        return []
    first, blocks = columns[0], [[columns[0]]]
    for column in columns[1:]:
        if len(blocks[-1]) > 1 and sum(widths[i] + _GAP for i in [*blocks[-1], column]) - _GAP > room:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


def _caption(table: Table) -> str:
    return _escaped("; ".join(f"{name}: {value}" for name, value in table.conditions.items()))


def listed(page: Path) -> str:
    """The address of a page, as terminals make it clickable."""
    return page.resolve().as_uri()
