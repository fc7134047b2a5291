"""Pieces on several threads: in order, none lost, threads of torch given back."""

import pytest
import torch

from eigengrad.lab.style.parallel import ordered_map, undivided


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_torch_does_not_divide_inside_and_divides_again_outside():
    with undivided() as threads:
        assert (threads, torch.get_num_threads()) == (3, 1)
        with undivided() as inner:
            assert (inner, torch.get_num_threads()) == (3, 1)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="broken"), undivided():
        raise ValueError("broken")
    assert torch.get_num_threads() == 3


def test_threads_of_the_pool_do_not_divide_either():
    with undivided() as threads:
        assert list(ordered_map(lambda _: torch.get_num_threads(), range(8), threads)) == [1] * 8


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order_and_items_are_drawn_as_needed(threads):
    drawn = []

    def items():
        for number in range(50):
            drawn.append(number)
            yield number

    results = ordered_map(lambda number: number * number, items(), threads)
    assert next(results) == 0
    assert len(drawn) <= threads + 1
    assert list(results) == [number * number for number in range(1, 50)]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_a_piece_is_raised(threads):
    def work(number):
        if number == 7:
            raise ValueError("piece 7")
        return number

    with pytest.raises(ValueError, match="piece 7"):
        list(ordered_map(work, range(20), threads))
