"""Table 10: how long a picture takes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import conditions_text
from ..style.metrics import time_in_turns
from ..style.translation import TranslationConfig
from ..style.translation.translator import DomainNetwork
from ..style.translation.wct import transfer
from .experiment import Context, Experiment, Plan, check_scale
from .translated import METHODS
from .verdicts import median_interval, within

__all__ = ["PRINTED", "Table10", "Times", "contestants"]

#: Milliseconds a picture at batch 1 on a Titan X.
PRINTED = {"GD-WCT": 53, "Clip-WCT": 122, "PI-WCT": 184, "SVD-WCT": 122}

#: Clip and Taylor have the same forward pass; what is left is the clock.
_EQUAL = 0.05

#: How much faster than PI-WCT the paper's are: 184/122 is 1.5.
_FASTER = 1.4

#: How many times the rounds of a scale: what takes a small part of the network's time can afford more, and needs them.
_ROUNDS = {"network": 2, "small pictures": 4, "steps": 8, "steps and backward": 16}

#: The side of small pictures, of that of the others: 96 px for 216. Their convolutions take a fifth of the time, and
#: the decompositions as long as ever, which is nearer to how they stand on the paper's GPU.
_SMALL = 4 / 9


@dataclass(frozen=True)
class _Size:
    config: TranslationConfig
    rounds: int
    seconds: float


_SCALES = {
    "smoke": _Size(TranslationConfig(width=8, image_size=64, group_size=16, critic_width=4, style_reductions=0), 3, 5),
    "small": _Size(TranslationConfig(), 25, 300),
    "paper": _Size(TranslationConfig(), 100, 1000),
}

#: What was timed → method → milliseconds of every call.
Times = dict[str, dict[str, list[float]]]


class Table10(Experiment):
    """The paper's network at batch 1, with each way of whitening and colouring: all of it, and those steps alone."""

    name = "table10"
    title = "Table 10: time for a picture"
    paper = "216 px, 8 groups of 32 channels, batch 1, Nvidia Titan X; mean over the test set."

    def plan(self, scale: str, context: Context) -> Plan:
        """Plan to time every method, in turns."""
        size = _SCALES[check_scale(scale)]
        config = size.config
        return Plan(
            [
                f"{len(METHODS)} methods, batch 1, {config.image_size} px, {4 * config.width} channels in groups of "
                f"{config.group_size}, {size.rounds} rounds: the network, also for small pictures, and its steps alone"
            ],
            size.seconds,
            "measured on one core of a 2.x GHz server",
        )

    def run(self, scale: str, context: Context) -> Outcome:
        """Time the networks on random weights and pictures: the time does not depend on them."""
        start = time.perf_counter()
        size = _SCALES[check_scale(scale)]
        threads = torch.get_num_threads()
        if context.threads is not None:
            torch.set_num_threads(context.threads)
        try:
            times = {
                part: time_in_turns(calls, _ROUNDS[part] * size.rounds)
                for part, calls in contestants(size.config).items()
            }
            used = torch.get_num_threads()
        finally:
            torch.set_num_threads(threads)
        config = size.config
        conditions = {
            "picture": f"{config.image_size} px (small: {_small_side(config)} px), batch 1",
            "network": f"width {config.width}, {4 * config.width // config.group_size} groups of {config.group_size}, "
            f"{config.blocks + 1} steps",
            "rounds": ", ".join(f"{times * size.rounds} ({part})" for part, times in _ROUNDS.items()),
            "on": "a GPU" if torch.cuda.is_available() else f"{used} CPU thread{'s' if used > 1 else ''}",
        }
        full = {"scale": scale, **conditions}
        figure = Figure(
            _draw(context, scale, times),
            f"Milliseconds a picture, median of the rounds. {conditions_text(full)}.",
        )
        return Outcome(
            self.name,
            self.title,
            scale,
            conditions,
            self.paper,
            (_table(times, full),),
            (figure,),
            tuple(_findings(times)),
            (
                "Measured in turns, in an order drawn anew for every round. A ratio is the median over the rounds of "
                "the ratio within a round, with a 95 % confidence interval (which needs six rounds); a claim holds if "
                "all of the interval does. On one CPU thread it is the time of the processor that is measured.",
                "On the paper's GPU the convolutions take 53 ms or less of 122 ms (its GD-WCT), and the decompositions "
                "the rest. On a CPU the convolutions take nearly all of the time of the network, whatever is between "
                "them, so the methods are told apart by the steps alone, and by small pictures, which leave less to "
                "convolve.",
                "All groups are one batch of decompositions here, of content and style together.",
            ),
            time.perf_counter() - start,
        )


def contestants(config: TranslationConfig) -> dict[str, dict[str, Callable[[], object]]]:
    """The calls to time, by part of the network and by method.

    They are "network", the same for "small pictures", "steps" (without gradients) and "steps and backward".
    """
    generator = torch.Generator().manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    sides = {"network": config.image_size, "small pictures": _small_side(config)}
    pictures = {part: [draw(1, 3, side, side).tanh() for _ in range(2)] for part, side in sides.items()}
    channels, side = 4 * config.width, config.image_size // 4
    content = draw(1, channels, side, side)
    style = draw(1, channels, side >> config.style_reductions, side >> config.style_reductions)
    calls: dict[str, dict[str, Callable[[], object]]] = {part: {} for part in _ROUNDS}
    for method in METHODS.values():
        torch.manual_seed(0)
        chosen = config.replace(**method.fields)
        network = DomainNetwork(chosen).to(device).eval()
        options = {"group_size": chosen.group_size, "eps": chosen.eps, "degree": chosen.degree}
        steps = nn.ModuleList(transfer(chosen.wct, channels, **options) for _ in range(chosen.blocks + 1)).to(device)  # type: ignore[arg-type]
        for part, pair in pictures.items():
            calls[part][method.label] = partial(_picture, network, *pair)
        calls["steps"][method.label] = partial(_steps, steps, content, style)
        calls["steps and backward"][method.label] = partial(_backward, steps, content, style)
    return calls


