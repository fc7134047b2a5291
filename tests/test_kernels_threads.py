"""The kernels' own threads: every part of the work is done once, errors and interruptions wait for the others."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import threading
import time
from array import array

import numpy as np
import pytest
import torch

import eigengrad as eg
from eigengrad.kernels import threads
from eigengrad.solvers import batched
from eigengrad.testing import decomposition_errors

pytest.importorskip("numba")


from eigengrad.kernels import parts
from eigengrad.kernels.adapters import Adapter

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sends signals")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def spread(n, dtype=torch.float32):
    """A batch that is worth a second thread."""
    batch = 64
    while batched._plan(torch.Size([batch, n, n]), dtype).microseconds < threads.LONG:
        batch *= 2
    A = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return A @ A.mT


@pytest.mark.usefixtures("two_threads")
def test_many_threads_at_once_get_their_own_results():
    batches = [spread(8), spread(4), spread(40), spread(8, torch.float64)]
    expected = [batched.eigh(A, "L") for A in batches]
    failures = []

    def work(which):
        for turn in range(15):
            number = (which + turn) % len(batches)
            L, V = eg.eigh(batches[number])
            if not (torch.equal(L, expected[number][0]) and torch.equal(V, expected[number][1])):
                failures.append((which, turn))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_one_thread_of_torch_is_one_thread(monkeypatch):
    used = []
    share = threads.share
    monkeypatch.setattr(threads, "share", lambda *arguments: used.append(arguments[2:4]) or share(*arguments))
    A = spread(4)
    batched.eigh(A, "L")
    assert torch.get_num_threads() == 1
    assert not used
    torch.set_num_threads(2)
    try:
        batched.eigh(A, "L")
    finally:
        torch.set_num_threads(1)
    assert used == [(len(A), 16)]


class InParts:
    """A kernel in Python: ``work(begin, end)`` on parts of its range."""

    def __init__(self, work):
        self.work = work
        called = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._called)
        self.adapter = Adapter(ctypes.cast(called, ctypes.c_void_p).value, struct.Struct("5q").pack, called)

    def __call__(self, first, last, ledger):
        begin, end = parts.first_part(ledger, first, last)
        while begin < end:
            begin, end = parts.next_part(ledger, last, self.work(begin, end) or 0)

    def _called(self, memory):
        packed = (ctypes.c_int64 * 5).from_address(memory)
        try:
            self(packed[3], packed[4], memory)
        except BaseException:
            packed[2] |= threads.FAILED


def share(work, count, unit=1):
    return threads.share(InParts(work), (), count, unit, (), 1e3)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("count", "unit"), [(1, 1), (2, 1), (7, 16), (33, 16), (1000, 1), (1000, 16)])
def test_every_part_is_done_once_and_begins_at_a_multiple_of_its_unit(count, unit):
    done = []
    share(lambda begin, end: done.append((begin, end)), count, unit)
    done.sort()
    assert [begin for begin, _ in done] == [0, *(end for _, end in done[:-1])]
    assert done[-1][1] == count
    assert all(begin % unit == 0 for begin, _ in done)


@pytest.mark.usefixtures("two_threads")
def test_the_results_of_all_parts_are_united():
    assert share(lambda begin, end: 0, 64) == 0
    assert share(lambda begin, end: begin == 4, 64) == 1
    assert share(lambda begin, end: (begin == 4) + 2 * (end == 64), 64) == 3


@pytest.mark.usefixtures("two_threads")
def test_a_worker_takes_parts_too():
    workers = set()
    share(lambda begin, end: workers.add(threading.get_ident()) or time.sleep(0.02), 16)
    assert len(workers) == 2


def test_who_gets_no_part_reads_nothing():
    """A worker may come so late that the memory is gone: nothing is at the addresses here."""
    from eigengrad.kernels import (
        channel_vectors,
        coloring,
        eigh,
        matrix_roots,
        pullbacks,
        pullbacks_alone,
        rotated_lanes,
        straight,
        tiled,
    )

    gone, count = 16, 8
    exhausted = array("q", (count, 1, 0))
    ledger, _ = exhausted.buffer_info()
    number = np.float32(0)
    for solve in (eigh.by_jacobi, eigh.side_by_side, eigh.few_side_by_side, eigh.divided):
        assert solve(number, gone, gone, gone, 0, count, 4, ledger) == 0
    assert pullbacks.pull_through_rule(number, *[gone] * 2, True, *[gone] * 3, 0, count, 4, 1, 9.0, 0.0, ledger) == 0
    assert pullbacks.pull_through_function(number, *[gone] * 4, 0, count, 4, 0, ledger) == 0
    assert pullbacks_alone.fill_bracket(number, *[gone] * 3, 0, count, 40, 1, 9.0, 0.0, ledger) == 0
    assert pullbacks_alone.rule_alone(number, *[gone] * 2, True, *[gone] * 3, 0, count, 40, 1, 9.0, 0.0, ledger) == 0
    assert pullbacks_alone.function_alone(number, *[gone] * 4, 0, count, 40, 0, ledger) == 0
    assert matrix_roots.roots(number, gone, gone, 0.1, 4, gone, 0, count, 4, ledger) == 0
    assert coloring.transfers(number, gone, 1.0, 4, gone, 0, count, 4, ledger) == 0
    assert coloring.transfer_gradients(number, *[gone] * 4, 0.1, 1.0, 4, gone, 0, count, 4, ledger) == 0
    shape = 64, 8, 64, 0, 4
    for way in (channel_vectors, rotated_lanes, straight, tiled):
        assert way.moments(number, gone, gone, gone, *shape, gone, 0, count, 1, 64, 1, ledger) == 0
        assert way.mix(number, gone, 0, gone, *shape, gone, gone, gone, 0, count, 64, 1, 0, ledger) == 0


@pytest.mark.usefixtures("two_threads")
def test_parts_are_done_when_no_thread_can_be_started(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    share(lambda begin, end: done.append((end - begin, threading.get_ident())), 100)
    assert sum(size for size, _ in done) == 100
    assert {ident for _, ident in done} == {threading.get_ident()}


@pytest.mark.usefixtures("two_threads")
def test_parts_are_done_when_all_workers_are_busy(monkeypatch):
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    release, started = threading.Event(), threading.Barrier(3)

    def stuck(begin, end):
        started.wait(60)
        release.wait(60)

    blocked = threading.Thread(target=share, args=(stuck, 2))
    blocked.start()
    started.wait(60)  # the one who called and the worker
    try:
        done = []
        for _ in range(3):
            share(lambda begin, end: done.append((end - begin, threading.get_ident())), 50)
        assert sum(size for size, _ in done) == 150
        assert {ident for _, ident in done} == {threading.get_ident()}
    finally:
        release.set()
        blocked.join()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("who", ["the caller", "a worker"])
def test_an_error_in_any_part_arrives_when_no_thread_is_at_work_any_more(who):
    caller, both, ended = threading.get_ident(), threading.Barrier(2), []

    def work(begin, end):
        if begin < 2:  # one part for each
            both.wait(60)
            if (threading.get_ident() == caller) == (who == "the caller"):
                raise ZeroDivisionError(who)
        time.sleep(0.05)
        ended.append(begin)

    with pytest.raises(ZeroDivisionError if who == "the caller" else MemoryError):
        share(work, 8)
    before = list(ended)
    time.sleep(0.2)
    assert ended == before


@linux
@pytest.mark.usefixtures("two_threads")
def test_an_interruption_arrives_when_no_thread_is_at_work_any_more():
    caller, running, ended = threading.get_ident(), threading.Event(), []

    def work(begin, end):
        if threading.get_ident() == caller:
            running.wait(60)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        else:
            running.set()
            time.sleep(0.2)
            ended.append(begin)

    with pytest.raises(KeyboardInterrupt):
        share(work, 2)
    assert len(ended) == 1


@pytest.mark.usefixtures("two_threads")
def test_a_worker_comes_again_after_an_interruption_just_before_its_bell(monkeypatch):
    pool = threads._Pool()
    monkeypatch.setattr(threads, "_pool", pool)
    pool.grow(1)
    bell = pool.workers[0].bell

    class Interrupted:
        @staticmethod
        def put(item):
            pool.workers[0].bell = bell
            raise KeyboardInterrupt

    pool.workers[0].bell = Interrupted()
    time.sleep(0.1)  # the worker listens to its own
    with pytest.raises(KeyboardInterrupt):
        share(lambda begin, end: None, 16)
    workers = set()
    share(lambda begin, end: workers.add(threading.get_ident()) or time.sleep(0.02), 16)
    assert len(workers) == 2


@linux
@pytest.mark.usefixtures("two_threads")
def test_denormal_arithmetic_is_restored_in_every_thread():
    A = spread(4)
    batched.eigh(A, "L")
    bad = A.clone()
    bad[-1, 3, 0] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError):
        batched.eigh(bad, "L")
    kept = {}

    def look(begin, end):
        kept[threading.get_ident()] = 5e-324 * 1.0 > 0
        time.sleep(0.02)

    share(look, 8)
    assert list(kept.values()) == [True, True]


@pytest.mark.parametrize(("microseconds", "workers"), [(19.0, 0), (25.0, 1), (70.0, 3), (1e4, 6)])
def test_no_more_threads_are_asked_than_there_is_work_for(monkeypatch, microseconds, workers):
    pool = threads._Pool()
    monkeypatch.setattr(threads, "_pool", pool)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    done = []
    threads.share(InParts(lambda begin, end: done.append(end - begin)), (), 100, 1, (), microseconds)
    assert sum(done) == 100
    assert len(pool.workers) == workers


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("microseconds", "soon", "rung"), [(1e3, False, 1), (50.0, False, 0), (50.0, True, 1)])
def test_workers_are_woken_for_long_work_and_for_calls_in_quick_succession(monkeypatch, microseconds, soon, rung):
    pool = threads._Pool()
    monkeypatch.setattr(threads, "_pool", pool)
    monkeypatch.setattr(threads._Worker, "run", lambda self: None)
    pool.used = time.perf_counter() + 60 if soon else 0.0
    done = []
    threads.share(InParts(lambda begin, end: done.append(end - begin)), (), 16, 1, (), microseconds)
    assert sum(done) == 16
    assert [worker.bell.qsize() for worker in pool.workers] == [rung]


class Decompositions(torch.utils.data.Dataset):
    """Each item is decomposed where it is loaded."""

    def __init__(self, A):
        self.A = A

    def __len__(self):
        return len(self.A)

    def __getitem__(self, index):
        L, V = eg.eigh(self.A[index])
        return self.A[index], L, V


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_data_loader(method):
    A = spread(4)
    A = A.view(4, -1, 4, 4)
    eg.eigh(A)  # the parent has threads
    loader = torch.utils.data.DataLoader(
        Decompositions(A), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=300
    )
    items = list(loader)
    assert len(items) == 4
    for M, L, V in items:
        assert decomposition_errors(M[:50], L[:50], V[:50])[0].max() < 1e-5
        assert torch.equal(V, eg.eigh(M).eigenvectors)


# Cores ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def worker():
    """A thread of the pool's kind, asleep."""
    found = threads._Worker()
    found.start()
    return found


cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="there is one core, or no telling"
)


@cores
def test_a_worker_is_kept_off_the_core_of_its_caller(worker):
    allowed = os.sched_getaffinity(worker.native_id)
    for core in allowed:
        worker.keep_off(core)
        assert os.sched_getaffinity(worker.native_id) == allowed - {core}
    worker.keep_off(-1)
    assert os.sched_getaffinity(worker.native_id) == allowed


@cores
def test_a_worker_stays_on_the_cores_that_it_is_given(worker):
    """As ``taskset`` gives them, before or after it was kept off a core: also where that leaves only the caller's."""
    one, other, *_ = sorted(os.sched_getaffinity(worker.native_id))
    worker.keep_off(one)
    os.sched_setaffinity(worker.native_id, {one})
    for core in (one, other):
        worker.keep_off(core)
        assert os.sched_getaffinity(worker.native_id) == {one}


@cores
@pytest.mark.usefixtures("two_threads")
def test_the_caller_itself_is_confined_to_no_core():
    allowed = os.sched_getaffinity(0)
    for _ in range(20):
        share(lambda begin, end: None, 16)
    assert os.sched_getaffinity(0) == allowed
    assert threads._pool.core in allowed
