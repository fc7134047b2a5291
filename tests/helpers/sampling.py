"""Which cases of a test with many parameters are quick: a sample in which everything occurs that is asked for.

``@pytest.mark.sample(1)`` keeps a sample in which each value of each parameter occurs, ``@pytest.mark.sample(2)`` one
in which each pair of values occurs that any case has. The other cases of the test are slow.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable
from typing import Any

import pytest


def mark_the_rest_as_slow(items: list[pytest.Item]) -> None:
    """Mark the cases of sampled tests as slow that are not in the sample."""
    cases: dict[tuple[str, int], list[Any]] = {}
    for item in items:
        marker = item.get_closest_marker("sample")
        if marker is not None and not item.get_closest_marker("slow"):
            cases.setdefault((item.nodeid.split("[")[0], marker.args[0]), []).append(item)
    for (_, strength), group in cases.items():
        chosen = covering([parameters(item) for item in group], strength)
        for number, item in enumerate(group):
            if number not in chosen:
                item.add_marker("slow")


def parameters(item: Any) -> list[Hashable]:
    """The parameters of a case, as something that can be compared: values, or which objects where they have no hash."""
    found: list[Hashable] = []
    for name, value in item.callspec.params.items():
        try:
            hash(value)
            found.append((name, value))
        except TypeError:
            found.append((name, id(value)))
    return found


def covering(cases: list[list[Hashable]], strength: int) -> set[int]:
    """Positions of cases in which all combinations of ``strength`` parameters occur: greedily few, values in turn."""
    wanted = [set(itertools.combinations(case, strength)) for case in cases]
    occurs_in: defaultdict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for number, combinations in enumerate(wanted):
        for combination in combinations:
            occurs_in[combination].append(number)
    missing, chosen, uses = [len(combinations) for combinations in wanted], set(), Counter[Hashable]()
    while most := max(missing, default=0):
        candidates = (number for number, count in enumerate(missing) if count == most)
        best = min(candidates, key=lambda i: sum(uses[value] for value in cases[i]))
        chosen.add(best)
        uses.update(cases[best])
        for combination in wanted[best]:
            for number in occurs_in.pop(combination, ()):
                missing[number] -= 1
    return chosen
