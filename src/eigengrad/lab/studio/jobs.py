"""Tasks of all browsers, done one after the other, each of which can be watched and cancelled."""

from __future__ import annotations

import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .sessions import LimitError
from .worker import TaskFailedError, Worker

__all__ = ["Job", "JobQueue"]

#: Jobs of one session that wait or are at work.
MOST_WAITING = 8
#: Seconds for which a job that has ended is remembered.
_REMEMBERED = 3600.0


@dataclass
class Job:
    """A task, and how far it is.

    Attributes:
        key: by which requests name it.
        session: whose it is.
        task: for the worker.
        finish: makes what the page is told of the worker's result.
        state: "waiting", "running", "done", "failed" or "cancelled".
        share: how much is done, from 0 to 1.
        text: what is being done, or why it failed.
        result: what ``finish`` made.
    """

    session: str
    task: dict[str, Any]
    finish: Callable[[dict[str, Any]], dict[str, Any]]
    key: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: str = "waiting"
    share: float = 0.0
    text: str = ""
    result: dict[str, Any] | None = None
    began: float | None = None
    ended: float | None = None

    @property
    def over(self) -> bool:
        """Whether nothing will happen any more."""
        return self.state in ("done", "failed", "cancelled")

    def report(self, share: float, text: str) -> None:
        """Note how much is done, and what is being done."""
        if not self.over:
            self.share, self.text = share, text

    def discard(self) -> None:
        """Remove what was made so far."""
        shutil.rmtree(self.task["folder"], ignore_errors=True)

    @property
    def seconds(self) -> float:
        """Seconds that the job has been worked on so far."""
        return 0.0 if self.began is None else (self.ended or time.monotonic()) - self.began


class JobQueue:
    """Jobs for one worker, in the order in which they came.

    Args:
        worker: runs them.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._jobs: dict[str, Job] = {}
        self._waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._current: Job | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, job: Job) -> None:
        """Put a job at the end of the queue.

        Raises:
            LimitError: if its session has many there already.
        """
        with self._lock:
            now = time.monotonic()
            for old in [j for j in self._jobs.values() if j.ended is not None and now - j.ended > _REMEMBERED]:
                del self._jobs[old.key]
            if sum(j.session == job.session and not j.over for j in self._jobs.values()) >= MOST_WAITING:
                raise LimitError(f"{MOST_WAITING} tasks of yours are waiting already; wait for one, or cancel it")
            self._jobs[job.key] = job
        self._waiting.put(job)

    def find(self, key: str, session: str) -> Job | None:
        """The job of a session with a key."""
        with self._lock:
            job = self._jobs.get(key)
        return job if job is not None and job.session == session else None

    def ahead(self, job: Job) -> int:
        """How many jobs will be done before this one, which waits."""
        with self._lock:
            keys = [j.key for j in self._jobs.values() if not j.over]
        return keys.index(job.key) if job.key in keys else 0

    def cancel(self, job: Job) -> None:
        """End a job, now if it is at work."""
        with self._lock:
            if job.over:
                return
            job.state, job.text, job.ended = "cancelled", "cancelled", time.monotonic()
            if self._current is job:  # under the lock, so that the process at work is not yet that of the next job
                self._worker.interrupt()
        job.discard()

    def close(self) -> None:
        """End the worker, and with it the job at work."""
        self._waiting.put(None)
        self._worker.stop()

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            with self._lock:
                if job.over:
                    continue
                job.state, job.began, self._current = "running", time.monotonic(), job
            try:
                job.result = job.finish(self._worker.run(job.task, job.report))
            except TaskFailedError as error:
                self._end(job, "failed", str(error))
            except Exception as error:  # of the server itself: the queue must go on
                self._end(job, "failed", f"The studio could not do this ({type(error).__name__}: {error})")
            else:
                self._end(job, "done", "")

    def _end(self, job: Job, state: str, text: str) -> None:
        with self._lock:
            self._current = None
            if not job.over:  # a cancelled one stays so
                job.state, job.text, job.share, job.ended = state, text, 1.0, time.monotonic()
        if job.state != "done":
            job.discard()
