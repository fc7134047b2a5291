"""E3: which gradients fail, and how soon: matrices of real trainings, replayed with every method."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ... import kernels
from ..fidelity import Snapshot, fidelity_methods, measure, record_whitening
from ..fidelity.methods import ALGORITHM_1, ALL_PAIRS, EXACT, PAPER_DEGREE, SVD, taylor_name
from ..report import Finding, Outcome, Table, figures
from ..report.outcome import CONFIRMED, REFUTED, UNDECIDED, Figure
from ..report.tables import Cell, conditions_text
from ..statistics import Hazard, hazard, kaplan_meier, runs_for_bound, upper_bound
from ..training import Config
from ..training.environment import available_cores
from .experiment import Context, Experiment, Plan, check_scale
from .presets import DATA_NAMES, PROTOCOLS, claimed_steps
from .trajectories import CONSTANT_RATE, follow, made_in_parallel

__all__ = ["Replay", "Survival"]

#: Methods → one snapshot in so many is replayed with it. Only plain SVD divides by gaps; power iterations are slow.
_CADENCE = {
    SVD: 1,
    **dict.fromkeys(
        (taylor_name(PAPER_DEGREE), taylor_name(19), "SVD-Clip", EXACT, "Saturate", "Lorentzian", "Mask"), 10
    ),
    **dict.fromkeys((ALGORITHM_1, ALL_PAIRS, "PI"), 50),
}
_SOLVERS, _TYPES = ("torch", "ours"), ("float32", "float64")
#: A gradient that is off by more than its own size.
_WRONG = 1.0
#: The share of runs of the paper's length that "fails" and "does not fail" mean.
_FAILS, _SURVIVES = 0.5, 0.05


@dataclass(frozen=True)
class _Size:
    group_sizes: tuple[int, ...]
    eps: tuple[float, ...]
    seeds: int
    steps: int
    every: int


_SIZES = {
    "smoke": _Size((4, 16), (1e-2,), 1, 20, 2),
    "small": _Size((4, 16, 64), (1e-2, 1e-4, 1e-6), 5, 2000, 2),
    "paper": _Size((4, 8, 16, 32, 64), (1e-2, 1e-4, 1e-6), 5, 20_000, 2),
}
_BASE = PROTOCOLS["paired"]["small"].base


@dataclass(frozen=True, order=True)
class Replay:
    """How a stored matrix is differentiated again."""

    method: str
    solver: str
    dtype: str
    eps: float


@dataclass(frozen=True)
class _Fate:
    """What became of one replay along one training.

    Attributes:
        checked: matrices that were replayed.
        broken, wrong: how many had no finite gradient, and how many one that was off by more than its size.
        first: the number of the first that was broken, counted from 1 over those checked; None if none was.
    """

    checked: int
    broken: int
    wrong: int
    first: int | None

    @property
    def lasted(self) -> int:
        """How many steps it would have survived, of those that were checked."""
        return self.checked if self.first is None else self.first


class Survival(Experiment):
    """The covariances of trainings that went well, replayed with methods that might have failed on them."""

    name = "survival"
    title = "Survival: which gradients fail, and how soon"
    paper = "reports that plain SVD and PI fail as d grows, and SVD-Taylor with K = 19 in half of the runs at ε = 1e-4."

    def size(self, scale: str, context: Context) -> _Size:
        """The size of a scale, as far as the context does not change it."""
        chosen = _SIZES[check_scale(scale)]
        changes: dict[str, Any] = {"seeds": context.trials, "steps": context.steps, "group_sizes": context.group_sizes}
        chosen = replace(chosen, **{name: value for name, value in changes.items() if value is not None})
        for d in chosen.group_sizes:
            if _BASE.stem_width % d:
                raise ValueError(f"{self.name}: group size {d} does not divide {_BASE.stem_width} channels")
        return chosen

    def _trajectories(self, scale: str, chosen: _Size, context: Context) -> list[tuple[Path, Config]]:
        found = []
        for seed in range(chosen.seeds):
            for d in chosen.group_sizes:
                config = _BASE.replace(
                    seed=seed, group_size=d, gradient="exact", lr_step=CONSTANT_RATE, threads=context.threads
                )
                content = json.dumps(
                    [config.hash_fields(), chosen.steps, chosen.every, chosen.eps, _CADENCE], sort_keys=True
                )
                key = hashlib.sha256(content.encode()).hexdigest()[:8]
                name = f"d{d}-s{seed}-{chosen.steps}-{key}.json"
                found.append((context.directory(self.name, scale) / "trajectories" / name, config))
        return found

    def plan(self, scale: str, context: Context) -> Plan:
        """The trajectories, which of them are done, and how long the others will take."""
        chosen = self.size(scale, context)
        files = self._trajectories(scale, chosen, context)
        waiting = sum(not path.exists() for path, _ in files)
        return Plan(
            [
                f"{len(files)} trainings of {chosen.steps} steps ({len(files) - waiting} done), one matrix in "
                f"{chosen.every} replayed with {len(_CADENCE)} methods",
                f"d = {', '.join(map(str, chosen.group_sizes))}; ε = {', '.join(f'{e:g}' for e in chosen.eps)}; "
                "torch's eigensolver and ours; float32 and float64",
            ],
            waiting * chosen.steps * 0.06 / min(context.processes, available_cores()),
            "one core of a 2.x GHz server without a GPU",
        )

    def run(self, scale: str, context: Context) -> Outcome:
        """Follow the trainings that have not been followed yet, and count."""
        start, chosen = time.perf_counter(), self.size(scale, context)
        files = self._trajectories(scale, chosen, context)
        found: dict[int, list[dict[Replay, _Fate]]] = {}
        recorded = made_in_parallel(_follow, [(path, (config, chosen)) for path, config in files], context)
        for (_, config), data in zip(files, recorded, strict=True):
            fates = {Replay(*replay): _Fate(*fate) for replay, fate in data}
            found.setdefault(config.group_size, []).append(fates)
        outcome = self.evaluate(scale, chosen, found, context.directory(self.name, scale))
        return replace(outcome, seconds=time.perf_counter() - start)

    def evaluate(
        self, scale: str, chosen: _Size, found: Mapping[int, Sequence[Mapping[Replay, _Fate]]], folder: Path
    ) -> Outcome:
        """Failures by method, solver, arithmetic and dimension; the hazard, and what it means for the paper's runs."""
        length = claimed_steps("cifar10")
        conditions = {
            "data": DATA_NAMES[_BASE.data],
            "network": PROTOCOLS["paired"]["small"].network,
            "trainings": f"{sum(map(len, found.values()))} of {chosen.steps:,} steps with the exact gradient",
            "replayed": f"one matrix in {chosen.every} (plain SVD), {10 * chosen.every} (rules), "
            f"{50 * chosen.every} (iterations)",
        }
        full = {"scale": scale, **conditions}
        return Outcome(
            self.name,
            self.title,
            scale,
            conditions,
            self.paper,
            (_hazards(found, length, full), _counts(found, full)),
            (
                Figure(
                    _draw(folder, found),
                    "Share of trainings that would have survived so many checked steps with plain SVD (Kaplan–Meier), "
                    f"by dimension, solver and arithmetic, ε = {max(chosen.eps):g}. {conditions_text(full)}.",
                ),
            ),
            tuple(_findings(found, chosen, length)),
            (
                "A replay fails where the gradient is not finite or the decomposition does not converge. It counts as "
                "wrong where it is off by more than the size of the exact gradient.",
                f"The hazard is taken to be constant and extrapolated to {length:,} steps, the length of the paper's "
                "runs; without a failure its bound is 3 over the number of checked steps (95 % confidence).",
                "The trainings themselves use the exact gradient: a method that fails early would leave no matrices.",
            ),
        )


