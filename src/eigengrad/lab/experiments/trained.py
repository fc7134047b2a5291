"""Experiments that train networks: their runs, shared by name, and the data they need."""

from __future__ import annotations

import statistics
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ..data import MANY, digest, load
from ..report import Outcome
from ..report.tables import conditions_text
from ..sweeps import Grid
from ..training import Config, Result
from ..training.result import RESULT_FILE
from .costs import parallel_runs, relative_cost
from .experiment import Context, Plan, SweptExperiment
from .presets import Preset, preset
from .records import from_record, read_records, record, write_records
from .trials import Trials

__all__ = ["Cells", "TrainedExperiment", "located"]

#: (method, value of the group size or None) → its runs.
Cells = dict[tuple[str, int | None], Trials]


class TrainedExperiment(SweptExperiment):
    """An experiment whose numbers come from training runs.

    A subclass says which methods are trained under which protocol, and what is to be read from their results. Runs are
    named by everything that influences them, so experiments that need the same run share it.
    """

    protocol: ClassVar[str]
    #: Whether every run is kept in runs.json with its curves. Where there are very many, each is a row of a table.
    keeps_curves: ClassVar[bool] = True

    @abstractmethod
    def methods(self, scale: str) -> Mapping[str, Mapping[str, Any]]:
        """Name → the fields of a configuration that make the method."""

    @abstractmethod
    def evaluate(self, scale: str, chosen: Preset, cells: Cells, folder: Path) -> Outcome:
        """What the results say. Figures are written to ``folder``."""

    def preset(self, scale: str, context: Context) -> Preset:
        """The protocol at a scale, as far as the context does not change it."""
        chosen = preset(self.protocol, scale, trials=context.trials)
        if context.group_sizes is None:
            return chosen
        if not chosen.group_sizes:
            raise ValueError(f"{self.name}: got group sizes {context.group_sizes}, but its networks have no groups")
        for size in context.group_sizes:
            if chosen.base.stem_width % size:
                raise ValueError(
                    f"{self.name}: group size {size} does not divide the {chosen.base.stem_width} channels of the "
                    f"first layer at scale {scale!r}"
                )
        return replace(chosen, group_sizes=context.group_sizes)

    def grid(self, scale: str, context: Context) -> Grid:
        """Methods × dimensions × seeds."""
        chosen = self.preset(scale, context)
        base = chosen.base
        if context.data_root is not None:
            root = located(context.data_root, base.data)
            named = base.data not in MANY or not root.exists()
            base = base.replace(data_root=str(root), data_digest=None if named else digest(root))
        base = base.replace(**context.overrides)
        return Grid(
            base,
            self.methods_of(scale, context),
            {"group_size": chosen.group_sizes},
            range(chosen.trials),
        )

    def methods_of(self, scale: str, context: Context) -> Mapping[str, Mapping[str, Any]]:
        """The experiment's methods, or those that the context asks for in their place."""
        if not context.gradients:
            return self.methods(scale)
        return {gradient: {"norm": "dbn", "gradient": gradient} for gradient in context.gradients}

    def configs(self, scale: str, context: Context) -> list[Config]:
        """The configuration of every run, each once."""
        return list({config.key(): config for config in self.grid(scale, context).configs()}.values())

    def plan(self, scale: str, context: Context) -> Plan:
        """The runs, which of them are done, and how long the others will take."""
        chosen, configs = self.preset(scale, context), self.configs(scale, context)
        done = _finished(configs, context.runs)
        waiting = [config for config in configs if config.key() not in done]
        measured = _seconds_by_method(done)
        known = [seconds / relative_cost(done[key].config) for key, seconds in _each(done)]
        unit = statistics.median(known) if known else chosen.seconds
        costs = {c.key(): measured.get(_method(c), unit * relative_cost(c)) for c in waiting}
        at_once, why = parallel_runs(context.processes)
        basis = "one core of a 2.x GHz server without a GPU, where runs were measured"
        if done:
            basis = f"the median of the {len(done)} runs that are done, method by method"
        if why:
            basis += f"; {why}"
        conditions = conditions_text(chosen.conditions())
        sizes = f"d = {', '.join(map(str, chosen.group_sizes))}; " if chosen.group_sizes else ""
        total = sum(costs.values())
        ends = list(dict.fromkeys(f"{end(costs.values()):,.0f}" for end in (min, max))) if costs else ["0"]
        span = f"{' to '.join(ends)} s"
        return Plan(
            [
                f"{len(configs)} runs ({len(done)} done, {len(waiting)} to go): "
                f"{', '.join(self.methods_of(scale, context))}",
                f"{sizes}{conditions}",
                f"one run: about {span} on a core of its own, {context.processes} at a time",
            ],
            total / at_once,
            basis,
            {key: seconds / at_once for key, seconds in costs.items()},
        )

    def check_data(self, config: Config) -> None:
        """Load the data of every configuration, which raises if it is missing."""
        load(config.data, config.data_root, subset=config.subset, image_size=config.image_size)

    def run(self, scale: str, context: Context) -> Outcome:
        """Train what is not trained yet, and evaluate."""
        start, folder = time.perf_counter(), context.directory(self.name, scale)
        cells = self._recorded(folder, scale) if context.from_records else self._trained(scale, context)
        if self.keeps_curves and not context.from_records:
            rows = [{"method": m, "d": d, **record(r)} for (m, d), trials in cells.items() for r in trials.results]
            write_records(folder, rows)
        chosen = self.preset(scale, context)
        if context.from_records:
            chosen = replace(chosen, trials=max(trials.count for trials in cells.values()))
        outcome = self.evaluate(scale, chosen, cells, folder)
        return replace(outcome, seconds=time.perf_counter() - start)

    def _trained(self, scale: str, context: Context) -> Cells:
        """Every cell of the table, after training what is not trained yet."""
        results = {result.config.key(): result for result in self.train(scale, context)}
        return {
            (method, point.get("group_size")): Trials.of([results[config.key()] for config in configs])
            for method, point, configs in self.grid(scale, context).cells()
        }

    def _recorded(self, folder: Path, scale: str) -> Cells:
        """Every cell of the table, as ``runs.json`` has its runs.

        Raises:
            ValueError: there are runs of methods that the experiment does not have, as those of an earlier version.
        """
        if not self.keeps_curves:
            raise ValueError(f"{self.name}: its runs are not recorded with their curves; train them instead")
        cells: dict[tuple[str, int | None], list[Result]] = {}
        for row in read_records(folder):
            cells.setdefault((row.pop("method"), row.pop("d")), []).append(from_record(row))
        foreign = sorted({method for method, _ in cells} - set(self.methods(scale)))
        if foreign:
            raise ValueError(
                f"{self.name}: {folder / 'runs.json'} has runs of {', '.join(foreign)}; expected runs of "
                f"{', '.join(self.methods(scale))}. Train them instead"
            )
        return {cell: Trials.of(results) for cell, results in cells.items()}


