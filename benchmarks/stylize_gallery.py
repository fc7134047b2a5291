"""The pictures of ``eigengrad stylize`` in the documentation: photographs of scikit-image and scikit-learn, painted.

    python benchmarks/stylize_gallery.py ARTWORKS WEIGHTS [-o FOLDER] [--only NAME ...]

ARTWORKS holds ``train/ARTIST/*.jpg``; WEIGHTS holds a folder for each of two codecs that others have trained. The file
names of both are below. Takes ten minutes; pictures go to docs/images/style.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_image

from eigengrad.lab.style.codec import Codec
from eigengrad.lab.style.images import Picture, read_picture
from eigengrad.lab.style.painting import Source, paint
from eigengrad.lab.style.weights import load_codec

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images" / "style"
GAP = 4  # pixels
PAINTINGS = ("vangogh_0066", "ukiyoe_0064", "monet_0072", "monet_0122", "cezanne_0012", "vangogh_0124")
CODECS = ("vgg19_normalised_conv1-3", "wct_small16x_5level")
PHOTOGRAPHS: dict[str, Callable[[], np.ndarray]] = {
    "astronaut": data.astronaut,
    "cat": data.chelsea,
    "coffee": data.coffee,
    "rocket": data.rocket,
    "china": lambda: load_sample_image("china.jpg"),
    "flower": lambda: load_sample_image("flower.jpg"),
}


class Gallery:
    """What the pictures are made of.

    Args:
        artworks: a folder with the paintings.
        weights: a folder with the codecs of others.
    """

    def __init__(self, artworks: Path, weights: Path) -> None:
        self.photos = {name: _picture(load()) for name, load in PHOTOGRAPHS.items()}
        self.paintings = [read_picture(artworks / "train" / name[:-5] / f"{name}.jpg") for name in PAINTINGS]
        self.codec, self.others = load_codec(), [load_codec(weights / name) for name in CODECS]

    def painted(self, photo: str, *styles: int, codec: Codec | None = None, **options: Any) -> Picture:
        """A photograph in the style of paintings, by their number."""
        codec, masks = codec or self.codec, options.pop("masks", [None] * len(styles))
        sources = [Source(self.paintings[i], mask=mask) for i, mask in zip(styles, masks, strict=True)]
        return paint(self.photos[photo], sources, codec, sorted(codec.levels, reverse=True), **options)

    def contact_sheet(self) -> Image.Image:
        """Each photograph in the style of each painting."""
        rows: list[list[Picture | None]] = [[None, *self.paintings]]
        for name, photo in self.photos.items():
            rows.append([photo, *(self.painted(name, i) for i in range(len(PAINTINGS)))])
        return _sheet(rows, 190)

    def before_after(self) -> Image.Image:
        """Photographs; with statistics alone; as the command makes them."""
        pairs = [("astronaut", 1), ("cat", 0), ("china", 4)]
        plain = [self.painted(*pair, strength=0.6, strokes=0.0, detail=0.0) for pair in pairs]
        return _sheet([[self.photos[name] for name, _ in pairs], plain, [self.painted(*pair) for pair in pairs]], 300)

    def strength(self) -> Image.Image:
        """Four strengths."""
        return _sheet([[self.painted("coffee", 1, strength=strength) for strength in (0.0, 0.35, 0.7, 1.0)]], 260)

    def options(self) -> Image.Image:
        """What other options do."""
        options = [{"strokes": 0.0}, {"strokes": 1.0}, {"style_size": 1.5, "strokes": 0.7}, {"keep_colors": True}]
        return _sheet([[self.painted("cat", 0, **each) for each in options]], 260)

    def several(self) -> Image.Image:
        """A mask, two styles in their places, and two styles blended."""
        height, width = self.photos["cat"].size
        mask = torch.linspace(-1, 2, width).clamp(0, 1).expand(height, width)
        masked = self.painted("cat", 1, 5, masks=[mask, 1 - mask])
        return _sheet([[Picture(mask.expand(3, -1, -1)), masked, self.painted("cat", 1, 5)]], 260)

    def stylize_cat(self) -> Image.Image:
        """One photograph and four paintings of it."""
        return _sheet([[self.photos["cat"], *(self.painted("cat", i) for i in (0, 1, 2, 5))]], 240)

    def weights_hokusai(self) -> Image.Image:
        """The style, and a photograph in it by three codecs."""
        return self._codecs("astronaut", 1)

    def weights_vangogh(self) -> Image.Image:
        """The same for another style."""
        return self._codecs("china", 0)

    def _codecs(self, photo: str, style: int) -> Image.Image:
        made = [self.painted(photo, style, codec=codec) for codec in (self.codec, *self.others)]
        return _sheet([[self.paintings[style], *made]], 260)


PICTURES = [name for name, value in vars(Gallery).items() if callable(value) and name[0] != "_" and name != "painted"]


def _picture(pixels: np.ndarray) -> Picture:
    return Picture(torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255)


def _sheet(rows: Sequence[Sequence[Picture | None]], side: int) -> Image.Image:
    """The centres of pictures in rows, ``side`` pixels each."""
    step = side + GAP
    sheet = Image.new("RGB", (step * len(rows[0]) - GAP, step * len(rows) - GAP), "white")
    for (row, pictures), column in itertools.product(enumerate(rows), range(len(rows[0]))):
        picture = pictures[column]
        if picture is not None:
            image = Image.fromarray((picture.pixels * 255).round().byte().permute(1, 2, 0).numpy())
            edge = min(image.size)
            left, top = (image.width - edge) // 2, (image.height - edge) // 2
            square = image.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.LANCZOS)
            sheet.paste(square, (column * step, row * step))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artworks", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=FOLDER)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=PICTURES)
    arguments = parser.parse_args()
    gallery = Gallery(arguments.artworks, arguments.weights)
    for name in arguments.only:
        path = arguments.output / f"{name}.jpg"
        getattr(gallery, name)().save(path, quality=88, optimize=True)
        print(f"written: {path}", flush=True)


if __name__ == "__main__":
    main()
