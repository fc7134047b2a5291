"""``eigengrad fetch``: download the public data of the experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .terminal import explained, say

__all__ = ["fetch"]


def fetch(
    names: Annotated[
        list[str], typer.Argument(help="cifar10, cifar100, tiny_imagenet.", metavar="NAME...", show_default=False)
    ],
    data_root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the data; each gets one of its own in it.")
    ] = Path("data"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be downloaded, and do nothing.")] = False,
) -> None:
    """Download data sets, each as the archive that its authors publish.

    An interrupted download is continued by the same command; a file that is there is checked and not downloaded again.
    There is nothing to unpack. Pass the same folder as --data-root to `train`, `sweep` and `reproduce`. The digits come
    with scikit-learn; ImageNet and the paintings have to be got from their owners.

    **Examples**

    ```
    eigengrad fetch cifar10
    eigengrad fetch cifar10 cifar100 tiny_imagenet --data-root data
    eigengrad sweep table4 --scale small --data-root data
    ```
    """
    with explained():
        from ...errors import unknown_choice
        from ..data import ARCHIVES
        from ..data import fetch as download

        chosen = list(dict.fromkeys(names))
        for name in chosen:
            if name not in ARCHIVES:
                raise unknown_choice("NAME", name, ARCHIVES)
        for name in chosen:
            archive, folder = ARCHIVES[name], data_root / name
            if dry_run:
                there = " (a file is there already)" if (folder / archive.file).exists() else ""
                say(f"{archive.url}, {archive.size / 1e6:.0f} MB → {folder / archive.file}{there}")
            else:
                say(f"{name} is in {download(name, folder)}")