def _follow(config: Config, chosen: _Size) -> list[tuple[list[Any], list[Any]]]:
    tally = _Tally(chosen)
    follow(config, chosen.steps, lambda model: record_whitening(model, chosen.every, sink=tally.add))
    return [
        ([r.method, r.solver, r.dtype, r.eps], [f.checked, f.broken, f.wrong, f.first]) for r, f in tally.fates.items()
    ]


class _Tally:
    """Counts what becomes of every replay, snapshot by snapshot."""

    def __init__(self, chosen: _Size) -> None:
        self.eps = chosen.eps
        self.fates: dict[Replay, _Fate] = {}
        self._number = 0

    def add(self, snapshot: Snapshot) -> None:
        number, self._number = self._number, self._number + 1
        due = [method for method, cadence in _CADENCE.items() if number % cadence == 0]
        for eps in self.eps:
            shifted = replace(snapshot, eps=eps)
            methods = fidelity_methods(eps)
            for solver in _SOLVERS:
                with _solver(solver) as usable:
                    if not usable:
                        continue
                    for method in due:
                        if method == "PI" and solver == "ours":  # it uses no eigensolver
                            continue
                        for dtype in _TYPES:
                            found = measure(shifted, methods[method], getattr(torch, dtype))
                            self._count(Replay(method, solver, dtype, eps), found.finite, found.error)

    def _count(self, replay: Replay, finite: bool, error: float) -> None:
        before = self.fates.get(replay, _Fate(0, 0, 0, None))
        first = before.checked + 1 if before.first is None and not finite else before.first
        wrong = before.wrong + (finite and error > _WRONG)
        self.fates[replay] = _Fate(before.checked + 1, before.broken + (not finite), wrong, first)


