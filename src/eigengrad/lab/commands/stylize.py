"""``eigengrad stylize``: pictures in the style of others; and ``eigengrad stylize train-codec``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from .terminal import complain, conclude, duration, explained, progress_bar, say
from .threads import Threads, limit_threads

if TYPE_CHECKING:
    from ..style.batch import Job
    from ..style.codec import Codec
    from ..style.images import Picture

__all__ = ["stylize"]

_STYLES, _TRANSFER, _SIZE = "The styles", "The transfer", "Size and speed"


class _ApplyByDefault(TyperGroup):
    """``eigengrad stylize photo painting`` is ``eigengrad stylize apply photo painting``; so is its ``--help``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            args = ["apply", *args]
        return super().parse_args(ctx, args)


stylize = typer.Typer(
    name="stylize",
    cls=_ApplyByDefault,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    help="Give pictures the style of others: `eigengrad stylize photo.jpg painting.jpg -o out.png`.",
)


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


@stylize.command()
def apply(
    content: Annotated[Path, typer.Argument(help="A picture, or a folder of them.", show_default=False)],
    styles: Annotated[
        list[Path],
        typer.Argument(
            help="Pictures, or folders of them, whose style is wanted.", metavar="STYLE...", show_default=False
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="File to write; a folder, if there will be several.", show_default=False),
    ],
    blend: Annotated[
        str | None, _option("Shares of the styles, such as 3,1. Default: equal.", _STYLES, show_default=False)
    ] = None,
    mask: Annotated[
        list[Path] | None,
        _option("White where a style goes; once for each style, in their order.", _STYLES, show_default=False),
    ] = None,
    each: Annotated[
        bool, _option("A picture for every style, instead of one of all blended.", _STYLES, "--each")
    ] = False,
    weights: Annotated[
        Path | None,
        _option(
            "Folder of encoders and decoders. Default: the small ones that come with eigengrad.",
            _TRANSFER,
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    strength: Annotated[float, _option("0 is the photograph, 1 the full transfer.", _TRANSFER, min=0.0, max=1.0)] = 1.0,
    strokes: Annotated[
        float, _option("How much is painted with patches of the styles themselves.", _TRANSFER, min=0.0, max=1.0)
    ] = 0.5,
    detail: Annotated[float, _option("How much detail of the photograph is kept.", _TRANSFER, min=0.0, max=1.0)] = 0.7,
    keep_colors: Annotated[bool, _option("Transfer light and dark only.", _TRANSFER, "--keep-colors")] = False,
    levels: Annotated[
        str | None,
        _option(
            "Levels in their order, such as 5,4,3,2,1. Default: all, deep to shallow.", _TRANSFER, show_default=False
        ),
    ] = None,
    groups: Annotated[int, _option("Groups of channels, between which nothing is transferred.", _TRANSFER)] = 1,
    size: Annotated[
        int | None, _option("Scale the content to so many pixels along its longer side.", _SIZE, show_default=False)
    ] = None,
    style_size: Annotated[
        float,
        _option("How large the styles are beside the content: smaller makes finer strokes.", _SIZE, min=0.01, max=10.0),
    ] = 0.5,
    canvas: Annotated[int, _option("Pixels along the longer side at which it is painted.", _SIZE, min=64)] = 768,
    fast: Annotated[
        bool, _option("Half the time or less, with traces of the decoders' grid.", _SIZE, "--fast")
    ] = False,
    tile: Annotated[
        int, _option("Pixels a side worked on at once: a matter of memory, not of the result.", _SIZE, min=64)
    ] = 1024,
    threads: Threads = None,
) -> None:
    """Give pictures the style of others: colours, contrast and texture.

    The features of a picture get the mean and covariance of the style's, and some of its patches, at one level after
    the other; then what they could not hold of the photograph is put back. Nothing in it is random: the same command
    makes the same picture. A picture that cannot be read is named, and the others are done. `eigengrad stylize
    train-codec` makes encoders and decoders for it.

    **Examples**

    ```
    eigengrad stylize photo.jpg painting.jpg -o out.png
    eigengrad stylize photo.jpg painting.jpg -o out.png --strokes 0.8 --style-size 0.25 --keep-colors
    eigengrad stylize photo.jpg painting.jpg -o out.png --weights DIR --levels 5,4,3,2,1 --detail 1
    eigengrad stylize photo.jpg monet.jpg hokusai.jpg -o out.png --blend 3,1
    eigengrad stylize photo.jpg monet.jpg hokusai.jpg -o out.png --mask sky.png --mask land.png
    eigengrad stylize photos/ paintings/ -o out/ --each
    ```
    """
    with explained():
        from ..style.batch import distinct_names, jobs, paired_names, run
        from ..style.images import read_mask, read_picture, refuse_output, write_picture
        from ..style.painting import Source, paint
        from ..style.stylize import require_levels
        from ..style.weights import SHIPPED, load_codec

        limit_threads(threads)
        if each and output.suffix and not output.is_dir():
            raise ValueError(f"--each: makes several pictures, so -o must be a folder; got {output}")
        codec = load_codec(weights or SHIPPED)
        chosen = _levels(levels, codec)
        require_levels(codec, chosen, groups)
        paths, optional = _style_files(styles)
        shares = _shares(blend, len(paths))
        masks = list(mask or [])
        if masks and len(masks) != len(paths):
            raise ValueError(f"--mask: expected one for each of the {len(paths)} styles; got {len(masks)}")
        inputs = [*paths, *masks]
        target = output / content.with_suffix(".png").name if each and not content.is_dir() else output
        planned = jobs(content, target, inputs)
        found: list[int] = []
        broken = 0
        for index, path in enumerate(paths):
            try:
                _style(path)
                found.append(index)
            except (OSError, ValueError) as error:
                if path not in optional:
                    raise
                complain(str(error) if str(path) in str(error) else f"{path}: {error}")
                broken += 1
        if not found:
            raise ValueError("none of the styles can be used")
        protected, names = [*inputs, *(job.content for job in planned)], distinct_names(paths)
        pairs = paired_names([job.output.stem for job in planned], names)

        def work(job: Job) -> None:
            start = time.perf_counter()
            picture = read_picture(job.content)
            picture = picture if size is None else picture.scaled(size)
            for chosen_styles in [[index] for index in found] if each else [found]:
                name = job.output
                if each:
                    name = name.with_name(f"{pairs[name.stem, names[chosen_styles[0]]]}{name.suffix}")
                refuse_output(name, protected, transparent=picture.alpha is not None)
                sources = [  # read again for each: a folder of them might not fit into memory
                    Source(
                        _style(paths[index]),
                        shares[index],
                        read_mask(masks[index], picture.size) if masks else None,
                    )
                    for index in chosen_styles
                ]
                with progress_bar(name.name) as progress:
                    result = paint(
                        picture,
                        sources,
                        codec,
                        chosen,
                        strength=strength,
                        strokes=strokes,
                        detail=detail,
                        style_size=style_size,
                        keep_colors=keep_colors,
                        canvas=canvas,
                        groups=groups,
                        smooth=not fast,
                        tile=tile,
                        progress=progress,
                    )
                write_picture(result, name, inputs=protected)
                say(f"{job.content} → {name} ({duration(time.perf_counter() - start)})")

        failed = run(work, planned, complain)
    conclude(failed, len(planned), output, broken=bool(broken))


@stylize.command()
def train_codec(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the weights.", show_default=False)],
    seed: Annotated[int, typer.Option(help="Of what is random: patches, and where searches start.")] = 0,
    threads: Threads = None,
) -> None:
    """Make the small encoders and decoders that come with eigengrad, from freely licensed pictures.

    The pictures are in the packages scikit-image and scikit-learn: nothing is downloaded. It takes less than a minute;
    what comes with eigengrad was made with the defaults.

    **Example**

    ```
    eigengrad stylize train-codec -o codec/
    eigengrad stylize photo.jpg painting.jpg -o out.png --weights codec/
    ```
    """
    with explained():
        from ..style.codec_training import train_codec as train

        limit_threads(threads)
        start = time.perf_counter()
        train(output, seed=seed, progress=say)
        say(f"written to {output} ({duration(time.perf_counter() - start)})")


def _levels(text: str | None, codec: Codec) -> list[int]:
    """The levels to work on: those asked for, or all from deep to shallow."""
    if text is None:
        return sorted(codec.levels, reverse=True)
    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--levels: expected numbers with commas between them, such as 3,2,1; got {text!r}") from None
    for level in levels:
        codec.require(level)
    return levels


def _shares(text: str | None, count: int) -> list[float]:
    """The share of each style."""
    if text is None:
        return [1.0] * count
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--blend: expected numbers with commas between them, such as 3,1; got {text!r}") from None
    if len(shares) != count or not all(0 < share < float("inf") for share in shares):
        raise ValueError(f"--blend: expected a positive number for each of the {count} styles; got {text!r}")
    return [share / max(shares) for share in shares]


def _style_files(styles: list[Path]) -> tuple[list[Path], set[Path]]:
    """The files of the styles, and those of them found in a folder, which may be left out if they are damaged."""
    from ..style.images import PictureError, find_pictures

    files: list[Path] = []
    optional: set[Path] = set()
    for path in styles:
        if path.is_dir():
            found = find_pictures(path)
            if not found:
                raise PictureError(f"{path}: there are no pictures in this folder")
            optional.update(found)
            files += found
        else:
            files.append(path)
    return files, optional


def _style(path: Path) -> Picture:
    """The picture of a style, which must have something to show."""
    from ..style.images import PictureError, read_picture
    from ..style.stylize import UnfitPictureError, require_opaque

    picture = read_picture(path)
    try:
        require_opaque(picture)
    except UnfitPictureError as error:
        raise PictureError(f"{path}: {error}") from error
    return picture
