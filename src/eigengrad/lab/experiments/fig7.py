"""Figure 7: how long a backward pass takes, by gradient and dimension."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...nn.functional import covariance
from ..models import build
from ..models.normalisation import Normalisation, normalisation
from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import conditions_text
from .experiment import Context, Experiment, Plan, check_scale
from .methods import WHITENING
from .timing import Timing, time_passes

__all__ = ["Fig7"]

SIZES = (4, 8, 16, 32, 64)
COMPARED = ("pi", "power_iteration", "svd", "clip", "taylor", "exact", "iternorm", "batchnorm")
NETWORKS = ("power_iteration", "taylor", "exact", "batchnorm")


@dataclass(frozen=True)
class _Size:
    batch: int
    image: int
    width: int
    rounds: int
    sizes: tuple[int, ...]
    seconds: float


_SCALES = {
    "smoke": _Size(8, 8, 4, 3, (4, 16), 5),
    "small": _Size(128, 32, 16, 50, SIZES, 900),
    "paper": _Size(128, 32, 64, 50, SIZES, 3600),
}


class Fig7(Experiment):
    """The small matrices, batched and one after the other; the layer with them; the network with the layer."""

    name = "fig7"
    title = "Figure 7: time of the backward pass"
    paper = "ResNet-18, CIFAR-10, batch 128, Nvidia V100, 9 power iterations and degree 9; a curve without numbers."

    def plan(self, scale: str, context: Context) -> Plan:
        """Plan to time every method and dimension, in turns."""
        size = _SCALES[check_scale(scale)]
        layers = len(COMPARED) * len(size.sizes)
        shape = f"{size.batch} × 64 × {size.image} × {size.image}"
        return Plan(
            [
                f"forward and backward of {layers} layers on {shape}, {size.rounds} rounds",
                "their matrices alone: all groups as one batch, and one after the other as in the paper",
                f"the same of ResNet-18 (width {size.width}) with {len(NETWORKS)} of the methods",
            ],
            size.seconds,
            "measured on one core of a 2.x GHz server",
        )

    def run(self, scale: str, context: Context) -> Outcome:
        """Time the methods on random images: the time depends on their number, not on what they show."""
        start = time.perf_counter()
        size = _SCALES[check_scale(scale)]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        threads = torch.get_num_threads()
        if context.threads is not None:
            torch.set_num_threads(context.threads)
        try:
            matrices, sequential, layers, networks = _measure(size, device, context)
            used = torch.get_num_threads()
        finally:
            torch.set_num_threads(threads)
        where = "a GPU" if device == "cuda" else f"{used} CPU thread{'s' if used > 1 else ''}"
        conditions = {
            "batch": str(size.batch),
            "feature map": f"64 × {size.image} × {size.image}",
            "network": f"ResNet-18, width {size.width}",
            "layout": "channels last",
            "rounds": str(size.rounds),
            "on": where,
        }
        full = {"scale": scale, **conditions}
        tables = (
            _table("fig7_matrices", "From covariances to whitening matrices, all groups at once", matrices, full),
            _table("fig7_sequential", "The same, one group after the other as in the paper", sequential, full),
            _table("fig7_layer", "The layer, with its passes over the feature map", layers, full),
            _table("fig7_network", "ResNet-18", networks, full),
        )
        figure = Figure(
            _draw(context.directory(self.name, scale), sequential, matrices, layers, networks),
            "Time of a backward pass: the matrices alone, one group after the other (the paper's way, 64/d groups) and "
            "all at once; the layer with its passes over the feature map; and what the layer adds to the backward pass "
            f"of ResNet-18 with batch norm. Medians of the rounds, bars: 95 %. {conditions_text(full)}.",
        )
        return Outcome(
            self.name,
            self.title,
            scale,
            conditions,
            self.paper,
            tables,
            (figure,),
            tuple(_findings(matrices, sequential, layers)),
            (
                "Measured in turns; medians of the rounds with distribution-free intervals of 95 %. What a layer adds "
                "to the network is computed from the layers: networks differ by less than the noise of their times.",
                "The paper treats the groups of a layer one after the other; the library's layers treat them at once.",
            ),
            time.perf_counter() - start,
        )


Times = dict[tuple[str, int], Timing]


def _measure(size: _Size, device: str, context: Context) -> tuple[Times, Times, Times, Times]:
    generator = torch.Generator().manual_seed(0)
    channels = 64
    # Channels that go together, as those of a convolution of three colours do.
    mix = torch.randn(channels, 27, generator=generator) / 27**0.5
    points = torch.randn(size.batch, 27, size.image, size.image, generator=generator)
    x = _placed(torch.einsum("ij,njhw->nihw", mix, points), device)
    images = _placed(torch.randn(size.batch, 3, size.image, size.image, generator=generator), device)
    matrices: Times = {}
    sequential: Times = {}
    layers: Times = {}
    networks: Times = {}
    for d in size.sizes:
        context.say(f"d = {d}")
        norms = {key: _norm(key, d) for key in COMPARED}
        _, covariances = covariance(x.transpose(0, 1).reshape(channels // d, d, -1))
        parts = {key: _Matrices(norm(channels).to(device)) for key, norm in norms.items() if key != "batchnorm"}
        small = time_passes(parts, covariances, size.rounds)
        matrices |= {(WHITENING[key].label, d): timing for key, timing in small.items()}
        loops = {key: _OneByOne(part.layer) for key, part in parts.items()}
        slow = time_passes(loops, covariances, size.rounds)
        sequential |= {(WHITENING[key].label, d): timing for key, timing in slow.items()}
        alone = time_passes({key: norm(channels).to(device) for key, norm in norms.items()}, x, size.rounds)
        layers |= {(WHITENING[key].label, d): timing for key, timing in alone.items()}
        models = {
            key: _placed(build("resnet18", 10, norm=norms[key], width=size.width, image_size=size.image), device)
            for key in NETWORKS
        }
        whole = time_passes(models, images, size.rounds)
        networks |= {(WHITENING[key].label, d): timing for key, timing in whole.items()}
    return matrices, sequential, layers, networks


class _Matrices(nn.Module):
    """The part of a whitening layer that does not touch the feature map: (groups, d, d) to (groups, d, d)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, covariances: Tensor) -> Tensor:
        whitened: Tensor = self.layer.whitening_matrices(covariances)  # type: ignore[operator]
        return whitened


