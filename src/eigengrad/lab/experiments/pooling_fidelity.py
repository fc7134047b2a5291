"""E5, the gradients: whose is closest to the exact one where a covariance has 256 channels, as in Table 7."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import GradientWarning, LinAlgError
from ...gradients import Exact, PowerIteration
from ...nn import SecondOrderPool2d
from ...nn.functional import covariance
from ...nn.second_order_pool import METHODS, PoolingMethod, second_order_pool
from ..data import load
from ..fidelity.methods import ALGORITHM_1, ALL_PAIRS, EXACT, PAPER_DEGREE, SVD, taylor_name
from ..report import Finding, Outcome, Table, figures
from ..report.outcome import CONFIRMED, REFUTED, Figure
from ..report.tables import Cell, conditions_text
from ..training import Config
from ..training.environment import available_cores
from .experiment import Context, Experiment, Plan
from .fidelity import FACTOR
from .presets import Preset, preset
from .trained import located
from .trajectories import CONSTANT_RATE, follow, made_in_parallel
from .verdicts import FEWEST_PAIRS, Comparison, judge

__all__ = ["PoolingFidelity"]

_TAYLOR, _CLIP = taylor_name(PAPER_DEGREE), "SVD-Clip"
_COLOURS = {
    EXACT: figures.GREEN,
    _TAYLOR: figures.RED,
    _CLIP: figures.BLUE,
    ALGORITHM_1: figures.ORANGE,
    ALL_PAIRS: figures.YELLOW,
    SVD: figures.GREY,
}
#: Images of a batch whose gradients are compared: power iterations on 256 channels take a second for each.
_IMAGES = 2
#: Steps of a training, and from one snapshot to the next.
_STEPS = {"smoke": (4, 2), "small": (20, 5), "paper": (400, 20)}
#: Seconds of a step and of a snapshot, on one core of a 2.x GHz server.
_COSTS = {"smoke": (0.05, 0.1), "small": (0.7, 14.0), "paper": (6.0, 60.0)}


def pooling_methods(eps: float) -> dict[str, PoolingMethod]:
    """The square roots that are compared, by name: "SVD-PI" is Algorithm 1, "all pairs" keeps every eigenvector."""
    by_name = {
        EXACT: METHODS["exact"],
        _TAYLOR: METHODS["svd_taylor"],
        _CLIP: METHODS["mpn_cov"],
        ALGORITHM_1: METHODS["svd_pi"],
        ALL_PAIRS: PoolingMethod(gradient=PowerIteration(steps=PAPER_DEGREE + 1, stop=False)),
        SVD: PoolingMethod(gradient=Exact()),
    }
    return {name: replace(method, eps=eps) for name, method in by_name.items()}


@dataclass(frozen=True)
class _Entry:
    """One snapshot: the channels, how many SVD-PI keeps, how many are at ε, and the errors of every method."""

    step: int
    channels: int
    kept: float
    at_eps: float
    methods: Mapping[str, tuple[float | None, float | None, float | None]]  # error and cosine at x, error of S


class PoolingFidelity(Experiment):
    """The gradients of all methods on feature maps that a training really pooled, against the exact one in float64."""

    name = "pooling_fidelity"
    title = "Fidelity of pooling: whose gradient is the exact one's closest at 256 channels"
    paper = (
        "says that SVD-PI does not converge on covariances of 256 channels, because it discards eigenvectors with "
        "small eigenvalues, and that SVD-Taylor keeps them all."
    )

    def preset(self, scale: str, context: Context) -> Preset:
        """The network and the data of the trainings, with as many seeds as a verdict takes."""
        chosen = preset("large_covariances", scale)
        return replace(chosen, trials=context.trials or (1 if scale == "smoke" else FEWEST_PAIRS))

    def _trainings(self, scale: str, context: Context) -> tuple[int, int, list[tuple[Path, Config]]]:
        """Steps, steps between snapshots, and the file and the configuration of every training."""
        if context.group_sizes is not None:
            raise ValueError(f"{self.name}: got group sizes {context.group_sizes}, but its networks have no groups")
        steps, every = _STEPS[scale][0] if context.steps is None else context.steps, _STEPS[scale][1]
        chosen = self.preset(scale, context)
        base = chosen.base
        if context.data_root is not None:
            base = base.replace(data_root=str(located(context.data_root, base.data)))
        found = []
        for seed in range(chosen.trials):
            config = base.replace(seed=seed, pooling="exact", lr_step=CONSTANT_RATE, threads=context.threads)
            names = sorted(pooling_methods(1.0))
            content = json.dumps([config.hash_fields(), steps, every, _IMAGES, names], sort_keys=True)
            key = hashlib.sha256(content.encode()).hexdigest()[:8]
            found.append((context.directory(self.name, scale) / "trajectories" / f"s{seed}-{steps}-{key}.json", config))
        return steps, every, found

    def plan(self, scale: str, context: Context) -> Plan:
        """The trainings, which of them are done, and how long the others will take."""
        chosen = self.preset(scale, context)
        steps, every, trainings = self._trainings(scale, context)
        waiting = sum(not path.exists() for path, _ in trainings)
        step, snapshot = _COSTS[scale]
        seconds = waiting * (steps * step + math.ceil(steps / every) * snapshot)
        return Plan(
            [
                f"{len(trainings)} trainings of {steps} steps ({len(trainings) - waiting} done), one snapshot in "
                f"{every}",
                f"{chosen.network}, trained with the exact gradient",
            ],
            seconds / min(context.processes, available_cores()),
            "one core of a 2.x GHz server without a GPU",
        )

    def run(self, scale: str, context: Context) -> Outcome:
        """Follow the trainings that have not been followed yet, and compare the methods."""
        start = time.perf_counter()
        steps, every, trainings = self._trainings(scale, context)
        if any(not path.exists() for path, _ in trainings):
            first = trainings[0][1]
            load(first.data, first.data_root, subset=first.subset, image_size=first.image_size)
        tasks = [(path, (config, steps, every)) for path, config in trainings]
        found = [[_Entry(**entry) for entry in entries] for entries in made_in_parallel(_follow, tasks, context)]
        chosen = self.preset(scale, context)
        conditions = {
            **{name: text for name, text in chosen.conditions().items() if name in ("data", "network")},
            "trainings": f"{len(found)} of {steps} steps with the exact gradient",
            "snapshots": f"{sum(map(len, found))}, one in {every} steps, of {_IMAGES} images each",
        }
        full = {"scale": scale, **conditions}
        folder = context.directory(self.name, scale)
        return Outcome(
            self.name,
            self.title,
            scale,
            conditions,
            self.paper,
            (_by_method(found, full), _by_training(found, full)),
            (
                Figure(
                    _draw(folder, found),
                    "Relative error of the gradient that reaches the pooled features, against its cosine with the "
                    "exact gradient: every training is a point, the median over its snapshots. "
                    f"{conditions_text(full)}.",
                ),
            ),
            tuple(_findings(found)),
            (
                "All methods get the same feature maps and the same gradient of the pooled covariance; the reference "
                "is the exact gradient in float64.",
                "SVD-PI is Algorithm 1, which truncates the square root at ε as well: it is the gradient of another "
                "function. “All pairs” has the power iterations without the truncation.",
            ),
            seconds=time.perf_counter() - start,
        )


def _follow(config: Config, steps: int, every: int) -> list[dict[str, Any]]:
    taken: list[tuple[int, float, Tensor, Tensor]] = []
    follow(config, steps, lambda model: _watched(model, every, taken))
    return [vars(_measure(*snapshot)) for snapshot in taken]


@contextmanager
def _watched(model: nn.Module, every: int, taken: list[tuple[int, float, Tensor, Tensor]]) -> Iterator[None]:
    """Context in which the pooling of a model hands over its features and the gradient of what it makes of them."""
    (layer,) = (module for module in model.modules() if isinstance(module, SecondOrderPool2d))
    count = 0

    def forward(layer: SecondOrderPool2d, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal count
        step, count = count, count + 1
        if step % every or not output.requires_grad:
            return
        with torch.no_grad():
            x = inputs[0][:_IMAGES].detach()
            x = (x if layer.reduction is None else layer.reduction(x)).clone()
        output.register_hook(lambda gy: taken.append((step, layer.method.eps, x, gy[:_IMAGES].detach().clone())))

    handle: Any = layer.register_forward_hook(forward)
    try:
        yield
    finally:
        handle.remove()


def _measure(step: int, eps: float, x: Tensor, gy: Tensor) -> _Entry:
    """Compare the methods on feature maps (N, C, H, W) and the gradient of their pooled form (N, C(C+1)/2)."""
    methods = pooling_methods(eps)
    exact_y, exact = _differentiated(x.double(), gy.double(), methods[EXACT])
    measured: dict[str, tuple[float | None, float | None, float | None]] = {}
    for name, method in methods.items():
        try:
            y, found = (t.double() for t in _differentiated(x, gy, method))
        except LinAlgError:
            measured[name] = (None, None, None)
            continue
        cosine = (found * exact).sum() / (found.norm() * exact.norm())
        error = (found - exact).norm() / exact.norm()
        measured[name] = tuple(_short(float(v)) for v in (error, cosine, (y - exact_y).norm() / exact_y.norm()))  # type: ignore[assignment]
    _, M = covariance(x.flatten(-2))
    L, V = torch.linalg.eigh(M + eps * torch.eye(M.shape[-1]))
    kept = replace(METHODS["svd_pi"].gradient, eps=eps).kept(L, V)  # type: ignore[union-attr, type-var]
    at_eps = eps + M.shape[-1] * torch.finfo(L.dtype).eps * L[..., -1:] >= L
    kept_mean, at_eps_mean = (float(t.sum(-1).double().mean()) for t in (kept, at_eps))
    return _Entry(step, M.shape[-1], kept_mean, at_eps_mean, measured)


def _differentiated(x: Tensor, gy: Tensor, method: PoolingMethod) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore", GradientWarning)  # what it warns of is measured here
        y = second_order_pool(leaf, method=method)
        (gx,) = torch.autograd.grad(y, leaf, gy)
    return y.detach(), gx


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _medians(entries: Sequence[_Entry], name: str) -> tuple[float, float, float] | None:
    """The medians over the snapshots with a finite gradient; None if there is none."""
    fine = [values for e in entries if None not in (values := e.methods[name])]
    if not fine:
        return None
    error, cosine, of_S = (statistics.median(column) for column in zip(*fine, strict=True))
    return error, cosine, of_S


def _by_method(found: Sequence[Sequence[_Entry]], conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for name in _COLOURS:
        medians = [m for entries in found if (m := _medians(entries, name)) is not None]
        broken = statistics.fmean(None in e.methods[name] for entries in found for e in entries)
        numbers: tuple[Cell, ...] = (None,) * 4
        if medians:
            errors, cosines, of_S = zip(*medians, strict=True)
            middle = statistics.geometric_mean(max(e, 1e-12) for e in errors)
            numbers = (_short(middle), _short(max(errors)), _short(statistics.fmean(cosines)), _short(max(of_S)))
        rows.append((name, *numbers, f"{100 * broken:.0f} %"))
    columns = ("method", "error at x", "worst training", "cosine at x", "error of the pooled root", "not finite")
    return Table(
        "pooling_fidelity",
        "Relative error and cosine of the gradient that reaches the pooled features",
        columns,
        tuple(rows),
        conditions,
        "Medians over the snapshots of a training; over trainings the geometric mean of the errors, their largest, the "
        "mean cosine, and the largest error of the pooled square root itself.",
    )


def _by_training(found: Sequence[Sequence[_Entry]], conditions: dict[str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for seed, entries in enumerate(found):
        errors = (None if (m := _medians(entries, name)) is None else _short(m[0]) for name in _COLOURS)
        kept, at_eps = (round(statistics.fmean(getattr(e, f) for e in entries), 1) for f in ("kept", "at_eps"))
        rows.append((seed, len(entries), entries[0].channels, kept, at_eps, *errors))
    columns = ("seed", "snapshots", "channels", "SVD-PI keeps", "eigenvalues at ε", *_COLOURS)
    return Table("pooling_fidelity_trainings", "Median error by training", columns, tuple(rows), conditions)


def _findings(found: Sequence[Sequence[_Entry]]) -> list[Finding]:
    d = found[0][0].channels
    kept = [e.kept for entries in found for e in entries]

    def against(first: str, second: str) -> list[Comparison]:
        pairs = [(_medians(entries, first), _medians(entries, second)) for entries in found]
        return [Comparison("", tuple(math.log10(a[0] / b[0]) for a, b in pairs if a and b and a[0] > 0 and b[0] > 0))]

    judged = judge(
        {
            f"(ours) At {d} channels the exact gradient is more accurate than SVD-Taylor's": against(EXACT, _TAYLOR),
            f"At {d} channels SVD-Taylor's gradient is more accurate than SVD-PI's": against(_TAYLOR, ALGORITHM_1),
            f"At {d} channels SVD-Taylor's gradient is more accurate than SVD-Clip's": against(_TAYLOR, _CLIP),
        },
        margin=math.log10(FACTOR),
        unit="times its error",
        text=lambda value: f"{10**value:.2g}",
        margin_text=f"a factor of {FACTOR:g}",
        noun="trainings",
    )
    at_eps = statistics.fmean(e.at_eps for entries in found for e in entries)
    lost = [m[2] for entries in found if (m := _medians(entries, ALGORITHM_1)) is not None]
    dropped = Finding(
        f"SVD-PI discards eigenvectors of covariances of {d} channels",
        CONFIRMED if max(kept) < d else REFUTED,
        f"It keeps {min(kept):.0f} to {max(kept):.0f} of {d}; {at_eps:.0f} are at ε, for want of positions. "
        f"The square root that it pools is off by {100 * min(lost):.2g} to {100 * max(lost):.2g} %.",
        effect=f"keeps {statistics.fmean(kept):.0f} of {d}",
        runs=f"{len(found)} trainings",
    )
    return [dropped, *judged]


def _draw(folder: Path, found: Sequence[Sequence[_Entry]]) -> str:
    with figures.style() as plt:
        figure, axis = plt.subplots(figsize=(7.6, 3.9))
        for name, colour in _COLOURS.items():
            points = [m for entries in found if (m := _medians(entries, name)) is not None]
            if points:
                axis.plot(
                    [p[0] for p in points], [p[1] for p in points], "o", ms=6, alpha=0.8, color=colour, label=name
                )
        axis.set(xscale="log", xlabel="relative error of the gradient at x", ylabel="its cosine with the exact one")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside right center")
        return figures.save(figure, folder, "pooling_fidelity")
