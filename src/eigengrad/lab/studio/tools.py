"""The tools of the studio, each as a function of files and options that a worker process calls.

They do what the commands of the same names do, with the same functions, so that a picture is the same byte for byte.
To give a tool an option that its function has gained, add a line to its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Option, Slot

if TYPE_CHECKING:
    from ..style.images import Picture

__all__ = ["MOST_PIXELS", "PREVIEW", "TOOLS", "Tool", "inspect", "require_inputs"]

#: Pixels of a picture: about 1.3 GB of memory at work.
MOST_PIXELS = 64_000_000
#: Pixels along the longer side of what the page shows.
PREVIEW = 1400

Files = Mapping[str, Sequence[Path]]
#: Is told the share that is done, and what is being done.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Tool:
    """What a tab of the page does.

    Args:
        name: in requests, and of the command.
        title: of the tab.
        lead: under the title.
        slots: for files.
        options: beside them.
        run: makes a result, a dictionary for JSON, in a folder. Its "file" and "preview" are names of files there.
    """

    name: str
    title: str
    lead: str
    slots: tuple[Slot, ...]
    options: tuple[Option, ...]
    run: Callable[[Files, dict[str, Any], Path, Progress], dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """For the page."""
        return {
            "name": self.name,
            "title": self.title,
            "lead": self.lead,
            "slots": [slot.to_dict() for slot in self.slots],
            "options": [option.to_dict() for option in self.options],
        }


def require_inputs(tool: Tool, files: Mapping[str, Sequence[Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with defaults in place of those that are missing, after files and options were checked.

    Raises:
        ValueError: names the slot or the option.
    """
    unknown = sorted({*files} - {slot.name for slot in tool.slots})
    unknown += sorted({*options} - {option.name for option in tool.options})
    if unknown:
        raise ValueError(f"{tool.title} has no {unknown[0][:80]}")
    for slot in tool.slots:
        count = len(files.get(slot.name, ()))
        if not slot.least <= count <= slot.most:
            expected = str(slot.most) if slot.least == slot.most else f"{slot.least} to {slot.most}"
            raise ValueError(f"{slot.label}: got {count} files; expected {expected}")
    return {option.name: option.checked(options.get(option.name, option.default)) for option in tool.options}


def inspect(path: Path, folder: Path) -> dict[str, Any]:
    """Read a picture and write what the page shows of it.

    Raises:
        PictureError: if it cannot be read, or is too large.
    """
    from ..style.images import PictureError, read_picture

    width, height = _declared_size(path)
    if width * height > MOST_PIXELS:
        raise PictureError(
            f"{path}: has {width}×{height} pixels; the studio takes up to {MOST_PIXELS // 1_000_000} million. "
            "The command line takes more"
        )
    picture = read_picture(path)
    height, width = picture.size
    return {"width": width, "height": height, "preview": _write_preview(picture, folder)}


def _declared_size(path: Path) -> tuple[int, int]:
    """Width and height as the header of a file declares them; 0 by 0 for what ``read_picture`` will explain."""
    from PIL import Image

    from ..style.images import FORMATS

    try:
        with Image.open(path, formats=FORMATS) as image:
            return int(image.width), int(image.height)
    except Exception:  # of any kind, as Pillow's decoders raise them
        return 0, 0


def _write_preview(picture: Picture, folder: Path) -> str:
    """Write a picture at the size of the page; the name of the file."""
    from ..style.images import write_picture

    small = picture.scaled(PREVIEW) if max(picture.size) > PREVIEW else picture
    name = "preview.jpg" if picture.alpha is None else "preview.png"
    write_picture(small, folder / name)
    return name


def _finished(picture: Picture, folder: Path) -> dict[str, Any]:
    """Write a result as the commands do, and its preview."""
    from ..style.images import write_picture

    write_picture(picture, folder / "result.png")
    height, width = picture.size
    return {"file": "result.png", "width": width, "height": height, "preview": _write_preview(picture, folder)}


