"""The gallery of image translation in docs/style_transfer.md, from the last checkpoint of a run.

    python benchmarks/translation_gallery.py RUN --photos DIR --paintings DIR [-o FILE] [--caption-in PAGE]

Writes pictures in rows of photograph, style and result, and prints what the caption has to say: steps, size, hours of
training. With --caption-in, the caption between the marks of that page is written as well. A run that is not finished
has a gallery too, and its caption says so.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import torch
from PIL import Image

from eigengrad.lab.style.images import read_picture
from eigengrad.lab.style.translation.apply import load_painter
from eigengrad.lab.style.translation.domains import centres, fitted

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- translation gallery: begin -->", "<!-- translation gallery: end -->"
COLUMNS, TILE, GAP = 8, 144, 4  # pictures a row; pixels


def newest(run: Path) -> Path:
    """The checkpoint of a run with the most steps: the one it is resumed from, or else its last weights."""
    steps = sorted(run.glob("step-*.pt"))
    return steps[-1] if steps else run / "last.pt"


def chosen(folder: Path, count: int, size: int) -> torch.Tensor:
    """The centres of pictures that lie evenly in a folder (N, 3, size, size), from -1 to 1."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".png"))
    paths = [paths[i * len(paths) // count] for i in range(count)]
    return centres([fitted(read_picture(path).pixels, size) for path in paths], size)


def sheet(rows: list[torch.Tensor]) -> Image.Image:
    """Rows of pictures (N, 3, H, W) from -1 to 1, each enlarged to a tile."""
    step = TILE + GAP
    picture = Image.new("RGB", (COLUMNS * step - GAP, len(rows) * step - GAP), "white")
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            pixels = image.add(1).mul(127.5).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
            picture.paste(Image.fromarray(pixels).resize((TILE, TILE), Image.Resampling.BICUBIC), (x * step, y * step))
    return picture


def caption(checkpoint: Path) -> str:
    """What was trained, how long, and how much of the run that is."""
    kept = torch.load(checkpoint, weights_only=True)
    settings = kept["settings"]
    done, all_steps = kept.get("step", settings["iterations"]), settings["iterations"]
    result = checkpoint.with_name("result.json")  # which a finished run has
    seconds = kept.get("seconds", 0.0) + kept.get("epoch_seconds", 0.0)
    seconds = seconds or (json.loads(result.read_text())["seconds"] if result.exists() else 0.0)
    part = "" if done >= all_steps else f" of {all_steps:,}"
    hours = f", {seconds / 3600:.1f} hours on a shared core" if seconds else ""
    pictures = "picture" if settings["batch_size"] == 1 else "pictures"
    return (
        f"Test photographs (top), paintings by {settings['domain_b'].capitalize()} (middle), and the photographs in "
        f"their style (bottom), by SVD-WCT of width {settings['width']} at {settings['image_size']} pixels after "
        f"{done:,}{part} steps of {settings['batch_size']} {pictures}{hours}."
    )


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--paintings", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, default=DOCS / "images/style/translate_96.jpg")
    parser.add_argument("--caption-in", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    checkpoint = newest(arguments.run)
    painter = load_painter(checkpoint)
    x, y = (chosen(folder, COLUMNS, painter.config.image_size) for folder in (arguments.photos, arguments.paintings))
    made = torch.cat([painter.translator.translate(a, b, to="b") for a, b in zip(x.split(1), y.split(1), strict=True)])
    sheet([x, y, made]).save(arguments.output, quality=88, optimize=True)
    words = caption(checkpoint)
    print(f"{arguments.output}\n{words}")
    if arguments.caption_in is not None:
        page = arguments.caption_in.read_text()
        address = arguments.output.resolve().relative_to(arguments.caption_in.resolve().parent).as_posix()
        alternative = "Photographs, paintings, and the photographs as a trained network paints them"
        block = f"{BEGIN}\n![{alternative}]({address})\n\n*{words}*\n{END}"
        page, count = re.subn(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.DOTALL)
        if not count:
            raise SystemExit(f"{arguments.caption_in}: expected the lines {BEGIN} and {END}")
        arguments.caption_in.write_text(page)


if __name__ == "__main__":
    main()
