"""Figure 3: the direction of a column of K̃ after clipping and after the Taylor expansion."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from ..report import Finding, Outcome, Table, figures
from ..report.outcome import Figure
from ..report.tables import Cell
from .directions import CLIP, TAYLOR, column, direction, direction_error, true_direction
from .experiment import Context, Experiment, Plan, check_scale

__all__ = ["Fig3"]

EXAMPLE = (0.02, 0.01, 0.01)
SMALLEST = torch.logspace(-6, 1, 400, dtype=torch.float64)  # λ3 = λ2 = λ1/2


class Fig3(Experiment):
    """The paper's example, λ = (0.02, 0.01, 0.01), and the same for every size of λ3."""

    name = "fig3"
    title = "Figure 3: gradient direction after clipping and after Taylor expansion"
    paper = "λ = (0.02, 0.01, 0.01), K = 9, clipping at 100; the figure itself is a sketch."

    def plan(self, scale: str, context: Context) -> Plan:
        """Arithmetic on three eigenvalues."""
        check_scale(scale)
        return Plan(["the third column of K̃ for λ3 = λ2 = λ1/2, λ3 from 1e-6 to 10"], 3.0, "drawing takes longest")

    def run(self, scale: str, context: Context) -> Outcome:
        """Compute the figure, which does not depend on the scale."""
        start = time.perf_counter()
        check_scale(scale)
        example = torch.tensor(EXAMPLE, dtype=torch.float64)
        rules = {"SVD-Taylor, K = 9": TAYLOR, "SVD-Clip, t = 100": CLIP}
        printed = {"SVD-Taylor, K = 9": ("99.90, 1000", "5.71"), "SVD-Clip, t = 100": ("100, 100", "45")}
        errors = {name: abs(float(direction_error(rule, example))) for name, rule in rules.items()}
        rows: list[tuple[Cell, ...]] = [("exact", "100, ∞", "100, ∞", float(true_direction(example)), None, 0.0)]
        for name, rule in rules.items():
            entries = ", ".join(f"{value:.4g}" for value in column(rule, example).tolist())
            paper_entries, paper_angle = printed[name]
            angle = float(direction(rule, example))
            rows.append((name, paper_entries, entries, angle, float(paper_angle), errors[name]))
        table = Table(
            "fig3",
            "Third column of K̃ for λ = (0.02, 0.01, 0.01)",
            ("method", "K13, K23: paper", "K13, K23: ours", "angle °: ours", "error °: paper", "error °: ours"),
            tuple(rows),
            {"scale": scale, "arithmetic": "float64, through eigengrad's rules"},
        )
        taylor = direction_error(TAYLOR, _family()).abs()
        clip = direction_error(CLIP, _family()).abs()
        figure = Figure(
            _draw(context.directory(self.name, scale), taylor, clip),
            "Left: directions for λ = (0.02, 0.01, 0.01); lengths mean nothing, the true entry is infinite. Right: the "
            "direction error for λ2 = λ3, λ1 = 2λ3 and every λ3: Taylor's is constant, clipping's depends on λ3.",
        )
        matches = all(abs(errors[name] - float(printed[name][1])) < 0.005 for name in rules)
        findings = (
            Finding(
                "Taylor expansion turns the column by 5.71°, clipping at 100 by 45°",
                "confirmed" if matches else "refuted",
                f"{errors['SVD-Taylor, K = 9']:.2f}° and {errors['SVD-Clip, t = 100']:.2f}°.",
            ),
            Finding(
                "For a fixed threshold there is always a λ3 small enough that clipping is worse than Taylor",
                "confirmed" if bool((clip[SMALLEST < 0.0999] > taylor[SMALLEST < 0.0999]).all()) else "refuted",
                f"At t = 100 clipping is worse for all λ3 below 0.1, better above. Its worst is {clip.max():.0f}°; "
                f"Taylor's error is {taylor.max():.2f}° throughout.",
            ),
        )
        return Outcome(
            self.name,
            self.title,
            scale,
            {"arithmetic": "float64, exact at every scale"},
            self.paper,
            (table,),
            (figure,),
            findings,
            (
                "The paper prints +1000 for both K23 and K32; K̃ is antisymmetric, so K32 is −1000 (as computed here).",
                "Direction is of the column of K̃, not of the loss gradient, which multiplies K̃ entry by entry.",
            ),
            time.perf_counter() - start,
        )


def _family() -> torch.Tensor:
    return torch.stack([2 * SMALLEST, SMALLEST, SMALLEST], -1)


def _draw(folder: Path, taylor: torch.Tensor, clip: torch.Tensor) -> str:
    example = torch.tensor(EXAMPLE, dtype=torch.float64)
    with figures.style() as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), width_ratios=(1, 1.35))
        arrows = (
            (float(true_direction(example)), figures.INK, "exact, 90°", (0.02, 1.04)),
            (float(direction(TAYLOR, example)), figures.RED, "Taylor, 84.29°", (0.13, 0.93)),
            (float(direction(CLIP, example)), figures.BLUE, "clipped, 45°", (0.7, 0.62)),
        )
        for angle, colour, label, (x, y) in arrows:
            tip = (math.cos(math.radians(angle)), math.sin(math.radians(angle)))
            arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2.6, "mutation_scale": 18, "shrinkA": 0, "shrinkB": 0}
            left.annotate("", tip, (0, 0), arrowprops=arrow)
            left.text(x, y, label, color=colour, ha="left", va="center", weight="bold")
        left.set(xlim=(-0.02, 1.15), ylim=(-0.02, 1.12), aspect="equal", xticks=[], yticks=[])
        left.set(xlabel="$K_{13}$", ylabel="$K_{23}$", title="λ = (0.02, 0.01, 0.01)")
        left.grid(visible=False)
        right.semilogx(SMALLEST, clip, color=figures.BLUE, label="clipped at t = 100")
        right.semilogx(SMALLEST, taylor, color=figures.RED, label="Taylor, K = 9")
        right.axvline(0.01, color=figures.GREY, lw=1, ls="--")
        right.text(0.0088, 30, "the example", color=figures.GREY, rotation=90, ha="right", va="center", fontsize=9)
        right.set(xlabel="λ3  (λ2 = λ3, λ1 = 2λ3)", ylabel="direction error, degrees", ylim=(0, 48))
        right.set(title="For every size of the eigenvalues")
        right.legend(loc="upper right")
        return figures.save(figure, folder, "fig3")
