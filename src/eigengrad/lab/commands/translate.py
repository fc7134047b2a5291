"""``eigengrad translate``: train a network that paints, and let it paint."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .run_options import (
    DATA,
    NETWORK,
    RUN,
    SCHEDULE,
    DryRun,
    Fresh,
    Out,
    Precision,
    Threads,
    folder,
    option,
    require_success,
)
from .step_time import step_time
from .terminal import complain, conclude, duration, explained, say
from .threads import Threads as ApplyThreads
from .threads import limit_threads

if TYPE_CHECKING:
    from ..style.batch import Job
    from ..style.images import Picture
    from ..style.translation import TranslationConfig

__all__ = ["translate"]

translate = typer.Typer(
    no_args_is_help=True,
    help="Photographs into paintings: train a network (`train`), and let it paint (`apply`).",
    rich_markup_mode="markdown",
)

_WCT = "Whitening and colouring"


@translate.command()
def train(
    domain_a: Annotated[Path, option("Folder with pictures of the one domain, such as photographs.", DATA)],
    domain_b: Annotated[Path, option("Folder with pictures of the other, such as paintings.", DATA)],
    image_size: Annotated[int | None, option("Side of the pictures in pixels. Paper: 216.", DATA)] = None,
    wct: Annotated[
        str | None,
        option("svd (Taylor; the default), exact (ours), clip, pi (power iteration), gd (learned).", _WCT),
    ] = None,
    group_size: Annotated[int | None, option("Channels decorrelated together. Paper: 32.", _WCT)] = None,
    degree: Annotated[int | None, option("K of svd. Paper: 9.", _WCT)] = None,
    eps: Annotated[float | None, option("ε, added to the covariances. Paper: 0.01.", _WCT)] = None,
    width: Annotated[
        int | None, option("Channels of the first layer; the features have 4 times as many. Paper: 64.", NETWORK)
    ] = None,
    critic_width: Annotated[int | None, option("The same of the discriminators. Paper: 64.", NETWORK)] = None,
    blocks: Annotated[int | None, option("Residual blocks of encoder and generator. Paper: 4.", NETWORK)] = None,
    style_reductions: Annotated[
        int | None, option("Halvings of the map of the style. Paper: 2; fewer for small pictures.", NETWORK)
    ] = None,
    iterations: Annotated[int | None, option("Steps. Paper: 200,000.", SCHEDULE)] = None,
    batch_size: Annotated[int | None, option("Pictures of each domain a step. Paper: 4.", SCHEDULE)] = None,
    lr: Annotated[float | None, option("Learning rate of Adam. Paper: 0.0001.", SCHEDULE)] = None,
    decay_from: Annotated[int | None, option("Steps until the learning rate falls: 100,000.", SCHEDULE)] = None,
    decay_every: Annotated[int | None, option("Then it is halved every so many. Paper: 10,000.", SCHEDULE)] = None,
    evaluate_every: Annotated[int | None, option("Steps between two evaluations and samples.", SCHEDULE)] = None,
    precision: Precision = None,
    seed: Annotated[int | None, option("Of weights and order.", RUN)] = None,
    threads: Threads = None,
    out: Out = None,
    checkpoint_steps: Annotated[
        int | None, option("Also save every so many steps, besides every evaluation.", RUN, min=1)
    ] = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
) -> None:
    """Train a translation between two folders of pictures, which need not belong together.

    What you do not give is the paper's: its network at 216 pixels, 200,000 steps, for a GPU. Pictures to test with are
    those of ../test/NAME if a folder is …/train/NAME; otherwise one in ten is kept for that. Pictures that cannot be
    read are named and left out.

    A run writes result.json, weights, and curves and samples for TensorBoard to its folder. Interrupt it at any time:
    the same command continues it. Several GPUs: accelerate launch -m eigengrad.lab.cli translate train …

    **Examples**

    ```
    eigengrad translate train --domain-a photos/ --domain-b paintings/ --wct svd
    eigengrad translate train --domain-a photos/ --domain-b paintings/ --image-size 64 --width 16 --wct exact
    ```
    """
    options = {
        name: value for name, value in locals().items() if name not in ("out", "fresh", "dry_run", "checkpoint_steps")
    }
    with explained(options):
        config = _config({name: value for name, value in options.items() if value is not None})
        directory = folder(out, config.key())
        if dry_run:
            _plan(config, directory)
        else:
            _train(config, directory, fresh, checkpoint_steps)


def _config(given: dict[str, Any]) -> TranslationConfig:
    from ..data import digest
    from ..style.translation import TranslationConfig
    from ..style.translation.domains import test_folder

    for which in ("a", "b"):
        pictures = given[f"domain_{which}"]
        if not pictures.is_dir():
            raise NotADirectoryError(f"--domain-{which}: {pictures} is not a folder; expected one with pictures")
        pictures = pictures.resolve()
        given |= {f"domain_{which}": pictures.name or "root", f"folder_{which}": str(pictures)}
    folders = [Path(given[f"folder_{which}"]) for which in ("a", "b")]
    tests = [tested for folder in folders if (tested := test_folder(folder)) is not None]
    return TranslationConfig(**given, data_digest=digest(*folders, *tests))


def _train(config: TranslationConfig, directory: Path, fresh: bool, checkpoint_steps: int | None) -> None:
    from ..style.translation import train as run

    say(f"{config.key()} in {directory}")
    result = run(config, directory, resume=not fresh, checkpoint_steps=checkpoint_steps)
    require_success(result, directory)
    say(
        f"{result.steps:,} steps in {duration(result.seconds)}; test pictures come back from the other domain with a "
        f"mean error of {100 * (result.last_error or 0):.1f} % of the range. Written to {directory}"
    )


def _plan(config: TranslationConfig, directory: Path) -> None:
    """Load the pictures, build the networks, and time a step."""
    from ..style.translation import Translation
    from ..training import Engine, run_context

    with run_context(config):
        engine = Engine(config.precision)
        task = Translation(config, engine)
        step, trouble = step_time(task, engine)
    for name, value in config.hash_fields().items():
        say(f"  {name:<21} {value}")
    say(f"  folder                {directory}")
    say(
        f"{config.iterations:,} steps; {len(task.a.train)} and {len(task.b.train)} pictures to train with, "
        f"{len(task.a.test)} and {len(task.b.test)} to test. A step takes {1e3 * step:.0f} ms here.\n"
        f"estimated time: {duration(config.iterations * step)}.{trouble} Nothing was written."
    )


@translate.command()
def apply(
    content: Annotated[Path, typer.Argument(help="A picture, or a folder of them.", show_default=False)],
    checkpoint: Annotated[
        Path, typer.Option(help="Folder of a run of `eigengrad translate train`.", show_default=False)
    ],
    style: Annotated[
        Path,
        typer.Option(help="A picture of the domain to paint as; or a folder, taken in turn.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File to write; a folder, if CONTENT is one.", show_default=False)
    ],
    to: Annotated[str, typer.Option(help="The domain to paint as: b, or a for the way back.")] = "b",
    size: Annotated[
        int | None,
        typer.Option(help="Shorter side of the result in pixels. Default: that of the training.", show_default=False),
    ] = None,
    threads: ApplyThreads = None,
) -> None:
    """Paint pictures in the style of others, with a network that was trained.

    Pictures that cannot be read, of the content or of the style, are named, and the others are done.

    **Examples**

    ```
    eigengrad translate apply photos/ --checkpoint results/runs/photo-vangogh-svd-s0-… --style painting.jpg -o out/
    eigengrad translate apply photo.jpg --checkpoint RUN --style paintings/ -o out.png --size 216
    ```
    """
    with explained():
        from ..style.batch import jobs, run
        from ..style.images import PictureError, read_picture, refuse_output, write_picture
        from ..style.translation.apply import load_painter

        limit_threads(threads)
        painter = load_painter(checkpoint)
        painter.check(to, size)
        styles, broken = _styles(style)
        planned = jobs(content, output, [path for path, _ in styles])
        if not styles:
            raise PictureError(f"{style}: no picture of the style can be read")
        turn = itertools.cycle(styles)
        inputs = [*(job.content for job in planned), *(path for path, _ in styles)]

        def work(job: Job) -> None:
            picture = read_picture(job.content)
            refuse_output(job.output, inputs, transparent=picture.alpha is not None)
            name, chosen = next(turn)
            made = painter.paint(picture, chosen, to=to, size=size)
            write_picture(made, job.output, inputs=inputs)
            say(f"{job.content} as {name.name} → {job.output}")

        failed = run(work, planned, complain)
    conclude(failed, len(planned), output, broken=bool(broken))


def _styles(place: Path) -> tuple[list[tuple[Path, Picture]], int]:
    """The pictures of the style, and how many of them cannot be read."""
    from ..style.images import PictureError, find_pictures, read_picture

    paths = find_pictures(place) if place.is_dir() else [place]
    found, broken = [], 0
    for path in paths:
        try:
            found.append((path, read_picture(path)))
        except PictureError as error:
            if len(paths) == 1:
                raise
            complain(f"left out: {error}")
            broken += 1
    return found, broken
