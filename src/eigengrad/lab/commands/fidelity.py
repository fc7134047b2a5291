"""``eigengrad fidelity``: how right each gradient is along one training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from .experiment_options import DryRun, Results
from .run_options import DATA, NETWORK, RUN, option
from .terminal import FAILED, complain, explained, listed, say, show
from .threads import Threads, limit_threads

__all__ = ["fidelity"]

_NORM = "The whitening"


def fidelity(
    data: Annotated[str, option("digits (embedded, the default), cifar10, cifar100, folder, ….", DATA)] = "digits",
    data_root: Annotated[Path | None, option("Folder with the files of the data.", DATA, metavar="DIR")] = None,
    subset: Annotated[int | None, option("Train on so many images, evenly over the classes.", DATA)] = None,
    image_size: Annotated[int | None, option("Side of the images in pixels.", DATA)] = None,
    model: Annotated[str | None, option("convnet, resnet18, resnet50, alexnet.", NETWORK)] = None,
    stem_width: Annotated[int | None, option("Channels of the first layer.", NETWORK)] = None,
    width: Annotated[int | None, option("Width of the other layers.", NETWORK)] = None,
    group_size: Annotated[int, option("d: channels that are whitened together. Default: 16.", _NORM)] = 16,
    eps: Annotated[float, option("ε, added to the covariance. Default: 0.01.", _NORM)] = 0.01,
    gradient: Annotated[
        str, option("What the network is trained with: exact (default), taylor, clip, power_iteration, ….", _NORM)
    ] = "exact",
    steps: Annotated[int, option("Training steps. Default: 100.", RUN, min=1)] = 100,
    every: Annotated[int, option("Steps from one snapshot to the next. Default: 10.", RUN, min=1)] = 10,
    seed: Annotated[int, option("Of weights, order and augmentation.", RUN, min=0)] = 0,
    threads: Threads = None,
    results: Results = Path("results"),
    dry_run: DryRun = False,
) -> None:
    """Measure how right each gradient of the whitening layer is, along a training.

    Trains a network, records in one step out of --every the covariance and the gradient that the whitening matrix gets,
    and computes on these same inputs the gradient of every method: Taylor for K = 1 … 100, clipping, SVD-PI, PI,
    Saturate, Lorentzian, Mask, plain SVD, and the exact one. The reference is divided differences in float64. Tables
    and a figure go to results/fidelity/own, and to the page.

    For a model of your own: eigengrad.lab.fidelity.record_whitening. For the whole experiment, over dimensions and
    seeds: eigengrad reproduce fidelity.

    **Examples**

    ```
    eigengrad fidelity
    eigengrad fidelity --group-size 64 --eps 1e-4 --steps 300
    eigengrad fidelity --data cifar10 --data-root DIR --subset 3000 --width 16 --group-size 64 --steps 24 --every 4
    ```
    """
    from ..experiments import DECIDING, ORDER
    from ..experiments.trajectories import CONSTANT_RATE, follow
    from ..fidelity import Fidelity, Recording, record_whitening
    from ..report import build_page
    from ..training.health import TrainingFailedError
    from .train import protocol_config

    given = {
        name: value
        for name, value in locals().items()
        if name in ("data", "data_root", "subset", "image_size", "model", "stem_width", "width", "seed")
    }
    given |= {"group_size": group_size, "eps": eps, "gradient": gradient, "norm": "dbn", "lr_step": CONSTANT_RATE}
    with explained(given):
        config = protocol_config(given)
        recording = Recording()
        say(f"{config.label()}: {steps} steps, one snapshot in {every}, {math.ceil(steps / every)} in all")
        if dry_run:
            return
        limit_threads(threads)
        try:
            follow(config, steps, lambda model: record_whitening(model, every, sink=recording.snapshots.append))
        except TrainingFailedError as error:
            complain(f"the training failed ({error}); what was recorded before is measured")
            if not recording.snapshots:
                raise typer.Exit(FAILED) from None
        measured = Fidelity.of(recording.snapshots)
        folder = results / "fidelity" / "own"
        outcome = measured.outcome(
            folder, f"Fidelity of gradients: {config.label()}", f"{steps} steps, trained with gradient {gradient!r}."
        )
        outcome.write(folder)
        for table in outcome.tables:
            show(table)
        say(f"written to {folder}\n\nThe page: {listed(build_page(results, ORDER, DECIDING))}")