class _OneByOne(_Matrices):
    """The whitening matrices of covariances, computed one group after the other, as the paper does."""

    def forward(self, covariances: Tensor) -> Tensor:
        return torch.cat([super(_OneByOne, self).forward(group) for group in covariances.split(1)])


def _placed(what: Any, device: str) -> Any:
    """A module or a tensor on the device, in the memory format that training uses."""
    return what.to(device=device, memory_format=torch.channels_last)


def _norm(key: str, d: int) -> Normalisation:
    fields = WHITENING[key].fields
    return normalisation(
        fields["norm"], group_size=d, gradient=fields.get("gradient", "exact"), degree=fields.get("degree", 9)
    )


def _table(name: str, title: str, times: Times, conditions: dict[str, str]) -> Table:
    sizes = list(dict.fromkeys(size for _, size in times))
    rows = []
    for method in dict.fromkeys(method for method, _ in times):
        for part in ("forward", "backward"):
            rows.append((method, part, *(round(getattr(times[method, size], part), 3) for size in sizes)))
        ends = [times[method, size].interval for size in sizes]
        rows.append((method, "backward, 95 %", *(f"{low:.3g} – {high:.3g}" for low, high in ends)))
    return Table(
        name, f"{title}: milliseconds", ("method", "pass", *(f"d = {size}" for size in sizes)), tuple(rows), conditions
    )


