"""Trainings that are followed step by step, to see what their whitening layers are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import nn

from ..files import make_folder, read_regular_file, write_atomically
from ..training import Config
from ..training.classification import Classification
from ..training.engine import Engine
from ..training.loop import run_context
from .experiment import Context
from .parallel import starmap

__all__ = ["CONSTANT_RATE", "follow", "kept_or_made", "made_in_parallel"]

#: A number of epochs that no training reaches: the learning rate stays what it is.
CONSTANT_RATE = 1_000_000

#: Bytes of the file of one trajectory; the largest of ours has 200 kB.
_LARGEST = 64 << 20


def follow(config: Config, steps: int, watch: Callable[[nn.Module], AbstractContextManager[Any]]) -> None:
    """Train for a number of steps inside the context that ``watch`` makes for the network.

    Raises:
        TrainingFailedError: the training failed; see :mod:`eigengrad.lab.training.health`.
    """
    with run_context(config):
        engine = Engine(config.precision)
        task = Classification(config, engine)
        engine.prepare(task)
        with watch(task.modules["model"]):
            for number, batch in enumerate(_batches(task, engine), 1):
                engine.health.step = number
                task.step(batch)
                if number == steps:
                    return


def _batches(task: Classification, engine: Engine) -> Iterator[Any]:
    epoch = 0
    while True:
        yield from engine.batches(task.epoch_batches(epoch))
        epoch += 1


def made_in_parallel(
    make: Callable[..., Any], tasks: Sequence[tuple[Path, tuple[Any, ...]]], context: Context
) -> list[Any]:
    """Return what the file of every task holds; ``make(*arguments)`` makes what is missing, one process a core.

    Args:
        make: a function that other processes can import.
        tasks: the file and the arguments of each.
        context: its jobs, and whom it tells what is done.
    """
    waiting = [(make, path, arguments) for path, arguments in tasks if not path.exists()]
    for number, name in enumerate(starmap(_make, waiting, min(context.processes, len(waiting))), 1):
        context.say(f"{number} of {len(waiting)} trainings done: {name}")
    return [kept_or_made(path, lambda a=arguments: make(*a)) for path, arguments in tasks]  # type: ignore[misc]


def _make(make: Callable[..., Any], path: Path, arguments: tuple[Any, ...]) -> str:
    kept_or_made(path, lambda: make(*arguments))
    return path.stem


def kept_or_made(path: Path, make: Callable[[], Any]) -> Any:
    """What a file holds as JSON; if there is none, what ``make`` returns, which is then kept there.

    The file is written in one piece when the work is done, so that what was interrupted is done again and what was
    finished is not.

    Raises:
        ValueError: the file is damaged; the message names it.
    """
    if path.exists():
        try:
            return json.loads(read_regular_file(path, _LARGEST))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({str(error)[:200]}); delete it, and it is computed again") from error
    made = make()
    make_folder(path.parent)
    write_atomically(path, (json.dumps(made, allow_nan=False) + "\n").encode())
    return made
