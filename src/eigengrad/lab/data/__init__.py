"""The data of the experiments, and the registry of their names.

To add a data set, write a function that returns a :class:`Dataset` and name it in :data:`DATASETS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import choose
from .dataset import Dataset, Split
from .digits import digits
from .loader import Loader, loader

__all__ = ["DATASETS", "Dataset", "Loader", "Split", "load", "loader"]

#: Data sets by name.
DATASETS: dict[str, Callable[..., Dataset]] = {"digits": digits}


def load(
    name: str,
    root: Path | str | None = None,
    *,
    subset: int | None = None,
    image_size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set by name."""
    if name not in DATASETS:
        raise choose("data", name, DATASETS)
    data = DATASETS[name]()
    return data if subset is None else data.subset(subset, seed)
