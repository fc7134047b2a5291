"""The kernels' own threads: every part of the work is done once, errors and interruptions wait for the others."""

import os
import signal
import sys
import threading
import time
from array import array

import numpy as np
import pytest
import torch

import eigengrad as eg
from eigengrad.kernels import parts, threads
from eigengrad.solvers import batched
from eigengrad.testing import decomposition_errors

pytest.importorskip("numba")

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
    while batched._plan(torch.Size([batch, n, n]), dtype).short:
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


def in_parts(work):
    """A kernel in Python: ``work(begin, end)`` on parts of its range."""

    def kernel(first, last, ledger):
        begin, end = parts.first_part(ledger, first, last)
        while begin < end:
            begin, end = parts.next_part(ledger, begin, end, last, work(begin, end) or 0)

    return kernel


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("count", "unit"), [(1, 1), (2, 1), (7, 16), (33, 16), (1000, 1), (1000, 16)])
def test_every_part_is_done_once_and_begins_at_a_multiple_of_its_unit(count, unit):
    done = []
    threads.share(in_parts(lambda begin, end: done.append((begin, end))), (), count, unit)
    done.sort()
    assert [begin for begin, _ in done] == [0, *(end for _, end in done[:-1])]
    assert done[-1][1] == count
    assert all(begin % unit == 0 for begin, _ in done)


@pytest.mark.usefixtures("two_threads")
def test_the_results_of_all_parts_are_united():
    assert threads.share(in_parts(lambda begin, end: 0), (), 64, 1) == 0
    assert threads.share(in_parts(lambda begin, end: begin == 4), (), 64, 1) == 1
    assert threads.share(in_parts(lambda begin, end: (begin == 4) + 2 * (end == 64)), (), 64, 1) == 3


@pytest.mark.usefixtures("two_threads")
def test_a_worker_takes_parts_too():
    workers = set()
    threads.share(in_parts(lambda begin, end: workers.add(threading.get_ident()) or time.sleep(0.02)), (), 16, 1)
    assert len(workers) == 2


def test_who_gets_no_part_reads_nothing():
    """A worker may come so late that the memory is gone: nothing is at the addresses here."""
    from eigengrad.kernels import channel_mixing, eigh, moments, pullbacks, pullbacks_alone

    gone, count = 16, 8
    exhausted = array("q", (count, count, 0, 1))
    ledger, _ = exhausted.buffer_info()
    number = np.float32(0)
    for solve in (eigh.by_jacobi, eigh.side_by_side, eigh.few_side_by_side, eigh.divided):
        assert solve(number, gone, gone, gone, 0, count, 4, ledger) == 0
    assert pullbacks.pull_through_rule(number, *[gone] * 2, True, *[gone] * 3, 0, count, 4, 1, 9.0, 0.0, ledger) == 0
    assert pullbacks.pull_through_function(number, *[gone] * 4, 0, count, 4, 0, ledger) == 0
    assert pullbacks_alone.fill_bracket(number, *[gone] * 3, 0, count, 40, 1, 9.0, 0.0, ledger) == 0
    assert pullbacks_alone.rule_alone(number, *[gone] * 2, True, *[gone] * 3, 0, count, 40, 1, 9.0, 0.0, ledger) == 0
    assert pullbacks_alone.function_alone(number, *[gone] * 4, 0, count, 40, 0, ledger) == 0
    shape = 64, 8, 64, 0, 4
    assert moments.moments(number, gone, gone, gone, *shape, gone, 0, count, 1, 64, 1, ledger) == 0
    assert channel_mixing.mix(number, gone, 0, gone, *shape, gone, gone, gone, 0, count, 64, 1, 0, ledger) == 0


@pytest.mark.usefixtures("two_threads")
def test_parts_are_done_when_no_thread_can_be_started(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_pool", threads._Pool())
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    threads.share(in_parts(lambda begin, end: done.append((end - begin, threading.get_ident()))), (), 100, 1)
    assert sum(size for size, _ in done) == 100
    assert {ident for _, ident in done} == {threading.get_ident()}


@pytest.mark.usefixtures("two_threads")
def test_parts_are_done_when_all_workers_are_busy(monkeypatch):
    monkeypatch.setattr(threads, "_pool", threads._Pool())
    release, started = threading.Event(), threading.Barrier(3)

    def stuck(begin, end):
        started.wait(60)
        release.wait(60)

    blocked = threading.Thread(target=threads.share, args=(in_parts(stuck), (), 2, 1))
    blocked.start()
    started.wait(60)  # the one who called and the worker
    try:
        done = []
        for _ in range(3):
            threads.share(in_parts(lambda begin, end: done.append((end - begin, threading.get_ident()))), (), 50, 1)
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

    with pytest.raises(ZeroDivisionError, match=who):
        threads.share(in_parts(work), (), 8, 1)
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
        threads.share(in_parts(work), (), 2, 1)
    assert len(ended) == 1


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

    threads.share(in_parts(look), (), 8, 1)
    assert list(kept.values()) == [True, True]


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
    found = threads._Worker(threads.SimpleQueue())
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
        threads.share(in_parts(lambda begin, end: None), (), 16, 1)
    assert os.sched_getaffinity(0) == allowed
    assert threads._pool.core in allowed
