"""Rows of pictures with their names: a figure of what networks paint."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from ..files import make_folder, write_atomically
from ..report import figures

__all__ = ["contact_sheet"]

#: Between pictures, in pixels of theirs.
_GAP = 1


def contact_sheet(rows: Mapping[str, Tensor | None], folder: Path, name: str) -> str:
    """Write ``name.png``: a row for each entry, (N, 3, H, W) from 0 to 1; ``None`` is a row that says "failed".

    In full colour, and without an SVG: these are pictures, not a drawing.
    """
    from PIL import Image

    shown = [images for images in rows.values() if images is not None]
    columns = min(len(images) for images in shown)
    size = shown[0].shape[-1]
    with figures.style() as plt:
        scale = max(1.0, 112 / size) * size / 100  # inches a picture, at 100 dots
        figure, axes = plt.subplots(
            len(rows),
            1,
            figsize=(columns * scale + 1.4, len(rows) * (scale + 0.04)),
            squeeze=False,
            gridspec_kw={"hspace": 0.0},
        )
        for axis, (label, images) in zip(axes[:, 0], rows.items(), strict=True):
            axis.set_axis_off()
            axis.set_xlim(0, columns * size)
            axis.set_ylim(size, 0)
            axis.text(-0.06 * size, size / 2, label, ha="right", va="center", fontsize=10)
            if images is None:
                axis.text(columns * size / 2, size / 2, "failed", ha="center", va="center", color=figures.RED)
                continue
            for column, image in enumerate(images[:columns].clamp(0, 1).permute(0, 2, 3, 1).numpy()):
                left = column * size
                axis.imshow(image, interpolation="nearest", extent=(left, left + size - _GAP, size, _GAP))
            axis.set_xlim(0, columns * size)
            axis.set_ylim(size, 0)
        pixels = io.BytesIO()
        figure.savefig(pixels, format="png", dpi=100, facecolor="white")
        plt.close(figure)
    packed = io.BytesIO()
    with Image.open(pixels) as image:
        image.convert("RGB").save(packed, "PNG", optimize=True)
    make_folder(folder)
    write_atomically(folder / f"{name}.png", packed.getbuffer())
    return name
