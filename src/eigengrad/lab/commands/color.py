"""``eigengrad color``: a picture in the colours of another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import complain, conclude, explained, progress_bar, say
from .threads import Threads, limit_threads

if TYPE_CHECKING:
    from ..style.batch import Job

__all__ = ["color"]


def color(
    content: Annotated[Path, typer.Argument(help="A picture, or a folder of them.", show_default=False)],
    palette: Annotated[Path, typer.Argument(help="The picture whose colours are wanted.", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write; a folder, if CONTENT is one.", show_default=False)
    ],
    space: Annotated[str, typer.Option(help="Colour space to work in: rgb or lab.")] = "rgb",
    strength: Annotated[
        float, typer.Option(min=0.0, help="0 changes nothing, 1 is the full transfer, more exaggerates it.")
    ] = 1.0,
    mask: Annotated[
        Path | None,
        typer.Option(help="Grey picture that is white where CONTENT may change, and counts.", show_default=False),
    ] = None,
    palette_mask: Annotated[
        Path | None, typer.Option(help="Grey picture that is white where PALETTE counts.", show_default=False)
    ] = None,
    threads: Threads = None,
) -> None:
    """Give a picture the colours of another.

    Its pixels get the mean and covariance of the other's, by whitening and colouring. Any size, 8 or 16 bits a channel;
    transparency is kept, and what is transparent does not count. Colours that a screen cannot show are brought back
    along their hue. A picture that cannot be read is named, and the others are done.

    **Examples**

    ```
    eigengrad color photo.jpg palette.jpg -o out.png
    eigengrad color photo.jpg sunset.jpg -o out.png --space lab --strength 0.7 --mask sky.png
    eigengrad color photos/ palette.jpg -o recoloured/
    ```
    """
    with explained():
        from ..style.batch import jobs, run
        from ..style.color import Palette, transfer_colors
        from ..style.images import read_mask, read_picture, refuse_output, write_picture

        limit_threads(threads)
        others = [path for path in (palette, mask, palette_mask) if path is not None]
        planned = jobs(content, output, others)
        inputs = [*others, *(job.content for job in planned)]
        source = read_picture(palette)
        weights = None if palette_mask is None else read_mask(palette_mask, source.size)
        try:
            colours = Palette.of(source, space=space, mask=weights)
        except ValueError as error:
            raise ValueError(f"{palette}: {error}") from error

        def work(job: Job) -> None:
            picture = read_picture(job.content)
            refuse_output(job.output, inputs, transparent=picture.alpha is not None)
            where = None if mask is None else read_mask(mask, picture.size)
            with progress_bar(job.content.name) as progress:
                result = transfer_colors(picture, colours, strength=strength, mask=where, progress=progress)
            write_picture(result, job.output, inputs=inputs)
            say(f"{job.content} → {job.output}")

        failed = run(work, planned, complain)
    conclude(failed, len(planned), output)
