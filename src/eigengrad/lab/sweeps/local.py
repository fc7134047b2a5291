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
from .elsewhere import Elsewhere
from .kinds import described
from .run import LostWorkerError, Run, Watcher

__all__ = ["budget", "run_locally"]

#: Seconds between two looks at the runs that other processes are at work on.
_LOOK_EVERY = 0.5

#: How long a worker may take to finish its step and save it, in seconds.
_PATIENCE = 120


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
    """Carry out runs in worker processes; see :func:`eigengrad.lab.sweeps.sweep`."""
    if address is not None:
        raise ValueError(f"address: got {address!r}, which is for backend='ray'; the local backend has none")
    devices = torch.cuda.device_count()
    jobs, threads = budget(jobs, threads, available_cores(), devices)
    _Pool(runs, watcher, jobs, threads, devices).work()


class _Worker:
    """One process, and the run it is at."""

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

    def give(self, run: Run) -> None:
        """Let it carry out a run."""
        assert self.process.stdin is not None
        order = described(run.config.replace(threads=self.threads))
        self.run = run
        with contextlib.suppress(BrokenPipeError):  # its end is about to be noticed
            self.process.stdin.write(json.dumps({"directory": str(run.directory.resolve()), "run": order}) + "\n")
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """There is nothing more to do: end of input ends it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


class _Pool:
    """The workers, the runs that wait, and what comes back."""

    def __init__(self, runs: Sequence[Run], watcher: Watcher, jobs: int, threads: int, devices: int) -> None:
        self.waiting, self.watcher, self.elsewhere = deque(runs), watcher, Elsewhere(watcher)
        self.pace = Pace(_LOOK_EVERY)
        self.jobs, self.threads, self.devices = jobs, threads, devices
        self.log = runs[0].directory.parent / "workers.log"
        self.answers: queue.Queue[Any] = queue.Queue()
        self.workers: list[_Worker] = []

    def work(self) -> None:
        """Until every run has ended or crashed."""
        try:
            while self.waiting or self.elsewhere or any(worker.run for worker in self.workers):
                self._hire()
                if self.elsewhere and self.pace.due():
                    self.waiting += self.elsewhere.collect()
                    continue
                try:
                    worker, message = self.answers.get(timeout=_LOOK_EVERY if self.elsewhere else None)
                except queue.Empty:
                    continue
                if message is None:
                    self._bury(worker)
                elif message["kind"] == "progress":
                    self.watcher.progress(worker.run, Snapshot(**message["snapshot"]))
                else:
                    self._next(worker, message)
        finally:
            self._close()

    def _hire(self) -> None:
        idle_soon = sum(worker.run is None for worker in self.workers)
        while len(self.workers) < self.jobs and idle_soon < len(self.waiting):
            used = {worker.device for worker in self.workers}
            devices = [device for device in range(self.devices) if device not in used] or [len(used)]
            device = devices[0] % self.devices if self.devices else None
            self.workers.append(_Worker(device, self.threads, self.log, self.answers))
            idle_soon += 1

    def _next(self, worker: _Worker, message: dict[str, Any]) -> None:
        """The worker is ready, or done with a run: take what it says, and give it another."""
        run, worker.run, worker.ready = worker.run, None, True
        if run is not None and message["kind"] == "ended":
            result = run.result()
            assert result is not None
            self.watcher.ended(run, result)
        elif run is not None and message["kind"] == "busy":
            self.elsewhere.add(run, message["owner"])
        elif run is not None:
            self.watcher.crashed(run, f"{message['reason']} (see {run.directory / 'log.txt'})")
        if self.waiting:
            following = self.waiting.popleft()
            worker.give(following)
            self.watcher.started(following)
        else:
            self.workers.remove(worker)
            worker.dismiss()

    def _bury(self, worker: _Worker) -> None:
        """A worker is gone: its run is for the next time. Others take the rest."""
        if worker not in self.workers:
            return  # dismissed
        self.workers.remove(worker)
        how = _ending(worker.process.wait())
        if not worker.ready:
            raise LostWorkerError(
                f"a worker process {how} before it could begin. The end of {self.log}:\n{_tail(self.log)}"
            )
        if worker.run is not None:
            self.watcher.crashed(worker.run, f"its process {how} (see {worker.run.directory / 'log.txt'})")

    def _close(self) -> None:
        """Let the workers save what they are at, for which the end of their input is enough.

        (A signal besides would be the second one they get, and that means: at once.) A second Ctrl-C does not wait.
        """
        try:
            for worker in self.workers:
                worker.dismiss()
            for worker in self.workers:
                worker.process.wait(_PATIENCE)
        finally:
            for worker in self.workers:
                worker.process.kill()


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _tail(path: Path, lines: int = 8) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
