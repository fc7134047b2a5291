"""Runs blocks of Python one after the other in one namespace: a program, started once for each tutorial.

Reads ``{"blocks": [code, …], "figures": folder, "name": prefix}`` as JSON from standard input. Writes a list with what
each block printed and the figures it drew, ``{"printed": text, "figures": [{"file": …, "alt": …}, …]}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

_STYLE: Any = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.figsize": (6.4, 3.4),
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "savefig.bbox": "tight",
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
}


def alternative_text(figure: Any) -> str:
    """What a figure shows, from its titles and the labels of its axes."""
    words = [figure.get_suptitle()]
    for axes in figure.axes:
        labels = [label for label in (axes.get_ylabel(), axes.get_xlabel()) if label]
        words += [axes.get_title(), " against ".join(labels)]
    words = list(dict.fromkeys(word.replace("\n", " ").replace("$", "") for word in words if word))
    return "; ".join(words)


def run(blocks: list[str], folder: Path, name: str) -> list[dict[str, Any]]:
    """Execute the blocks; figures that are open after one belong to it, and are closed."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    results, drawn = [], 0
    with mpl.rc_context(_STYLE):
        for number, block in enumerate(blocks, 1):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                exec(compile(block, f"{name}, block {number}", "exec"), namespace)
            figures = []
            for key in plt.get_fignums():
                drawn += 1
                figure = plt.figure(key)
                file = f"{name}-{drawn}.png"
                figure.savefig(folder / file)
                figures.append({"file": file, "alt": alternative_text(figure)})
            plt.close("all")
            results.append({"printed": printed.getvalue(), "figures": figures})
    return results


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    job = json.load(sys.stdin)
    json.dump(run(job["blocks"], Path(job["figures"]), job["name"]), sys.stdout)