def _small_side(config: TranslationConfig) -> int:
    """The side of the small pictures, which may be too small for the discriminators and are for the generator only."""
    return round(_SMALL * config.image_size / 8) * 8


@torch.no_grad()
def _picture(network: DomainNetwork, picture: Tensor, painting: Tensor) -> Tensor:
    """Both encoders and the generator: what a picture takes."""
    made: Tensor = network.generator(network.content(picture), network.style(painting))[0]
    return made


@torch.no_grad()
def _steps(steps: nn.ModuleList, content: Tensor, style: Tensor) -> Tensor:
    for step in steps:
        content, _ = step(content, style)
    return content


def _backward(steps: nn.ModuleList, content: Tensor, style: Tensor) -> None:
    content = x = content.detach().requires_grad_()
    for step in steps:
        x, _ = step(x, style)
    x.square().mean().backward()


def _table(times: Times, conditions: dict[str, str]) -> Table:
    rows = []
    for method in METHODS.values():
        cells: list[float | str | None] = [method.label, PRINTED.get(method.label)]
        for part in times:
            values = times[part][method.label]
            cells += [round(min(values), 2), round(statistics.median(values), 2)]
        rows.append(tuple(cells))
    columns = ["model", "paper", *(f"{part}: {which}" for part in times for which in ("fastest", "median"))]
    return Table("table10", "Milliseconds a picture", tuple(columns), tuple(rows), conditions)


def _findings(times: Times) -> list[Finding]:
    clip, taylor, pi, exact = "Clip-WCT", "SVD-WCT", "PI-WCT", "Exact (ours)"
    equal, own = _Ratios(times, taylor, clip), _Ratios(times, exact, taylor)
    slower, slower_than_clip = _Ratios(times, pi, taylor), _Ratios(times, pi, clip)

    def faster(part: str) -> str:
        return within([slower.interval(part), slower_than_clip.interval(part)], _FASTER, math.inf)

    return [
        Finding(
            "SVD-WCT takes as long as Clip-WCT (within 5 %)",
            within([equal.interval(part) for part in times], 1 - _EQUAL, 1 + _EQUAL),
            f"SVD-WCT takes, of Clip-WCT, {equal}.",
        ),
        Finding(
            "Steps of SVD-WCT and Clip-WCT are at least 1.4 times faster than those of PI-WCT",
            faster("steps"),
            f"PI-WCT takes, of SVD-WCT, {slower}; of Clip-WCT, {slower_than_clip}.",
        ),
        Finding(
            "The whole network is at least 1.4 times faster with SVD-WCT and Clip-WCT than with PI-WCT",
            faster("network"),
            f"PI-WCT takes, of SVD-WCT, {slower.text('network')}; the paper's 184 ms are 1.51× its 122 ms.",
        ),
        Finding(
            "For small pictures the whole network is at least 1.4 times faster with SVD-WCT and Clip-WCT than with "
            "PI-WCT",
            faster("small pictures"),
            f"PI-WCT takes, of SVD-WCT, {slower.text('small pictures')}; of Clip-WCT, "
            f"{slower_than_clip.text('small pictures')}.",
        ),
        Finding(
            "(ours) The exact gradient costs no more than SVD-WCT",
            within([own.interval("steps and backward")], 0, 1 + _EQUAL),
            f"It takes, of SVD-WCT, {own}.",
        ),
    ]


class _Ratios:
    """How the times of one method compare with another's: in a round, what disturbs one most likely disturbs both."""

    def __init__(self, times: Times, first: str, second: str) -> None:
        self._ratios = {part: [a / b for a, b in zip(by[first], by[second], strict=True)] for part, by in times.items()}

    def interval(self, part: str) -> tuple[float, float]:
        return median_interval(self._ratios[part])

    def text(self, part: str) -> str:
        lower, upper = self.interval(part)
        return f"{part}: {statistics.median(self._ratios[part]):.2f}× ({lower:.2f} to {upper:.2f})"

    def __str__(self) -> str:
        return "; ".join(self.text(part) for part in self._ratios)


def _draw(context: Context, scale: str, times: Times) -> str:
    with figures.style() as plt:
        figure, axes = plt.subplots(1, len(times), figsize=(16, 3.4))
        for axis, (part, by_method) in zip(axes, times.items(), strict=True):
            for place, method in enumerate(reversed(METHODS.values())):
                median = statistics.median(by_method[method.label])
                axis.barh(place, median, color=method.colour, alpha=0.85, height=0.66)
                axis.text(
                    median, place, f" {median:.3g}" if median < 1000 else f" {median:,.0f}", va="center", fontsize=9
                )
            axis.set_yticks(range(len(METHODS)), [method.label for method in reversed(METHODS.values())])
            axis.set(title=part, xlabel="milliseconds")
            axis.margins(x=0.15)
            axis.grid(visible=False, axis="y")
        return figures.save(figure, context.directory("table10", scale), "table10")
