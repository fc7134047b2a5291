"""A process that executes runs for :mod:`eigengrad.lab.sweeps.local`, one after the other.

It reads a run a line from standard input and answers on standard output, both in JSON. What a run prints goes to
``log.txt`` in its folder. When the input ends because the parent is gone, it saves the run and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import make_folder
from ..training.lock import BusyError
from ..training.reporter import Silent, Snapshot
from .kinds import execute

__all__ = ["main"]


class _ForwardingReporter(Silent):
    """Forwards the progress of a run to the parent process."""

    def __init__(self, answer: Callable[..., None]) -> None:
        self._answer = answer

    def step(self, snapshot: Snapshot) -> None:
        """Send the snapshot to the parent process."""
        self._answer(kind="progress", snapshot=asdict(snapshot))

    def message(self, text: str) -> None:
        """Write the text to the log of the run, where standard output goes."""
        with contextlib.suppress(OSError):  # the disk that the log is on may be full
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def main() -> None:
    """Execute runs until the input ends."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed belongs to the log, not to the channel

    def answer(**message: Any) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    orders: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    answer(kind="ready")
    while (order := orders.get()) is not None:
        answer(**_execute(json.loads(order), answer))


def _listen(orders: queue.Queue[str | None]) -> None:
    for line in sys.stdin:
        orders.put(line)
    orders.put(None)
    os.kill(os.getpid(), signal.SIGTERM)  # a run at work saves itself; without one this ends the process


def _execute(order: dict[str, Any], answer: Callable[..., None]) -> dict[str, str]:
    directory = Path(order["directory"])
    try:
        make_folder(directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        log = os.open(directory / "log.txt", flags, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        execute(order["run"], directory, _ForwardingReporter(answer))
    except BusyError as error:
        return {"kind": "busy", "owner": error.owner}
    except Exception as error:  # the other runs are still executed
        with contextlib.suppress(OSError):  # what stopped the run may be a full disk, which the log is on as well
            traceback.print_exc()
        return {"kind": "crashed", "reason": f"{type(error).__name__}: {error}"}
    return {"kind": "ended"}


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the run is saved
        sys.exit(130)
