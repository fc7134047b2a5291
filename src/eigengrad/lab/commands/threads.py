"""``--threads``, as every command that computes has it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Threads", "limit_threads"]

Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="CPU threads. Default: one a core; on a busy machine fewer are faster.", show_default=False
    ),
]


def limit_threads(threads: int | None) -> None:
    """Compute on so many threads; None leaves it to torch, which takes one a core, or OMP_NUM_THREADS."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
