"""Runs in processes on this machine, each with its share of the cores."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..training.environment import available_cores
from ..training.reporter import Pace, Snapshot
from .busy_runs import BusyRuns
from .kinds import serialise
from .run import LostWorkerError, Run, Watcher

__all__ = ["budget", "run_locally"]

#: Seconds between two checks of the runs that other processes execute.
_POLL_SECONDS = 0.5

#: How long a worker may take to finish its step and save it, in seconds.
_SAVE_TIMEOUT = 120


def budget(jobs: int | None, threads: int | None, cores: int, devices: int = 0) -> tuple[int, int]:
    """How many processes with how many threads each: by default no more than there are cores.

    With GPUs there is one process for each of them unless told otherwise.

    >>> budget(None, None, cores=8), budget(2, None, cores=8), budget(None, 4, cores=8)
    ((8, 1), (2, 4), (2, 4))
    >>> budget(None, None, cores=8, devices=2)
    (2, 4)
    """
    if jobs is None:
        jobs = devices or max(1, cores // (threads or 1))
    return jobs, threads or max(1, cores // jobs)


def run_locally(
    runs: Sequence[Run], watcher: Watcher, *, jobs: int | None, threads: int | None, address: str | None = None
) -> None:
    """Execute runs in worker processes; see :func:`eigengrad.lab.sweeps.sweep`."""
    if address is not None:
        raise ValueError(f"address: got {address!r}, which is for backend='ray'; the local backend has none")
    devices = torch.cuda.device_count()
    jobs, threads = budget(jobs, threads, available_cores(), devices)
    _Pool(runs, watcher, jobs, threads, devices).work()


class _Worker:
    """A worker process, and the run that it executes."""

    def __init__(self, device: int | None, threads: int, log: Path, answers: queue.Queue[Any]) -> None:
        self.device, self.threads = device, threads
        self.run: Run | None = None
        self.ready = False
        environment = {**os.environ}
        environment |= {f"{library}_NUM_THREADS": str(threads) for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(device)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "eigengrad.lab.sweeps.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        threading.Thread(target=self._listen, args=(answers,), daemon=True).start()

    def _listen(self, answers: queue.Queue[Any]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self, json.loads(line)))
        answers.put((self, None))

    def send(self, run: Run) -> None:
        """Send a run to the worker."""
        assert self.process.stdin is not None
        order = serialise(run.config.replace(threads=self.threads))
        self.run = run
        with contextlib.suppress(BrokenPipeError):  # its end is about to be noticed
            self.process.stdin.write(json.dumps({"directory": str(run.directory.resolve()), "run": order}) + "\n")
            self.process.stdin.flush()

    def close_input(self) -> None:
        """Close the worker's input, which ends it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class _Pool:
    """The workers, the queue of runs, and the messages of the workers."""

    def __init__(self, runs: Sequence[Run], watcher: Watcher, jobs: int, threads: int, devices: int) -> None:
        self.waiting, self.watcher, self.busy_elsewhere = deque(runs), watcher, BusyRuns(watcher)
        self.pace = Pace(_POLL_SECONDS)
        self.jobs, self.threads, self.devices = jobs, threads, devices
        self.log = runs[0].directory.parent / "workers.log"
        self.answers: queue.Queue[Any] = queue.Queue()
        self.workers: list[_Worker] = []

    def work(self) -> None:
        """Execute all runs: return when each has ended or crashed."""
        try:
            while self.waiting or self.busy_elsewhere or any(worker.run for worker in self.workers):
                self._start_workers()
                if self.busy_elsewhere and self.pace.due():
                    self.waiting += self.busy_elsewhere.collect()
                    continue
                try:
                    worker, message = self.answers.get(timeout=_POLL_SECONDS if self.busy_elsewhere else None)
                except queue.Empty:
                    continue
                if message is None:
                    self._remove_worker(worker)
                elif message["kind"] == "progress":
                    self.watcher.progress(worker.run, Snapshot(**message["snapshot"]))
                else:
                    self._next(worker, message)
        finally:
            self._close()

    def _start_workers(self) -> None:
        idle_soon = sum(worker.run is None for worker in self.workers)
        while len(self.workers) < self.jobs and idle_soon < len(self.waiting):
            used = {worker.device for worker in self.workers}
            devices = [device for device in range(self.devices) if device not in used] or [len(used)]
            device = devices[0] % self.devices if self.devices else None
            self.workers.append(_Worker(device, self.threads, self.log, self.answers))
            idle_soon += 1

    def _next(self, worker: _Worker, message: dict[str, Any]) -> None:
        """Handle the message of a worker that is ready or has finished a run, and send it the next run."""
        run, worker.run, worker.ready = worker.run, None, True
        if run is not None and message["kind"] == "ended":
            result = run.result()
            assert result is not None
            self.watcher.ended(run, result)
        elif run is not None and message["kind"] == "busy":
            self.busy_elsewhere.add(run, message["owner"])
        elif run is not None:
            self.watcher.crashed(run, f"{message['reason']} (see {run.directory / 'log.txt'})")
        if self.waiting:
            following = self.waiting.popleft()
            worker.send(following)
            self.watcher.started(following)
        else:
            self.workers.remove(worker)
            worker.close_input()

    def _remove_worker(self, worker: _Worker) -> None:
        """Handle the end of a worker process: report its run as crashed; the other workers continue."""
        if worker not in self.workers:
            return  # its input was closed
        self.workers.remove(worker)
        how = _ending(worker.process.wait())
        if not worker.ready:
            raise LostWorkerError(
                f"a worker process {how} before it could begin. The end of {self.log}:\n{_tail(self.log)}"
            )
        if worker.run is not None:
            self.watcher.crashed(worker.run, f"its process {how} (see {worker.run.directory / 'log.txt'})")

    def _close(self) -> None:
        """End the workers by closing their input, upon which each saves its run.

        (A signal besides would be the second one they get, and that means: at once.) A second Ctrl-C does not wait.
        """
        try:
            for worker in self.workers:
                worker.close_input()
            for worker in self.workers:
                worker.process.wait(_SAVE_TIMEOUT)
        finally:
            for worker in self.workers:
                worker.process.kill()


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _tail(path: Path, lines: int = 8) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
