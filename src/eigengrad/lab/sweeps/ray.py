"""Runs on a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..files import make_folder
from ..training import Result
from ..training.lock import BusyError
from ..training.reporter import Pace, Silent, Snapshot
from ..training.result import RESULT_FILE
from .busy_runs import BusyRuns
from .kinds import execute, serialise
from .run import Run, Watcher

__all__ = ["run_on_ray"]

#: Seconds between two reads of the progress of the runs.
_POLL_SECONDS = 1.0

#: How long a run may take to finish its step and save it, in seconds.
_SAVE_TIMEOUT = 120


def run_on_ray(
    runs: Sequence[Run], watcher: Watcher, *, jobs: int | None, threads: int | None, address: str | None = None
) -> None:
    """Execute runs as tasks of a Ray cluster; see :func:`eigengrad.lab.sweeps.sweep`.

    Ray works on as many at once as the cluster has room for (at most ``jobs``), with ``threads`` cores (1 by default)
    and, if the cluster has any, a GPU each. Where the nodes share the folder, a run whose node is lost goes on from its
    checkpoint on another one; where they do not, the results come back to this machine all the same.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("backend='ray' needs Ray: pip install ray") from error
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, include_dashboard=False)
        except ConnectionError as error:
            raise ConnectionError(
                f"address: no Ray cluster answers at {address!r} ({error}). Start one with `ray start --head`, or give "
                "the address that command prints; without an address one is started on this machine"
            ) from error
    try:
        _Cluster(ray, runs, watcher, jobs or len(runs), threads or 1).work()
    finally:
        if ours:
            ray.shutdown()


class _Cluster:
    """The runs on the cluster, the queue of runs, and their results."""

    def __init__(self, ray: Any, runs: Sequence[Run], watcher: Watcher, jobs: int, threads: int) -> None:
        self.ray, self.waiting, self.watcher, self.jobs, self.threads = ray, deque(runs), watcher, jobs, threads
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        self.execute = ray.remote(_execute).options(num_cpus=threads, num_gpus=gpus)
        self.progress = ray.remote(_Progress).options(num_cpus=0).remote()
        self.working: dict[Any, Run] = {}
        self.busy_elsewhere = BusyRuns(watcher)

    def work(self) -> None:
        """Execute all runs: return when each has ended or crashed."""
        try:
            while self.waiting or self.working or self.busy_elsewhere:
                while self.waiting and len(self.working) < self.jobs:
                    self._start(self.waiting.popleft())
                if self.working:
                    done, _ = self.ray.wait(list(self.working), timeout=_POLL_SECONDS)
                    for reference in done:
                        self._collect(reference, self.working.pop(reference))
                if self.busy_elsewhere:
                    time.sleep(_POLL_SECONDS)
                    self.waiting += self.busy_elsewhere.collect()
                self._poll()
        except KeyboardInterrupt:
            for reference in self.working:
                self.ray.cancel(reference)
            if self.working:
                self.ray.wait(list(self.working), num_returns=len(self.working), timeout=_SAVE_TIMEOUT)
            raise

    def _start(self, run: Run) -> None:
        order = serialise(run.config.replace(threads=self.threads))
        self.working[self.execute.remote(order, str(run.directory.resolve()), self.progress)] = run

    def _collect(self, reference: Any, run: Run) -> None:
        try:
            result = Result.from_dict(self.ray.get(reference), type(run.config))
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, BusyError):
                self.busy_elsewhere.add(run, error.cause.owner)
            else:
                self.watcher.crashed(run, f"{type(error.cause).__name__}: {error.cause}")
        except self.ray.exceptions.RayError as error:
            self.watcher.crashed(run, f"{type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            if run.result() is None:  # the node that made it has a disk of its own
                make_folder(run.directory)
                result.save(run.directory / RESULT_FILE)
            self.watcher.ended(run, result)

    def _poll(self) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError):  # its node may be lost; the runs are not
            snapshots = self.ray.get(self.progress.read.remote(), timeout=_POLL_SECONDS)
            for run in self.working.values():
                if run.key in snapshots:
                    self.watcher.progress(run, Snapshot(**snapshots[run.key]))


class _Progress:
    """An actor that holds the latest snapshot of every run."""

    def __init__(self) -> None:
        self._snapshots: dict[str, dict[str, Any]] = {}

    def report(self, key: str, snapshot: dict[str, Any]) -> None:
        self._snapshots[key] = snapshot

    def read(self) -> dict[str, dict[str, Any]]:
        return self._snapshots


class _ForwardingReporter(Silent):
    """Forwards the progress of a run to the actor."""

    def __init__(self, key: str, progress: Any) -> None:
        self._key, self._progress, self._pace = key, progress, Pace(_POLL_SECONDS)

    def step(self, snapshot: Snapshot) -> None:
        """Send the snapshot, without waiting for an answer."""
        if self._pace.due():
            self._progress.report.remote(self._key, asdict(snapshot))


def _execute(order: dict[str, Any], directory: str, progress: Any) -> dict[str, Any]:
    """Execute one run on a node of the cluster."""
    return execute(order, directory, _ForwardingReporter(Path(directory).name, progress)).to_dict()
