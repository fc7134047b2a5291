"""A sweep as a table: methods by the values of some fields, and in every cell a number of runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..training.config import Config

__all__ = ["Grid"]


@dataclass(frozen=True)
class Grid:
    """Every method × every value of the axes × every seed.

    A method that sets a field of an axis itself has one cell instead of one for every value: batch norm has no group
    size to vary.

    Args:
        base: what all runs share.
        methods: name → the fields that make the method.
        axes: field → its values.
        seeds: one run for each, in every cell.

    >>> taylor, norm = {"gradient": "taylor"}, {"norm": "batchnorm", "group_size": 16}
    >>> grid = Grid(Config(), {"SVD-Taylor": taylor, "batch norm": norm}, {"group_size": (4, 8)}, seeds=range(3))
    >>> len(grid.configs())
    9
    >>> [(method, values) for method, values, _ in grid.cells()]
    [('SVD-Taylor', {'group_size': 4}), ('SVD-Taylor', {'group_size': 8}), ('batch norm', {})]
    """

    base: Config
    methods: Mapping[str, Mapping[str, Any]]
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seeds: Sequence[int] = (0,)

    def cells(self) -> Iterator[tuple[str, dict[str, Any], list[Config]]]:
        """Method, values of the axes, and the runs of each cell, row by row."""
        for method, fields in self.methods.items():
            free = {name: values for name, values in self.axes.items() if name not in fields}
            for values in itertools.product(*free.values()):
                point = dict(zip(free, values, strict=True))
                yield method, point, [self.base.replace(**fields, **point, seed=seed) for seed in self.seeds]

    def configs(self) -> list[Config]:
        """All runs, seed by seed, so that a sweep that is stopped early has something of every cell."""
        return [config for trial in zip(*(runs for _, _, runs in self.cells()), strict=True) for config in trial]
