"""How long a training step takes on this machine: what ``--dry-run`` bases its estimate on."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training import Engine
    from ..training.task import Task

__all__ = ["step_time"]


def step_time(task: Task, engine: Engine, steps: int = 4) -> tuple[float, str]:
    """Seconds of a step of ``task``, and a warning if one of the steps tried failed.

    The shortest of a few: the first ones allocate and compile.
    """
    from ...errors import LinAlgError
    from ..training.health import TrainingFailedError

    engine.prepare(task)
    times, trouble = [], ""
    for batch in itertools.islice(engine.batches(task.epoch_batches(0)), steps):
        start = time.perf_counter()
        try:
            task.step(batch)
        except TrainingFailedError as error:
            failure = error.failure
            trouble = f" Beware: one of {steps} steps failed ({failure.reason}: {failure.where})."
        except LinAlgError as error:
            trouble = f" Beware: one of {steps} steps failed ({error})."
        times.append(time.perf_counter() - start)
    return min(times), trouble
