"""E1: whose gradient is closest to the exact one, along the training of a network."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..data import load
from ..fidelity import Measurement, Spectrum, fidelity_methods, record_whitening
from ..fidelity.methods import ALGORITHM_1, ALL_PAIRS, EXACT, PAPER_DEGREE, SVD, taylor_name
from ..fidelity.report import COLOURS, Entry, Summary, draw_degrees, entry, summarise
from ..report import Finding, Outcome, Table, figures
from ..report.outcome import CONFIRMED, UNDECIDED, Figure
from ..report.tables import Cell, conditions_text
from ..statistics import cluster_bootstrap
from ..training import Config
from ..training.environment import available_cores
from .experiment import Context, Experiment, Plan, check_scale
from .presets import DATA_NAMES, PROTOCOLS
from .trained import located
from .trajectories import CONSTANT_RATE, follow, made_in_parallel
from .verdicts import Comparison, judge

__all__ = ["FACTOR", "FidelityExperiment"]

TAYLOR = taylor_name(PAPER_DEGREE)
#: Errors that differ by a factor of less than this do not matter.
FACTOR = 1.25


@dataclass(frozen=True)
class _Size:
    """What a scale follows: a network, its dimensions, its ε, so many seeds and steps, one snapshot in ``every``."""

    base: Config
    network: str
    group_sizes: tuple[int, ...]
    eps: tuple[float, ...]
    seeds: int
    steps: int
    every: int
    cost: float  # seconds of a step and its share of the measurements, on one core of a 2.x GHz server


_EPS = (1e-2, 1e-4)
_SMOKE, _SMALL = (PROTOCOLS["cifar10"][scale] for scale in ("smoke", "small"))
_SIZES = {
    "smoke": _Size(_SMOKE.base, _SMOKE.network, (4, 16), _EPS, 1, 20, 10, 0.05),
    "small": _Size(_SMALL.base, _SMALL.network, (4, 16, 64), _EPS, 3, 300, 10, 0.7),
    "paper": _Size(_SMALL.base, _SMALL.network, (4, 8, 16, 32, 64), _EPS, 5, 575, 10, 0.7),
}


class FidelityExperiment(Experiment):
    """The gradients of all methods on the inputs that a training really had, against divided differences in float64."""

    name = "fidelity"
    title = "Fidelity: whose gradient is the exact one's closest"
    paper = "argues that SVD-Taylor's gradient is more accurate than SVD-PI's and clipping's, for K = 9."

    def size(self, scale: str, context: Context) -> _Size:
        """The size of a scale, as far as the context does not change it."""
        chosen = _SIZES[check_scale(scale)]
        changes: dict[str, Any] = {"seeds": context.trials, "steps": context.steps, "group_sizes": context.group_sizes}
        chosen = replace(chosen, **{name: value for name, value in changes.items() if value is not None})
        for d in chosen.group_sizes:
            if chosen.base.stem_width % d:
                raise ValueError(
                    f"{self.name}: group size {d} does not divide the {chosen.base.stem_width} channels of the first "
                    "layer"
                )
        return chosen

    def plan(self, scale: str, context: Context) -> Plan:
        """The trajectories, which of them are done, and how long the others will take."""
        chosen = self.size(scale, context)
        waiting = [path for path, _ in self._trajectories(scale, chosen, context) if not path.exists()]
        total = len(chosen.group_sizes) * len(chosen.eps) * chosen.seeds
        seconds = len(waiting) * chosen.steps * chosen.cost / min(context.processes, available_cores())
        return Plan(
            [
                f"{total} trainings of {chosen.steps} steps ({total - len(waiting)} done), one snapshot in "
                f"{chosen.every}",
                f"d = {', '.join(map(str, chosen.group_sizes))}; ε = {', '.join(f'{e:g}' for e in chosen.eps)}; "
                f"{chosen.seeds} seeds; {chosen.network}, trained with the exact gradient",
            ],
            seconds,
            "one core of a 2.x GHz server without a GPU",
        )

    def _trajectories(self, scale: str, chosen: _Size, context: Context) -> list[tuple[Path, Config]]:
        """The file and the configuration of every training, seed by seed."""
        base = chosen.base
        if context.data_root is not None:
            base = base.replace(data_root=str(located(context.data_root, base.data)))
        methods = sorted(fidelity_methods(chosen.eps[0]))
        found = []
        for seed in range(chosen.seeds):
            for eps in chosen.eps:
                for d in chosen.group_sizes:
                    config = base.replace(
                        seed=seed,
                        group_size=d,
                        eps=eps,
                        gradient="exact",
                        lr_step=CONSTANT_RATE,
                        threads=context.threads,
                    )
                    content = json.dumps([config.hash_fields(), chosen.steps, chosen.every, methods], sort_keys=True)
                    key = hashlib.sha256(content.encode()).hexdigest()[:8]
                    name = f"d{d}-eps{eps:g}-s{seed}-{chosen.steps}-{key}.json"
                    found.append((context.directory(self.name, scale) / "trajectories" / name, config))
        return found

    def run(self, scale: str, context: Context) -> Outcome:
        """Follow the trainings that have not been followed yet, and compare the methods."""
        start, chosen = time.perf_counter(), self.size(scale, context)
        trajectories = self._trajectories(scale, chosen, context)
        if any(not path.exists() for path, _ in trajectories):
            first = trajectories[0][1]
            load(first.data, first.data_root, subset=first.subset, image_size=first.image_size)
        recorded = made_in_parallel(_follow, [(path, (config, chosen)) for path, config in trajectories], context)
        found = [
            _Trajectory(config.group_size, config.eps, config.seed, [_from_json(e) for e in entries])
            for (_, config), entries in zip(trajectories, recorded, strict=True)
        ]
        outcome = self.evaluate(scale, chosen, found, context.directory(self.name, scale))
        return replace(outcome, seconds=time.perf_counter() - start)

    def evaluate(self, scale: str, chosen: _Size, trajectories: Sequence[_Trajectory], folder: Path) -> Outcome:
        """Tables by cell and by trajectory, a figure, and what is decided."""
        images = chosen.base.subset
        conditions = {
            "data": DATA_NAMES[chosen.base.data] + (f", {images:,} training images" if images else ""),
            "network": chosen.network,
            "trainings": f"{len(trajectories)} of {chosen.steps} steps with the exact gradient",
            "snapshots": f"{sum(len(t.entries) for t in trajectories)}, one in {chosen.every} steps",
        }
        full = {"scale": scale, **conditions}
        figure = Figure(
            _draw(folder, trajectories),
            "Relative error of the gradient of the covariance against the degree K of the Taylor expansion: median "
            "over the snapshots of a training, mean over trainings; dotted: not finite in some snapshots, which are "
            f"left out. {conditions_text(full)}.",
        )
        return Outcome(
            self.name,
            self.title,
            scale,
            conditions,
            self.paper,
            (
                _overview(trajectories, full),
                _spectra(trajectories, full),
                _by_trajectory(trajectories, full),
                _cells(trajectories, full),
            ),
            (figure,),
            tuple(_findings(trajectories)),
            (
                "All methods get the same covariance and the same gradient of the whitening matrix, rounded to "
                "float32; the reference is computed from them in float64.",
                "SVD-PI is Algorithm 1: it truncates the whitening matrix at ε too, so it is the gradient of another "
                "function. “All pairs” has the power iterations without the truncation.",
                "The unit is the training: snapshots of one are not independent.",
            ),
        )


@dataclass(frozen=True)
class _Trajectory:
    """One training that was followed."""

    d: int
    eps: float
    seed: int
    entries: Sequence[Entry]

    def summary(self) -> dict[str, Summary]:
        """Method → its medians over the snapshots."""
        return {name: summarise([e.methods[name] for e in self.entries]) for name in self.entries[0].methods}


def _follow(config: Config, chosen: _Size) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []

    def watch(model: Any) -> Any:
        return record_whitening(model, chosen.every, sink=lambda snapshot: entries.append(_to_json(entry(snapshot))))

    follow(config, chosen.steps, watch)
    return entries


def _to_json(e: Entry) -> dict[str, Any]:
    return {
        "layer": e.layer,
        "step": e.step,
        "spectrum": {name: _short(value) for name, value in vars(e.spectrum).items()},
        "methods": {name: [_short(value) for value in vars(m).values()] for name, m in e.methods.items()},
    }


def _from_json(data: Mapping[str, Any]) -> Entry:
    spectrum = Spectrum(**{name: math.nan if v is None else v for name, v in data["spectrum"].items()})
    methods = {n: Measurement(*(math.nan if v is None else v for v in values)) for n, values in data["methods"].items()}
    return Entry(data["layer"], data["step"], spectrum, methods)


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _groups(trajectories: Sequence[_Trajectory]) -> dict[tuple[int, float], list[_Trajectory]]:
    cells: dict[tuple[int, float], list[_Trajectory]] = {}
    for t in sorted(trajectories, key=lambda t: (-t.eps, t.d, t.seed)):
        cells.setdefault((t.d, t.eps), []).append(t)
    return cells


def _overview(trajectories: Sequence[_Trajectory], conditions: dict[str, str]) -> Table:
    """One row a method, one column a cell: the geometric mean of the errors over trainings."""
    cells = _groups(trajectories)
    means = {
        cell: {name: _average([t.summary()[name] for t in members]) for name in members[0].entries[0].methods}
        for cell, members in cells.items()
    }
    names = list(next(iter(means.values())))
    rows = tuple((name, *(_short(means[cell][name].error) for cell in cells)) for name in names)
    columns = ("method", *(f"d = {d}, ε = {eps:g}" for d, eps in cells))
    note = "Median over the snapshots of a training, geometric mean over trainings; a dash: never finite."
    return Table("fidelity", "Relative error of the gradient of the covariance", columns, rows, conditions, note)


def _cells(trajectories: Sequence[_Trajectory], conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (d, eps), members in _groups(trajectories).items():
        summaries = [t.summary() for t in members]
        for name in summaries[0]:
            of = [s[name] for s in summaries]
            logs = [[math.log10(max(s.error, 1e-12))] for s in of if math.isfinite(s.error)]
            error = interval = None
            if logs:
                middle, low, high = cluster_bootstrap(logs)
                error = float(f"{10**middle:.3g}")
                interval = f"{10**low:.2g} to {10**high:.2g}" if math.isfinite(low) else None
            rows.append(
                (
                    *(d, f"{eps:g}", name, len(members), error, interval),
                    _mean([s.worst for s in of], max),
                    _mean([s.cosine for s in of]),
                    _mean([s.error_x for s in of]),
                    _mean([s.cosine_x for s in of]),
                    f"{100 * (1 - statistics.fmean(s.finite for s in of)):.0f} %",
                )
            )
    columns = (
        *("d", "ε", "method", "trainings", "error", "95 % interval", "worst"),
        *("cosine", "error at x", "cosine at x", "not finite"),
    )
    return Table(
        "fidelity_cells",
        "Relative error and cosine of every method's gradient, and of what reaches the input of the layer",
        columns,
        tuple(rows),
        conditions,
        "Medians over the snapshots of a training; over trainings the geometric mean of the errors, with an interval "
        "from resampling trainings (from three on), and the mean of the others. The columns “at x” are of what reaches "
        "the input of the layer.",
    )


def _spectra(trajectories: Sequence[_Trajectory], conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for (d, eps), members in _groups(trajectories).items():
        met = [e.spectrum for t in members for e in t.entries]
        rows.append(
            (
                *(d, f"{eps:g}", f"{100 * statistics.median(s.first for s in met):.0f} %"),
                float(f"{min(s.gap for s in met):.3g}"),
                *(round(statistics.fmean(getattr(s, name) for s in met), 2) for name in ("tied", "kept")),
                met[0].bound,
            )
        )
    columns = ("d", "ε", "share of λ₁", "smallest gap", "eigenvalues at ε", "SVD-PI keeps", "n(K+1)/ε")
    return Table("fidelity_spectra", "The spectra of the layer", columns, tuple(rows), conditions)


def _by_trajectory(trajectories: Sequence[_Trajectory], conditions: dict[str, str]) -> Table:
    names = [EXACT, TAYLOR, taylor_name(19), "SVD-Clip", ALGORITHM_1, ALL_PAIRS, "PI", SVD]
    rows: list[tuple[Cell, ...]] = []
    for members in _groups(trajectories).values():
        for t in members:
            summary = t.summary()
            errors = (_short(summary[name].error) for name in names)
            rows.append((t.d, f"{t.eps:g}", t.seed, len(t.entries), *errors))
    columns = ("d", "ε", "seed", "snapshots", *names)
    return Table("fidelity_trajectories", "Median error by training", columns, tuple(rows), conditions)


def _findings(trajectories: Sequence[_Trajectory]) -> list[Finding]:
    summaries = [t.summary() for t in trajectories]
    rivals = {"SVD-PI": ALGORITHM_1, "SVD-PI without its truncation": ALL_PAIRS, "PI": "PI"}
    compared = {label: _logs(summaries, TAYLOR, name) for label, name in rivals.items()}
    for d in sorted({t.d for t in trajectories}):  # clipping changes no gap above 1/100: small groups have few below
        of_size = [summary for t, summary in zip(trajectories, summaries, strict=True) if t.d == d]
        compared[f"SVD-Clip at d = {d}"] = _logs(of_size, TAYLOR, "SVD-Clip")
    claims = {
        f"SVD-Taylor's gradient (K = 9) is more accurate than that of {label}": [Comparison("", logs)]
        for label, logs in compared.items()
    }
    own = {
        "(ours) Whitening needs no approximation: the exact gradient is more accurate than SVD-Taylor's (K = 9)": [
            Comparison("", _logs(summaries, EXACT, TAYLOR))
        ]
    }
    first, *judged = judge(
        {**own, **claims},
        margin=math.log10(FACTOR),
        unit="times its error",
        text=_factor,
        margin_text=f"a factor of {FACTOR:g}",
        noun="trainings",
    )
    return [_with_cost(first, summaries), *judged, *_plain_svd(trajectories)]


def _with_cost(finding: Finding, summaries: Sequence[Mapping[str, Summary]]) -> Finding:
    """The finding on the exact gradient, with what SVD-Taylor costs where the exact one is at hand."""
    lost, at_x = (
        _percent([getattr(s[TAYLOR], name) for s in summaries if s[TAYLOR].finite]) for name in ("error", "error_x")
    )
    exact = [s[EXACT].error for s in summaries if s[EXACT].finite]
    taylor = [100 * s[TAYLOR].error for s in summaries if s[TAYLOR].finite]
    return replace(
        finding,
        evidence=f"SVD-Taylor with K = 9 loses {lost} of the gradient of the covariance, from training to training "
        f"{min(taylor):.2g} to {max(taylor):.2g} %, and {at_x} of what reaches the input of the layer. The exact one "
        f"is off by {min(exact):.1e} to {max(exact):.1e} in float32. Pooling "
        "and WCT are functions of a matrix as well, with exact gradients of the same kind. The ratio of the two "
        f"errors: {finding.evidence.replace(' times its error', '')}",
        effect=f"SVD-Taylor loses {lost}",
    )


def _factor(logarithm: float) -> str:
    """The ratio of two errors by its log10, with two digits that count."""
    ratio = float(f"{10**logarithm:.2g}")
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"


def _percent(shares: Sequence[float]) -> str:
    """A mean over trainings in per cent, with its interval where there are enough."""
    middle, low, high = cluster_bootstrap([[100 * share] for share in shares])
    return f"{middle:.2g} %" + (f" ({low:.2g} to {high:.2g} %)" if math.isfinite(low) else "")


def _plain_svd(trajectories: Sequence[_Trajectory]) -> list[Finding]:
    """Whether plain SVD has a gradient at every snapshot of the largest dimension: one without refutes that."""
    shares = {cell: statistics.fmean(t.summary()[SVD].finite for t in m) for cell, m in _groups(trajectories).items()}
    text = "; ".join(f"d = {d}, ε = {eps:g}: {100 * (1 - share):.0f} %" for (d, eps), share in shares.items())
    largest = max(d for d, _ in shares)
    seen = any(share < 1 for (d, _), share in shares.items() if d == largest)
    return [
        Finding(
            f"At d = {largest} the gradient of plain SVD is not finite in some steps",
            CONFIRMED if seen else UNDECIDED,
            f"Snapshots without a finite gradient: {text}.",
            detail="" if seen else "none was seen",
            effect="; ".join(part for part in text.split("; ") if part.startswith(f"d = {largest},")),
            runs=f"{len(trajectories)} trainings",
        )
    ]


def _logs(summaries: Sequence[Mapping[str, Summary]], first: str, second: str) -> tuple[float, ...]:
    """log10 of the ratio of two methods' errors, for every training in which both have one."""
    pairs = [(s[first].error, s[second].error) for s in summaries]
    return tuple(math.log10(a / b) for a, b in pairs if math.isfinite(a) and math.isfinite(b) and a > 0 and b > 0)