def _color(files: Files, options: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    from ..style.color import Palette, transfer_colors
    from ..style.images import read_mask, read_picture

    progress(0.0, "reading")
    picture, source = (read_picture(files[slot][0]) for slot in ("content", "palette"))
    mask = read_mask(files["mask"][0], picture.size) if files.get("mask") else None
    colours = Palette.of(source, space=options.pop("space"))
    made = transfer_colors(picture, colours, mask=mask, progress=lambda share: progress(share, "colouring"), **options)
    progress(1.0, "writing")
    return _finished(made, folder)


def _stylize(files: Files, options: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    from ..style.images import read_mask, read_picture
    from ..style.painting import Source, paint
    from ..style.weights import load_codec

    progress(0.0, "reading")
    codec = load_codec()
    levels = sorted(codec.levels, reverse=True)
    picture, size = read_picture(files["content"][0]), options.pop("size")
    picture = picture.scaled(int(size)) if size else picture
    mask = read_mask(files["mask"][0], picture.size) if files.get("mask") else None
    sources = [Source(read_picture(path), mask=mask) for path in files["styles"]]
    smooth = not options.pop("fast")
    progress(0.0, "looking at the styles")
    options["progress"] = lambda share: progress(share, "painting")
    made = paint(picture, sources, codec, levels, smooth=smooth, **options)
    progress(1.0, "writing")
    return _finished(made, folder)


def _doctor(files: Files, options: dict[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    from ... import diagnose, kernels
    from ..matrices import read_matrices

    progress(0.0, "looking at the spectrum")
    with kernels.disable():
        found = diagnose(read_matrices(files["matrix"][0], options["key"] or None))
    return {"diagnosis": found.to_dict(), "title": found.title, "text": str(found)}


_PHOTO = Slot("content", "Photograph")
_MASK = Slot("mask", "Where", least=0, kind="mask")

TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "color",
            "Colour",
            "A photograph in the colours of another picture: the mean and the covariance of its pixels.",
            (_PHOTO, Slot("palette", "Colours of"), _MASK),
            (
                Option(
                    "strength",
                    "Strength",
                    1.0,
                    "0 changes nothing, 1 is the full transfer, more exaggerates it.",
                    high=1.5,
                    flag="--strength",
                ),
                Option(
                    "space",
                    "Colour space",
                    "rgb",
                    "Lab keeps lightness and colour apart.",
                    choices=(("rgb", "RGB"), ("lab", "Lab")),
                    flag="--space",
                ),
            ),
            _color,
        ),
        Tool(
            "stylize",
            "Style",
            "A photograph in the style of one or more pictures: the statistics of their features, level by level.",
            (_PHOTO, Slot("styles", "Style of", most=6), _MASK),
            (
                # Whatever is not taken out in _stylize goes to the function `paint` under its name.
                Option("strength", "Strength", 1.0, "0 is the photograph, 1 the full transfer.", flag="--strength"),
                Option("strokes", "Strokes", 0.5, "How much is painted with patches of the style.", flag="--strokes"),
                Option("detail", "Detail", 0.7, "How much detail of the photograph is kept.", flag="--detail"),
                Option(
                    "style_size",
                    "Stroke size",
                    0.5,
                    "How large the style is beside the photograph: smaller makes finer strokes.",
                    low=0.1,
                    high=2.0,
                    flag="--style-size",
                ),
                Option("keep_colors", "Keep colours", False, "Transfer light and dark only.", flag="--keep-colors"),
                Option(
                    "size",
                    "Size of the result",
                    "",
                    "Pixels along the longer side; a small one first is quick.",
                    choices=(("", "full"), ("512", "512"), ("1024", "1024"), ("2048", "2048")),
                    flag="--size",
                ),
                Option("fast", "Fast", False, "Half the time, with traces of the decoders' grid.", flag="--fast"),
            ),
            _stylize,
        ),
        Tool(
            "doctor",
            "Doctor",
            "A matrix, or a batch of them, that a network differentiates through: a .pt of torch.save or a .npy of "
            "numpy.save. Nothing in the file is executed.",
            (Slot("matrix", "Matrix", kind="matrix"),),
            (Option("key", "Key", "", "Which tensor, if the file has several: layer.weight.", flag="--key"),),
            _doctor,
        ),
    )
}
