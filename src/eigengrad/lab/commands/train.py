"""``eigengrad train``: one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .step_time import step_time
from .terminal import FAILED, complain, duration, explained, say

if TYPE_CHECKING:
    from ..training import Config

__all__ = ["train"]

_DATA, _NETWORK, _NORM, _SCHEDULE, _RUN = "Data", "Network", "Normalisation under test", "Training", "The run"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def train(
    data: Annotated[
        str, _option("digits (embedded, the default), cifar10, cifar100, tiny_imagenet, imagenet, folder.", _DATA)
    ] = "digits",
    data_root: Annotated[Path | None, _option("Folder with the files of the data.", _DATA, metavar="DIR")] = None,
    subset: Annotated[int | None, _option("Train on so many images, evenly over the classes.", _DATA)] = None,
    image_size: Annotated[int | None, _option("Side of the images in pixels.", _DATA)] = None,
    model: Annotated[str | None, _option("convnet, resnet18, resnet50, alexnet.", _NETWORK)] = None,
    stem_width: Annotated[int | None, _option("Channels of the first layer.", _NETWORK)] = None,
    width: Annotated[int | None, _option("Width of the other layers: 64 as published, 16 slim.", _NETWORK)] = None,
    pooling: Annotated[
        str | None,
        _option(
            "average, exact, svd_taylor, svd_pi, mpn_cov, isqrt_cov, g2denet, deep_o2p, bilinear or improved_bilinear.",
            _NETWORK,
        ),
    ] = None,
    norm: Annotated[str | None, _option("dbn (decorrelated batch norm), iternorm, batchnorm, none.", _NORM)] = None,
    group_size: Annotated[int | None, _option("d: channels that are decorrelated together.", _NORM)] = None,
    gradient: Annotated[
        str | None, _option("exact, taylor, clip, power_iteration (SVD-PI), svd (plain), pi.", _NORM)
    ] = None,
    degree: Annotated[int | None, _option("K of taylor, or the iterations of power_iteration.", _NORM)] = None,
    eps: Annotated[float | None, _option("ε, added to the covariance.", _NORM)] = None,
    epochs: Annotated[int | None, _option("Passes over the data.", _SCHEDULE)] = None,
    batch_size: Annotated[int | None, _option("Images a step, of all processes together.", _SCHEDULE)] = None,
    lr: Annotated[float | None, _option("Learning rate at the start.", _SCHEDULE)] = None,
    lr_step: Annotated[int | None, _option("Epochs after which it is multiplied by --lr-factor.", _SCHEDULE)] = None,
    lr_factor: Annotated[float | None, _option("By how much.", _SCHEDULE)] = None,
    momentum: Annotated[float | None, _option("Of stochastic gradient descent.", _SCHEDULE)] = None,
    weight_decay: Annotated[float | None, _option("Of stochastic gradient descent.", _SCHEDULE)] = None,
    precision: Annotated[str | None, _option("no (float32), bf16, fp16.", _SCHEDULE)] = None,
    seed: Annotated[int | None, _option("Of weights, order and augmentation.", _RUN)] = None,
    threads: Annotated[int | None, _option("CPU threads.", _RUN)] = None,
    out: Annotated[
        Path | None, _option("Folder of the run. Default: results/runs/<name of the run>.", _RUN, metavar="DIR")
    ] = None,
    fresh: Annotated[bool, _option("Start over instead of continuing what is in the folder.", _RUN, "--fresh")] = False,
    dry_run: Annotated[
        bool, _option("Say what would be done, and measure how long it would take.", _RUN, "--dry-run")
    ] = False,
) -> None:
    """Train one network.

    What you do not give is the paper's protocol for the data: 350 epochs of ResNet-18 on CIFAR, 90 on Tiny ImageNet, 20
    of AlexNet on ImageNet. For the embedded digits it is a small network and twelve epochs, done in seconds.

    A run writes result.json, weights and TensorBoard curves to its folder. Interrupt it at any time: the same command
    continues it. Several GPUs or machines: accelerate launch -m eigengrad.lab.cli train …

    **Examples**

    ```
    eigengrad train
    eigengrad train --gradient svd --group-size 32 --seed 3
    eigengrad train --data cifar10 --data-root DIR --subset 5000 --width 16 --epochs 5 --gradient taylor
    eigengrad train --data cifar10 --data-root DIR --norm dbn --group-size 16 --gradient taylor --dry-run
    ```
    """
    given = {name: value for name, value in locals().items() if name not in ("out", "fresh", "dry_run")}
    with explained():
        config = _config(given)
        directory = out or Path("results") / "runs" / config.key()
        if dry_run:
            _plan(config, directory)
        else:
            _train(config, directory, fresh)


def _config(given: dict[str, Any]) -> Config:
    """The protocol for the data, with what was given put in."""
    from ..experiments.presets import PROTOCOLS
    from ..experiments.trained import located
    from ..training import Config

    protocols = {"cifar10": "cifar10", "cifar100": "cifar100", "tiny_imagenet": "tiny_imagenet"}
    protocols |= {"imagenet": "pooling", "folder": "pooling"}
    protocol = protocols.get(given["data"])
    base = Config() if protocol is None else PROTOCOLS[protocol]["paper"].base
    fields = {name: value for name, value in given.items() if value is not None}
    if "data_root" in fields:
        fields["data_root"] = located(fields["data_root"], given["data"])
    return base.replace(**fields)


def _train(config: Config, directory: Path, fresh: bool) -> None:
    from ..training import train as run

    say(f"{config.key()} in {directory}")
    result = run(config, directory, resume=not fresh)
    if result.failure is not None:
        complain(f"the run failed: {result.failure.message}")
        raise typer.Exit(FAILED)
    say(
        f"best test error {100 * (result.best_error or 0):.2f} % in epoch {result.best_epoch} of {config.epochs}, "
        f"last {100 * (result.last_error or 0):.2f} %; {result.seconds:.1f} s. Written to {directory}"
    )


def _plan(config: Config, directory: Path) -> None:
    """Load the data, build the network, and time a step."""
    from ..training import Engine
    from ..training.classification import Classification

    engine = Engine(config.precision)
    task = Classification(config, engine)
    step, trouble = step_time(task, engine)
    batches = task.epoch_batches(0)
    test = len(task.data.test) / config.batch_size * step / 3  # a forward pass is about a third of a step
    for name, value in config.influences().items():
        say(f"  {name:<13} {value}")
    say(f"  folder        {directory}")
    epoch = len(batches) * step + test
    say(
        f"{config.epochs} epochs of {len(batches)} steps, {len(task.data.train):,} training and "
        f"{len(task.data.test):,} test images. A step takes {1e3 * step:.0f} ms here.\n"
        f"estimated time: {duration(epoch)} an epoch, {duration(config.epochs * epoch)} in all."
        f"{trouble} Nothing was written."
    )
