"""Draw the results: ``python benchmarks/plots.py`` reads ``results/*.json`` and writes ``docs/images/speed_*.png``.

Three figures: time per matrix against its size, the factor over torch against its size, and the whitening layer against
batch norm.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eigengrad.lab.report import figures
from harness import RESULTS

IMAGES = Path(__file__).parent.parent / "docs" / "images"


def draw(subject: str) -> list[Path]:
    """The figures of one subject, from its results; none for subjects that have no figure."""
    return [plot(read(subject)) for plot in PLOTS.get(subject, ())]


def read(subject: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{subject}.json").read_text())["rows"]
    return rows


def time_per_matrix(rows: list[dict[str, Any]]) -> Path:
    chosen = [row for row in rows if row["type"] == "float32" and row["pass"] == "forward" and row["batch"] > 1]
    chosen = sorted(
        {row["n"]: row for row in sorted(chosen, key=lambda row: row["batch"])}.values(), key=lambda r: r["n"]
    )
    sizes = [row["n"] for row in chosen]

    def each(*names: str) -> list[float]:
        return [min(row[name]["median"] for name in names) / row["batch"] for row in chosen]

    with figures.style() as plt:
        figure, axis = plt.subplots(figsize=(6.4, 4.2))
        axis.loglog(sizes, each("torch 1", "torch 2"), "s-", color=figures.RED, label="torch.linalg.eigh")
        axis.loglog(sizes, each("ours 2"), "o-", color=figures.BLUE, label="eigengrad.eigh")
        axis.set_xticks(sizes, map(str, sizes))
        axis.minorticks_off()
        axis.set(
            xlabel="n",
            ylabel="microseconds for one n×n matrix",
            title="Eigenvalues and eigenvectors, float32, in batches",
        )
        axis.legend()
        return save(figure, "speed_eigh_time")


def factor_over_torch(rows: list[dict[str, Any]]) -> Path:
    kinds = {
        "large batches": (lambda row: row["batch"] > 16 or (row["batch"], row["n"]) in {(8, 256), (2, 512)}, "o-"),
        "small calls": (lambda row: row["batch"] <= 16 and (row["batch"], row["n"]) not in {(8, 256), (2, 512)}, "s--"),
    }
    with figures.style() as plt:
        figure, axis = plt.subplots(figsize=(6.4, 4.2))
        for kind, (belongs, marker) in kinds.items():
            for dtype, colour in (("float32", figures.BLUE), ("float64", figures.GREEN)):
                chosen = [r for r in rows if r["type"] == dtype and r["pass"] == "forward" and belongs(r)]
                points = sorted((row["n"], row["torch/ours"]) for row in chosen)
                axis.loglog(*zip(*points, strict=True), marker, color=colour, label=f"{dtype}, {kind}")
        axis.axhline(1, color=figures.INK, lw=1)
        sizes = sorted({row["n"] for row in rows})
        axis.set_xticks(sizes, map(str, sizes))
        axis.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        axis.minorticks_off()
        axis.set(
            xlabel="n", ylabel="times faster than torch.linalg.eigh", title="eigengrad.eigh over torch.linalg.eigh"
        )
        axis.legend()
        return save(figure, "speed_eigh_factor")


def layer_over_batch_norm(rows: list[dict[str, Any]]) -> Path:
    threads = max(row["threads"] for row in rows)
    with figures.style() as plt:
        shapes = list(dict.fromkeys(row["shape"] for row in rows))
        figure, axes = plt.subplots(1, len(shapes), figsize=(4.4 * len(shapes), 4.0), squeeze=False)
        for axis, shape in zip(axes[0], shapes, strict=True):
            for layout, colour in (("NCHW", figures.BLUE), ("channels_last", figures.GREEN)):
                chosen = [r for r in rows if (r["shape"], r["layout"], r["threads"]) == (shape, layout, threads)]
                points = sorted((row["d"], row["ours/batch norm"]) for row in chosen)
                axis.semilogx(*zip(*points, strict=True), "o-", color=colour, label=layout)
            axis.axhline(1, color=figures.INK, lw=1)
            axis.annotate("nn.BatchNorm2d", (axis.get_xlim()[0], 1), (4, -4), textcoords="offset points", va="top")
            sizes = sorted({row["d"] for row in rows})
            axis.set_xticks(sizes, map(str, sizes))
            axis.minorticks_off()
            axis.set_ylim(bottom=0)
            axis.set(xlabel="group size d", title=f"{shape}, {threads} thread{'s' * (threads > 1)}")
        axes[0][0].set_ylabel("time / batch norm, forward + backward")
        axes[0][0].legend(loc="lower right")
        return save(figure, "speed_whitening")


def save(figure: Any, name: str) -> Path:
    figures.save(figure, IMAGES, name)
    (IMAGES / f"{name}.svg").unlink()
    return IMAGES / f"{name}.png"


PLOTS = {"eigh": (time_per_matrix, factor_over_torch), "whitening": (layer_over_batch_norm,)}


if __name__ == "__main__":
    for name in PLOTS:
        for path in draw(name):
            print(path)
