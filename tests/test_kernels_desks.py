"""How threads are handed kernels without Python: adapters that load their arguments, and desks for calls."""

from __future__ import annotations

import ctypes
import threading
import time
from array import array
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import carray

from eigengrad.kernels import desks, parts, threads
from eigengrad.kernels.addresses import pointer
from eigengrad.kernels.compiled import compiled, entry, inner

# Adapters -------------------------------------------------------------------------------------------------------------


@compiled
def write_numbers(
    number: Any, place: int, factor: float, negative: bool, first: int, last: int, offset: int, ledger: int
) -> int:
    out = carray(pointer(place), (last,), np.float64)
    begin, end = parts.first_part(ledger, first, last)
    while begin < end:
        for i in range(begin, end):
            out[i] = (i + offset) * (-factor if negative else factor)
        begin, end = parts.next_part(ledger, last, 1 << (begin == 0))
    return 0


@pytest.mark.parametrize("number", ["float32", "float64"])
@pytest.mark.parametrize("negative", [False, True])
def test_an_adapter_hands_on_all_arguments(number, negative):
    """In the caller's thread here, with nobody else to take a part."""
    out = np.zeros(10)
    adapter = entry(write_numbers, number).adapter
    memory = array("q", adapter.pack(0, 4, 0, out.ctypes.data, 0.25, negative, 0, 10, 3))
    place, _ = memory.buffer_info()
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(adapter.address)(place)
    np.testing.assert_array_equal(out, (np.arange(10) + 3) * (-0.25 if negative else 0.25))
    assert memory[2] == 0b11


@inner
def allocate(begin: int) -> int:
    if begin >= 0:
        raise MemoryError("no room")
    return 0


@compiled
def out_of_memory(number: Any, first: int, last: int, ledger: int) -> int:
    begin, end = parts.first_part(ledger, first, last)
    while begin < end:
        begin, end = parts.next_part(ledger, last, allocate(begin))
    return 0


def test_a_kernel_that_stops_says_why():
    with pytest.raises(MemoryError, match="no room"):
        entry(out_of_memory, "float32")(0, 8, 0)


def test_a_kernel_that_stops_in_another_thread_says_so():
    adapter = entry(out_of_memory, "float32").adapter
    memory = array("q", adapter.pack(0, 1, 0, 0, 8))
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(adapter.address)(memory.buffer_info()[0])
    assert memory[2] == threads.FAILED


# Desks ----------------------------------------------------------------------------------------------------------------


class Desk:
    """One, at which nobody sits, and a function that notes with what it was called."""

    def __init__(self):
        self.memory = array("q", [0, desks.GONE, *[0] * 6])
        self.place, _ = self.memory.buffer_info()
        self.calls = []
        self.called = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.calls.append)
        self.function = ctypes.cast(self.called, ctypes.c_void_p).value

    def post(self, memory, wake=True, late=True):
        return desks.post(self.place, self.function, memory, wake, late)


def test_a_call_for_somebody_asleep_waits_for_him():
    desk = Desk()
    assert desk.post(7) == 2
    assert desk.calls == []
    desks.serve(desk.place, 0, 0)
    assert desk.calls == [7]
    desks.serve(desk.place, 0, 0)
    assert desk.calls == [7]


def test_a_call_that_nobody_should_be_woken_for_is_not_posted():
    desk = Desk()
    assert desk.post(7, wake=False) == 0
    desks.serve(desk.place, 0, 0)
    assert desk.calls == []


def test_a_bell_is_rung_once():
    desk = Desk()
    assert desk.post(7) == 2
    desks.take_back(desk.place, 7, 0)
    assert desk.post(8) == 1  # he is on his way
    desks.serve(desk.place, 0, 0)
    assert desk.calls == [8]
    assert desk.post(9) == 2


@pytest.mark.parametrize("late", [False, True])
def test_who_has_lost_his_core_is_waited_for_only_if_there_is_much_to_do(late):
    desk = Desk()
    desk.memory[1] = 0  # as if somebody sat there
    desk.memory[4] = 10  # looks
    assert desk.post(7, late=late) == 1
    desks.take_back(desk.place, 7, 0)
    assert desk.post(8, late=late) == late
    desks.take_back(desk.place, 8, 0)
    desk.memory[4] += 1
    assert desk.post(9, late=late) == 1


def test_a_desk_holds_one_call():
    desk = Desk()
    assert [desk.post(7), desk.post(8)] == [2, 0]
    desks.serve(desk.place, 0, 0)
    assert desk.calls == [7]
    assert desk.post(8) == 2


def test_a_call_that_is_taken_back_is_not_made():
    desk = Desk()
    desk.post(7)
    assert desks.take_back(desk.place, 8, 0)  # not his
    assert desk.post(9) == 0
    assert desks.take_back(desk.place, 7, 0)
    desks.serve(desk.place, 0, 0)
    assert desk.calls == []
    assert desk.post(9) == 2


def test_who_takes_back_learns_that_somebody_is_at_it():
    desk, begun, go = Desk(), threading.Event(), threading.Event()
    called = ctypes.CFUNCTYPE(None, ctypes.c_int64)(lambda memory: begun.set() or go.wait(60) or None)
    desks.post(desk.place, ctypes.cast(called, ctypes.c_void_p).value, 7, True, True)
    worker = threading.Thread(target=desks.serve, args=(desk.place, 0, 9))
    worker.start()
    assert begun.wait(60)
    assert not desks.take_back(desk.place, 7, 10)
    go.set()
    worker.join()
    assert desks.take_back(desk.place, 7, 0)


def test_who_sits_at_a_desk_makes_every_call_that_is_not_taken_back():
    desk, kept = Desk(), []
    worker = threading.Thread(target=desks.serve, args=(desk.place, 10**7, 9))  # some tenths of a second
    worker.start()
    while desk.memory[1]:
        time.sleep(0.001)
    for memory in range(100, 400):
        assert desk.post(memory, wake=False) == 1
        while memory % 3 and desk.memory[0]:  # every third is taken back at once, if that is not too late
            time.sleep(0)
        assert desks.take_back(desk.place, memory, 10**6)
        if memory % 3:
            kept.append(memory)
    worker.join()
    assert [memory for memory in desk.calls if memory % 3] == kept
    assert len(set(desk.calls)) == len(desk.calls)