def _mean(values: Sequence[float], combine: Any = statistics.fmean) -> float | None:
    fine = [value for value in values if math.isfinite(value)]
    return float(f"{combine(fine):.3g}") if fine else None


def _draw(folder: Path, trajectories: Sequence[_Trajectory]) -> str:
    cells = _groups(trajectories)
    sizes, widths = sorted({d for d, _ in cells}), sorted({eps for _, eps in cells}, reverse=True)
    with figures.style() as plt:
        figure, axes = plt.subplots(
            len(widths),
            len(sizes),
            figsize=(3.2 * len(sizes) + 2, 3.4 * len(widths)),
            squeeze=False,
            sharey=True,
            sharex=True,
        )
        for row, eps in zip(axes, widths, strict=True):
            for axis, d in zip(row, sizes, strict=True):
                summaries = [t.summary() for t in cells[d, eps]]
                draw_degrees(axis, {name: _average([s[name] for s in summaries]) for name in summaries[0]})
                axis.axvline(PAPER_DEGREE, color=figures.RED, lw=0.8, ls=":")
                axis.set(title=f"d = {d}, ε = {eps:g}", xlabel="degree K" if eps == widths[-1] else "")
            row[0].set_ylabel("relative error of gM")
        handles, labels = axes[0][0].get_legend_handles_labels()
        missing = [name for name in COLOURS if name not in labels]  # of methods without a finite gradient there
        for axis in axes.flat:
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                if label in missing and label not in labels:
                    handles.append(handle)
                    labels.append(label)
        figure.legend(handles, labels, loc="outside right center")
        return figures.save(figure, folder, "fidelity")


def _average(summaries: Sequence[Summary]) -> Summary:
    """The geometric mean of the errors over trainings and the share of finite gradients; the rest is not drawn."""
    errors = [s.error for s in summaries if math.isfinite(s.error) and s.error > 0]
    finite = statistics.fmean(s.finite for s in summaries)
    return replace(summaries[0], error=statistics.geometric_mean(errors) if errors else math.nan, finite=finite)
