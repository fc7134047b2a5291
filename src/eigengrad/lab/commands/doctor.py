"""``eigengrad doctor``: what is wrong with a saved matrix, and the line to write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal import explained, say
from .threads import Threads, limit_threads

__all__ = ["doctor"]


def doctor(
    file: Annotated[Path, typer.Argument(help="A .pt of torch.save, or a .npy of numpy.save.", show_default=False)],
    key: Annotated[
        str | None, typer.Option(help="Which tensor of several, such as layer.weight.", show_default=False)
    ] = None,
    threads: Threads = None,
) -> None:
    """Say what is wrong with a matrix, or a batch of them, that a network differentiates through.

    Shows the spectrum and its gaps, what each gradient rule makes of gradients at the matrix whose gap is the
    smallest, which function to use, and the line to write. Nothing in the file is executed. In a program,
    `print(eigengrad.diagnose(A))` shows the same.

    To save a matrix from a training run: `torch.save(A, "matrix.pt")` before the line that fails.

    **Examples**

    ```
    eigengrad doctor matrix.pt
    eigengrad doctor covariances.npy
    eigengrad doctor checkpoint.pt --key model.head.weight
    ```
    """
    with explained():
        from ... import diagnose, kernels
        from ..matrices import read_matrices

        limit_threads(threads)
        with kernels.disable():  # a few matrices: compiling would take longer than everything else
            say(f"{file}: {diagnose(read_matrices(file, key))}")
