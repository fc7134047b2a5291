"""``eigengrad train``: train one network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from .terminal import duration, explained, say

if TYPE_CHECKING:
    from ..training import Config

__all__ = ["protocol_config", "train"]

_NORM = "Normalisation under test"


def train(
    data: Annotated[
        str, option("digits (embedded, the default), cifar10, cifar100, tiny_imagenet, imagenet, folder.", DATA)
    ] = "digits",
    data_root: Annotated[Path | None, option("Folder with the files of the data.", DATA, metavar="DIR")] = None,
    subset: Annotated[int | None, option("Train on so many images, evenly over the classes.", DATA)] = None,
    image_size: Annotated[int | None, option("Side of the images in pixels.", DATA)] = None,
    colour_jitter: Annotated[float | None, option("Strength of random colours, such as 0.4. Default: 0.", DATA)] = None,
    model: Annotated[str | None, option("convnet, resnet18, resnet50, alexnet, alexnet_mpncov.", NETWORK)] = None,
    stem_width: Annotated[int | None, option("Channels of the first layer.", NETWORK)] = None,
    width: Annotated[int | None, option("Width of the other layers: 64 as published, 16 slim.", NETWORK)] = None,
    pooling: Annotated[
        str | None,
        option(
            "average, exact, svd_taylor, svd_pi, mpn_cov, isqrt_cov, mpa, mtp, g2denet, deep_o2p, bilinear or "
            "improved_bilinear; or a gradient rule, such as 'clip(threshold=50)'.",
            NETWORK,
        ),
    ] = None,
    pooling_eps: Annotated[float | None, option("ε of the pooling. Default: the method's own.", NETWORK)] = None,
    norm: Annotated[
        str | None, option("dbn (decorrelated batch norm), iternorm, mpa, mtp, batchnorm, none.", _NORM)
    ] = None,
    whitened: Annotated[
        str | None,
        option("Which norms: first, all, or names of batch norms (layer1.0.bn1,…) besides the first.", _NORM),
    ] = None,
    whitening: Annotated[str | None, option("zca, pca or cholesky (which has its own gradient).", _NORM)] = None,
    group_size: Annotated[int | None, option("d: channels that are decorrelated together.", _NORM)] = None,
    gradient: Annotated[
        str | None,
        option(
            "exact, taylor, clip, power_iteration (SVD-PI), svd (plain), pi, released (the authors' code), or any "
            "rule, with parameters: 'clip(threshold=50)', 'power_iteration(stop=false)', 'pi(steps=9)'.",
            _NORM,
        ),
    ] = None,
    degree: Annotated[
        int | None, option("K of taylor; power_iteration takes K + 1 iterations. Paper: 9.", _NORM)
    ] = None,
    eps: Annotated[float | None, option("ε, added to the covariance.", _NORM)] = None,
    average: Annotated[
        str | None, option("What evaluation uses an average of: covariance, or whitening (the matrix itself).", _NORM)
    ] = None,
    norm_momentum: Annotated[float | None, option("Share of a batch in that average. Default: 0.1.", _NORM)] = None,
    epochs: Annotated[int | None, option("Passes over the data.", SCHEDULE)] = None,
    batch_size: Annotated[int | None, option("Images a step, of all processes together.", SCHEDULE)] = None,
    lr: Annotated[float | None, option("Learning rate at the start.", SCHEDULE)] = None,
    lr_step: Annotated[int | None, option("Epochs after which it is multiplied by --lr-factor.", SCHEDULE)] = None,
    lr_factor: Annotated[float | None, option("By how much.", SCHEDULE)] = None,
    momentum: Annotated[float | None, option("Of stochastic gradient descent.", SCHEDULE)] = None,
    weight_decay: Annotated[float | None, option("Of stochastic gradient descent.", SCHEDULE)] = None,
    precision: Precision = None,
    seed: Annotated[int | None, option("Of weights, order and augmentation.", RUN)] = None,
    threads: Threads = None,
    out: Out = None,
    fresh: Fresh = False,
    dry_run: DryRun = False,
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
    eigengrad train --gradient "clip(threshold=50)" --average whitening --whitened all
    eigengrad train --data cifar10 --data-root DIR --subset 5000 --width 16 --epochs 5 --gradient taylor
    eigengrad train --data cifar10 --data-root DIR --norm dbn --group-size 16 --gradient taylor --dry-run
    ```
    """
    given = {name: value for name, value in locals().items() if name not in ("out", "fresh", "dry_run")}
    with explained(given):
        config = protocol_config(given)
        directory = folder(out, config.key())
        if dry_run:
            _plan(config, directory)
        else:
            _train(config, directory, fresh)


def protocol_config(given: dict[str, Any]) -> Config:
    """The protocol for the data, with the given options in place of its own."""
    from ..data import MANY, digest
    from ..experiments.presets import PROTOCOLS
    from ..experiments.trained import located
    from ..training import Config

    protocols = {"cifar10": "cifar10", "cifar100": "cifar100", "tiny_imagenet": "tiny_imagenet"}
    protocols |= {"imagenet": "pooling", "folder": "pooling"}
    protocol = protocols.get(given["data"])
    base = Config() if protocol is None else PROTOCOLS[protocol]["paper"].base
    fields = {name: value for name, value in given.items() if value is not None}
    if "data_root" in fields:
        fields["data_root"] = root = located(fields["data_root"], given["data"])
        if given["data"] in MANY and root.exists():
            fields["data_digest"] = digest(root)
    return base.replace(**fields)


def _train(config: Config, directory: Path, fresh: bool) -> None:
    from ..training import train as run

    say(f"{config.key()} in {directory}")
    result = run(config, directory, resume=not fresh)
    require_success(result, directory)
    say(
        f"best test error {100 * (result.best_error or 0):.2f} % in epoch {result.best_epoch} of {config.epochs}, "
        f"last {100 * (result.last_error or 0):.2f} %; {result.seconds:.1f} s. Written to {directory}"
    )


def _plan(config: Config, directory: Path) -> None:
    """Load the data, build the network, and time a step."""
    from ..training import Engine, run_context
    from ..training.classification import Classification

    with run_context(config):
        engine = Engine(config.precision)
        task = Classification(config, engine)
        step, trouble = step_time(task, engine)
    batches = task.epoch_batches(0)
    test = len(task.data.test) / config.batch_size * step / 3  # a forward pass is about a third of a step
    for name, value in config.hash_fields().items():
        say(f"  {name:<13} {value}")
    say(f"  folder        {directory}")
    epoch = len(batches) * step + test
    say(
        f"{config.epochs} epochs of {len(batches)} steps, {len(task.data.train):,} training and "
        f"{len(task.data.test):,} test images. A step takes {1e3 * step:.0f} ms here.\n"
        f"estimated time: {duration(epoch)} an epoch, {duration(config.epochs * epoch)} in all."
        f"{trouble} Nothing was written."
    )