def _findings(matrices: Times, sequential: Times, layers: Times) -> list[Finding]:
    sizes = list(dict.fromkeys(size for _, size in layers))
    taylor, pi, exact = (WHITENING[key].label for key in ("taylor", "power_iteration", "exact"))

    def ratios(first: str, second: str, times: Times) -> list[float]:
        return [times[first, size].backward / times[second, size].backward for size in sizes]

    def text(values: list[float]) -> str:
        digits = {value: 0 if value >= 10 else 2 for value in values}
        return ", ".join(f"{value:.{digits[value]}f}× at d = {size}" for value, size in zip(values, sizes, strict=True))

    slower, own = ratios(pi, taylor, sequential), ratios(taylor, exact, matrices)
    falls = {key: [sequential[key, size].backward for size in sizes] for key in (pi, taylor)}
    apart = [sequential[pi, size].interval[0] > sequential[taylor, size].interval[1] for size in sizes]

    def trend(key: str, times: Times) -> str:
        values = [times[key, size].backward for size in sizes]
        return ", ".join(f"{value:.3g} ms at d = {size}" for value, size in zip(values, sizes, strict=True))

    return [
        Finding(
            "The backward pass of SVD-Taylor is always faster than that of SVD-PI",
            "confirmed" if all(apart) else "refuted" if max(slower) < 1 else "undecided",
            f"For the matrices alone, one after the other, SVD-PI takes {text(slower)} the time of SVD-Taylor, all at "
            f"once {text(ratios(pi, taylor, matrices))}; with the passes over the feature map, which all methods "
            f"share, {text(ratios(pi, taylor, layers))}.",
        ),
        Finding(
            "The backward pass gets faster as the dimension grows",
            "confirmed" if all(v == sorted(v, reverse=True) for v in falls.values()) else "refuted",
            f"One group after the other, as the paper has it: SVD-PI {trend(pi, sequential)}; SVD-Taylor "
            f"{trend(taylor, sequential)}. All at once: SVD-PI {trend(pi, matrices)}; SVD-Taylor "
            f"{trend(taylor, matrices)}.",
        ),
        Finding(
            "(ours) The exact gradient costs no more than SVD-Taylor",
            "confirmed" if min(own) > 0.95 else "refuted",
            f"For the matrices alone SVD-Taylor takes {text(own)} the time of the exact gradient.",
        ),
    ]


def _draw(folder: Path, *panels: Times) -> str:
    """Draw the panels; the last, of networks, as what each method adds to batch norm."""
    colours = {method.label: method.colour for method in WHITENING.values()}
    *timed, networks = panels
    titles = ("Matrices, one by one", "Matrices, all at once", "The layer")[-len(timed) :]
    with figures.style() as plt:
        figure, axes = plt.subplots(1, len(panels), figsize=(3.6 * len(panels) + 2, 4.3))
        for axis, times, title in zip(axes, timed, titles, strict=False):
            sizes = list(dict.fromkeys(size for _, size in times))
            for method in dict.fromkeys(method for method, _ in times):
                found = [times[method, size] for size in sizes]
                spread = [
                    [timing.backward - timing.interval[0] for timing in found],
                    [timing.interval[1] - timing.backward for timing in found],
                ]
                values = [timing.backward for timing in found]
                axis.errorbar(sizes, values, spread, fmt="o-", ms=4, lw=1.8, color=colours[method], label=method)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.set(xlabel="dimension d", title=title)
        axes[-2].set_yscale("linear")
        axes[-2].set_ylim(0, None)
        axes[0].set_ylabel("backward pass, ms")
        _draw_share(axes[-1], timed[-1], networks, colours)
        figure.legend(*axes[-2].get_legend_handles_labels(), loc="outside right center")
        return figures.save(figure, folder, "fig7")


def _draw_share(axis: Any, layers: Times, networks: Times, colours: dict[str, str]) -> None:
    """Draw what a layer adds to the backward pass of the network with batch norm, in per cent of it.

    By the times of the layer alone: the difference of two networks is smaller than the noise of either.
    """
    base = WHITENING["batchnorm"].label
    sizes = list(dict.fromkeys(size for _, size in layers))
    whole = statistics.median(networks[base, size].backward for size in sizes)
    norm = statistics.median(layers[base, size].backward for size in sizes)
    for method in dict.fromkeys(method for method, _ in layers):
        if method != base:
            added = [100 * (layers[method, size].backward - norm) / whole for size in sizes]
            axis.plot(sizes, added, "o-", ms=4, color=colours[method])
    axis.axhline(0, color=figures.INK, lw=0.8)
    axis.set_xscale("log", base=2)
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.set(title="Added to ResNet-18", xlabel="dimension d", ylabel="% of its backward pass")