@contextmanager
def _solver(name: str) -> Iterator[bool]:
    """Context in which eigensolvers are torch's or ours; whether there is one."""
    if name == "ours":
        yield kernels.available()
        return
    with kernels.disable():
        yield True


def _cells(found: Mapping[int, Sequence[Mapping[Replay, _Fate]]]) -> Iterator[tuple[int, Replay, list[_Fate]]]:
    for d, trainings in sorted(found.items()):
        for replay in sorted(set().union(*trainings)):
            yield d, replay, [fates[replay] for fates in trainings if replay in fates]


def _hazard(fates: Sequence[_Fate]) -> Hazard:
    return hazard(sum(f.first is not None for f in fates), sum(f.lasted for f in fates))


def _hazards(found: Mapping[int, Sequence[Mapping[Replay, _Fate]]], length: int, conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for d, r, fates in _cells(found):
        h = _hazard(fates)
        _, low, high = h.failing_within(length)
        rows.append(
            (
                *(r.method, d, f"{r.eps:g}", r.solver, r.dtype, len(fates), h.failures, int(h.exposure)),
                *(float(f"{v:.3g}") for v in (h.rate, h.low, h.high)),
                f"{100 * low:.0f} to {100 * high:.0f} %",
            )
        )
    columns = (
        *("method", "d", "ε", "solver", "arithmetic", "trainings", "failed", "steps survived"),
        *("hazard", "from", "to", f"would fail within {length:,} steps"),
    )
    return Table("survival", "Failures per checked step", columns, tuple(rows), conditions)


def _counts(found: Mapping[int, Sequence[Mapping[Replay, _Fate]]], conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for d, r, fates in _cells(found):
        checked, broken, wrong = (sum(getattr(f, name) for f in fates) for name in ("checked", "broken", "wrong"))
        rows.append((r.method, d, f"{r.eps:g}", r.solver, r.dtype, checked, broken, wrong))
    columns = ("method", "d", "ε", "solver", "arithmetic", "matrices", "not finite", "wrong")
    return Table(
        "survival_matrices", "Matrices whose gradient is not finite, or wrong", columns, tuple(rows), conditions
    )


def _findings(found: Mapping[int, Sequence[Mapping[Replay, _Fate]]], chosen: _Size, length: int) -> list[Finding]:
    eps, trainings = max(chosen.eps), f"{sum(map(len, found.values()))} trainings"
    findings = []
    for d in found:
        parts = {
            solver: _hazard(_of(found[d], Replay(SVD, solver, "float32", eps)))
            for solver in _SOLVERS
            if _of(found[d], Replay(SVD, solver, "float32", eps))
        }
        findings.append(_fails(f"Training with plain SVD fails at d = {d}", parts, len(found[d]), length))
    bounded = (taylor_name(PAPER_DEGREE), taylor_name(19))
    of_taylor = [fates for _, replay, fates in _cells(found) if replay.method in bounded]
    bad, checked = (sum(getattr(f, name) for fates in of_taylor for f in fates) for name in ("broken", "checked"))
    findings.append(
        Finding(
            "SVD-Taylor has a finite gradient on every matrix, with K = 9 and with K = 19",
            REFUTED if bad else CONFIRMED,
            f"{bad} of {checked:,} gradients were not finite, at every ε, with either solver and arithmetic. "
            "(K + 1)/ε bounds them: where a training with K = 19 fails, it is for another reason.",
            effect=f"{bad} of {checked:,} were not finite",
            runs=trainings,
        )
    )
    wrong, checked = 0, 0
    for _, replay, fates in _cells(found):
        if replay.method == "PI" and replay.eps == eps and replay.dtype == "float32":
            wrong += sum(f.wrong + f.broken for f in fates)
            checked += sum(f.checked for f in fates)
    findings.append(
        Finding(
            "The gradient of PI goes astray: it is off by more than its own size in some steps",
            CONFIRMED if wrong else UNDECIDED,
            f"{wrong} of {checked} matrices at ε = {eps:g}.",
            detail="" if wrong else "none seen",
            effect=f"{100 * wrong / max(checked, 1):.0f} % of the matrices",
            runs=trainings,
        )
    )
    return findings


def _of(trainings: Sequence[Mapping[Replay, _Fate]], replay: Replay) -> list[_Fate]:
    return [fates[replay] for fates in trainings if replay in fates]


def _fails(claim: str, parts: Mapping[str, Hazard], trainings: int, length: int) -> Finding:
    """Judge whether runs of the paper's length fail, whichever the solver."""
    verdicts, texts = [], []
    for solver, h in parts.items():
        _, low, high = h.failing_within(length)
        verdicts.append(_decided(low, high, h, trainings))
        texts.append(
            f"{solver}: {h.failures} of the trainings within {int(h.exposure):,} checked steps, "
            f"{100 * low:.0f} to {100 * high:.0f} % of runs of {length:,} steps"
        )
    kinds = {verdict for verdict, _ in verdicts}
    verdict, detail = verdicts[0] if len(kinds) == 1 else (UNDECIDED, "depends on the solver")
    runs = "; ".join(f"{int(h.exposure):,} steps ({solver})" for solver, h in parts.items())
    effect = "; ".join(f"{solver}: {h.rate:.2g} failures a step" for solver, h in parts.items())
    return Finding(claim, verdict, "; ".join(texts) + ".", detail=detail, effect=effect, runs=runs)


def _decided(low: float, high: float, h: Hazard, trainings: int) -> tuple[str, str]:
    """Confirmed where most runs fail, refuted where fewer than one in twenty does, else what is missing.

    A hazard can be high in one training and not in another, so most of the trainings must have failed as well, by the
    exact bound of their share: that takes five of five.
    """
    if low >= _FAILS:
        if upper_bound(trainings - h.failures, trainings) <= 1 - _FAILS:
            return CONFIRMED, ""
        if h.failures < trainings:
            return UNDECIDED, "needs longer trainings"
        return UNDECIDED, f"needs {runs_for_bound(1 - _FAILS) - trainings} more trainings"
    if high <= _SURVIVES:
        return REFUTED, ""
    needed = math.log(20) / -math.log1p(-_SURVIVES) * claimed_steps("cifar10")  # without a failure
    return UNDECIDED, f"needs {max(needed - h.exposure, 1):,.0f} more checked steps"


def _draw(folder: Path, found: Mapping[int, Sequence[Mapping[Replay, _Fate]]]) -> str:
    styles = {"torch": "-", "ours": "--"}
    colours = dict(zip(_TYPES, (figures.RED, figures.BLUE), strict=True))
    with figures.style() as plt:
        figure, axes = plt.subplots(1, len(found), figsize=(3.4 * len(found) + 1.8, 3.4), sharey=True, squeeze=False)
        for axis, (d, trainings) in zip(axes[0], sorted(found.items()), strict=True):
            eps = max(replay.eps for fates in trainings for replay in fates)
            for solver in _SOLVERS:
                for dtype in _TYPES:
                    fates = _of(trainings, Replay(SVD, solver, dtype, eps))
                    if not fates:
                        continue
                    curve = kaplan_meier([f.lasted for f in fates], [f.first is not None for f in fates])
                    times, alive = [0.9, *curve.times], [1.0, *curve.surviving]
                    axis.step(
                        times, alive, styles[solver], where="post", color=colours[dtype], label=f"{solver}, {dtype}"
                    )
            axis.set(title=f"d = {d}", xlabel="checked steps", ylim=(-0.03, 1.05), xscale="log")
            axis.xaxis.set_major_formatter("{x:g}")
        axes[0][0].set_ylabel("share surviving with plain SVD")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center")
        return figures.save(figure, folder, "survival")