def _finished(configs: Sequence[Config], runs: Path) -> dict[str, Result]:
    keys = [config.key() for config in configs]
    return {key: Result.load(runs / key) for key in keys if (runs / key / RESULT_FILE).exists()}


def _method(config: Config) -> tuple[Any, ...]:
    """What two runs have in common that take as long as each other."""
    return tuple(sorted((name, value) for name, value in config.hash_fields().items() if name != "seed"))


def _each(done: Mapping[str, Result]) -> list[tuple[str, float]]:
    """The runs that went on to their end: one that failed says little about the time of another."""
    return [(key, result.seconds) for key, result in done.items() if result.succeeded]


def _seconds_by_method(done: Mapping[str, Result]) -> dict[tuple[Any, ...], float]:
    """The median time of the runs that are done, by method."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for key, seconds in _each(done):
        found.setdefault(_method(done[key].config), []).append(seconds)
    return {method: statistics.median(seconds) for method, seconds in found.items()}


def located(root: Path, data: str) -> Path:
    """``root`` itself, or its folder with the name of the data, so that one root can hold all of them.

    The name may go on: ``tiny_imagenet_32`` will do if there is no ``tiny_imagenet``, and no other of that kind.
    """
    if (root / data).is_dir():
        return root / data
    longer = [folder for folder in root.glob(f"{data}_*") if folder.is_dir()]
    return longer[0] if len(longer) == 1 else root
