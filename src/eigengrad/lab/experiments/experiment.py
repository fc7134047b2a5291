"""What an experiment is, and what it is given to run with."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...errors import unknown_choice
from ..report import Outcome
from ..sweeps import sweep
from ..training import Result, Settings
from ..training.result import RESULT_FILE

__all__ = ["SCALES", "Context", "Experiment", "Plan", "SweptExperiment", "check_scale"]

#: smoke: embedded data, seconds. small: a subset of the real data, up to an hour on two cores. paper: its protocol.
SCALES = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Context:
    """Where an experiment puts its results, and what it may use.

    Args:
        results: the folder of all results; an experiment writes to ``results/<experiment>/<scale>``.
        data_root: where the data of a trained experiment is.
        trials: seeds per setting; ``None`` leaves it to the scale.
        steps: of the trainings that are followed step by step; ``None`` leaves it to the scale.
        group_sizes: sizes d of the whitened groups; ``None`` leaves it to the scale.
        gradients: of the whitening, in place of an experiment's own methods; for sweeps.
        overrides: fields of every run's configuration that differ from the protocol's, unless a method sets them.
        jobs: processes to work with; ``None`` is one a core.
        threads: of each; ``None`` shares the cores among the jobs.
        backend, address: of the sweep: "local", or "ray" and its cluster.
        from_records: judge the runs that are recorded in the experiment's folder, and train none.
        progress: show progress on the terminal.
        say: receives a line about what is happening.
    """

    results: Path
    data_root: Path | None = None
    trials: int | None = None
    steps: int | None = None
    group_sizes: tuple[int, ...] | None = None
    jobs: int | None = None
    threads: int | None = None
    gradients: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "local"
    address: str | None = None
    from_records: bool = False
    progress: bool = False
    say: Callable[[str], None] = field(default=lambda line: None)

    def directory(self, experiment: str, scale: str) -> Path:
        """Where the results of an experiment at a scale go."""
        return self.results / experiment / scale

    @property
    def processes(self) -> int:
        """How many processes work at once, on this machine."""
        return self.jobs or os.cpu_count() or 1

    @property
    def runs(self) -> Path:
        """Where training runs go. A run is named by all that it depends on, so experiments share what they can."""
        return self.results / "runs"


@dataclass(frozen=True)
class Plan:
    """What running an experiment would do.

    Args:
        steps: one line each.
        seconds: how long it would take.
        basis: what the estimate rests on.
        runs: of a trained experiment: the names of the runs that are not done, and the part of the time of each.
            Experiments share runs, so the time of several is less than the sum.
    """

    steps: Sequence[str]
    seconds: float
    basis: str
    runs: Mapping[str, float] = field(default_factory=dict)


class Experiment(ABC):
    """A table or a figure of the paper."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]  # what the paper's numbers hold for

    @abstractmethod
    def plan(self, scale: str, context: Context) -> Plan:
        """What :meth:`run` would do, and for how long."""

    @abstractmethod
    def run(self, scale: str, context: Context) -> Outcome:
        """Run the experiment. Figures are written to the experiment's folder; the rest is in the outcome."""


class SweptExperiment(Experiment):
    """A table or a figure that is made of training runs."""

    @abstractmethod
    def configs(self, scale: str, context: Context) -> Sequence[Settings]:
        """The configuration of every run, each once."""

    @abstractmethod
    def check_data(self, config: Any) -> None:
        """Refuse data that is missing: better found here than by every worker."""

    def train(self, scale: str, context: Context) -> list[Result]:
        """Do the runs that are not done yet, and return the results of all."""
        configs = self.configs(scale, context)
        if any(not (context.runs / config.key() / RESULT_FILE).exists() for config in configs):
            self.check_data(configs[0])
        return sweep(
            configs,
            context.runs,
            backend=context.backend,
            jobs=context.jobs,
            threads=context.threads,
            address=context.address,
            progress=context.progress,
        )


def check_scale(scale: str) -> str:
    """Refuse a scale that does not exist."""
    if scale not in SCALES:
        raise unknown_choice("scale", scale, SCALES)
    return scale
