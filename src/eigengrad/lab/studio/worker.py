"""A process that runs the tools: it can be stopped at any time, and what it crashes of does not end the server.

The server writes a line of JSON for each task and reads lines of JSON: progress, then the result or an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["TaskFailedError", "Worker"]


class TaskFailedError(Exception):
    """A task that could not be done; the message is for the one who asked for it."""


class Worker:
    """The server's side of a worker process, which is started when it is first needed. For one thread at a time.

    Args:
        threads: CPU threads; None leaves it to torch.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, task: dict[str, Any], progress: Callable[[float, str], None]) -> dict[str, Any]:
        """Run a task, and return its result.

        Raises:
            TaskFailedError: if it cannot be done, or the process ended.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                if "result" in message:
                    result: dict[str, Any] = message["result"]
                    return result
                if "error" in message:
                    raise TaskFailedError(message["error"])
                progress(message["share"], message["text"])
        except OSError:
            pass  # it ended before it had read the task
        code = process.wait()
        raise TaskFailedError(
            f"The process that was at work ended (exit code {code}); most likely there was not enough memory. "
            "Try a smaller picture"
        )

    def _started(self) -> subprocess.Popen[str]:
        with self._lock:
            if self._stopped:
                raise TaskFailedError("The studio is closing")
            if self._process is None or self._process.poll() is not None:
                command = [sys.executable, "-m", "eigengrad.lab.studio.worker", str(self._threads or 0)]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
                )
            return self._process

    def interrupt(self) -> None:
        """End the task at work, with the process; the next task starts another."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """End the process, and start no other."""
        self._stopped = True
        self.interrupt()


def _serve(threads: int) -> None:
    """Run tasks from standard input, until it is closed."""
    answers, sys.stdout = sys.stdout, sys.stderr  # a library that prints must not answer

    def answer(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    tasks: list[str] = []
    arrived = threading.Condition()

    def listen() -> None:
        for line in sys.stdin:
            with arrived:
                tasks.append(line)
                arrived.notify()
        os._exit(0)  # the server has ended, and with it whoever waits for the result

    threading.Thread(target=listen, daemon=True).start()
    _prepare(threads)
    while True:
        with arrived:
            arrived.wait_for(lambda: tasks)
            task = json.loads(tasks.pop(0))
        try:
            answer(result=_perform(task, lambda share, text: answer(share=share, text=text)))
        except (ValueError, OSError, MemoryError) as error:
            answer(error=_explained(error, task))
        except RuntimeError as error:  # what torch raises, for want of memory among others
            answer(error=_explained(error, task).splitlines()[0])


def _prepare(threads: int) -> None:
    import torch

    from ...errors import GradientWarning  # noqa: F401 (so that the import is not part of the first task)

    if threads:
        torch.set_num_threads(threads)


def _perform(task: dict[str, Any], progress: Callable[[float, str], None]) -> dict[str, Any]:
    from .tools import TOOLS, inspect

    folder = Path(task["folder"])
    if task["tool"] == "inspect":
        return inspect(Path(task["file"]), folder)
    files = {slot: [Path(path) for path in paths] for slot, paths in task["files"].items()}
    return TOOLS[task["tool"]].run(files, dict(task["options"]), folder, progress)


def _explained(error: Exception, task: dict[str, Any]) -> str:
    """The message of an error, with the names that files have on the page instead of those on the disk."""
    text = str(error) or ("there is not enough memory" if isinstance(error, MemoryError) else type(error).__name__)
    for path, name in task.get("names", {}).items():
        text = text.replace(path, name)
    return text


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
