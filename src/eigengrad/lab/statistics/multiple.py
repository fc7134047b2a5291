"""Several tests in one table: Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["holm"]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: rejecting where one is at most α makes any false rejection at all as rare as α.

    The smallest of m p-values is multiplied by m, the next by m − 1, and so on, each at least as large as the one
    before. It holds whatever the dependence between the tests.

    Args:
        p_values: of the tests of one family, such as the comparisons of a table.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
