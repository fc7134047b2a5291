"""How every figure looks, and how it is written: a PNG to show and an SVG to print."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREEN", "GREY", "INK", "ORANGE", "PINK", "RED", "SEQUENCE", "TEAL", "YELLOW", "save", "style"]

# Okabe and Ito's colours, which people who do not see red or green can tell apart.
INK, GREY = "#222222", "#8a8a8a"
RED, BLUE, GREEN, ORANGE = "#d55e00", "#0072b2", "#009e73", "#e69f00"
TEAL, PINK, YELLOW = "#56b4e9", "#cc79a7", "#c9b700"

#: From dark to light, for curves that have an order (thresholds, degrees).
SEQUENCE = ("#0b2a4a", "#0072b2", "#2f9fd0", "#74c0e0", "#b3dcef")

_STYLE: Any = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#555555",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 2.0,
    "text.color": INK,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    # Letters as outlines: the file looks the same where the font does not exist.
    "svg.fonttype": "path",
    # No time stamp and no random ids, so a figure drawn twice is the same file.
    "svg.hashsalt": "eigengrad",
}


@contextmanager
def style() -> Iterator[Any]:
    """``matplotlib.pyplot`` with the style of the report, drawing to files only."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(_STYLE):
        yield plt


def save(figure: Figure, directory: Path, name: str) -> str:
    """Write ``name.png`` and ``name.svg`` into ``directory``, close the figure, and return the name."""
    import matplotlib.pyplot as plt
    from PIL import Image

    make_folder(directory)
    drawing, pixels = io.BytesIO(), io.BytesIO()
    figure.savefig(drawing, format="svg", dpi=120, facecolor="white", metadata={"Date": None})
    figure.savefig(pixels, format="png", dpi=130, facecolor="white")
    plt.close(figure)
    packed = io.BytesIO()
    with Image.open(pixels) as image:  # 256 colours are enough for a drawing, and a third of the file
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    write_atomically(directory / f"{name}.svg", drawing.getbuffer())
    write_atomically(directory / f"{name}.png", packed.getbuffer())
    return name
