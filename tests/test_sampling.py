"""What is left of a large test in the quick suite still has every value, or every pair of them."""

import itertools

import pytest

from sampling import covering

CASES = [list(enumerate(case)) for case in itertools.product(range(7), "abc", (True, False))]


@pytest.mark.parametrize(("strength", "most"), [(1, 7), (2, 22), (3, 42)])
def test_everything_that_is_asked_for_occurs_in_few_cases(strength, most):
    chosen = covering(CASES, strength)
    occurring = {group for number in chosen for group in itertools.combinations(CASES[number], strength)}
    assert occurring == {group for case in CASES for group in itertools.combinations(case, strength)}
    assert len(chosen) <= most


def test_values_take_turns():
    chosen = covering(CASES, 1)
    assert sum(CASES[number][2][1] for number in chosen) in (3, 4)
