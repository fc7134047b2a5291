"""Kernels on torch's threads: every chunk is done once, nothing outlives a call, forked children use one thread."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

import eigengrad as eg
import kernel_eigh
from eigengrad.testing import decomposition_errors

pytest.importorskip("numba")

from eigengrad.kernels import costs, eigensolvers
from eigengrad.kernels.runtime import launch, openmp
from eigengrad.kernels.runtime.launch import Launcher
from eigengrad.kernels.runtime.trampoline import FAILED, NEXT, SIZE, STATUS, Trampoline

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sends signals, forks or reads /proc")
parallel = pytest.mark.skipif(openmp.runtime() is None, reason="torch has no OpenMP runtime here")


@pytest.fixture
def two_threads(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(launch, "_PAUSE", 0.0)  # kernels in Python take far longer than they say
    yield
    torch.set_num_threads(before)


def spread(n, dtype=torch.float32):
    """A batch that is worth a second thread."""
    batch = 64
    while eigensolvers.plan(torch.Size([batch, n, n]), dtype).microseconds < 10 * costs.THREAD_COST:
        batch *= 2
    A = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return A @ A.mT


def python_kernel(work):
    """A kernel in Python: ``work(begin, end)`` on chunks of its range, whose result is the chunk's status."""
    lock = threading.Lock()

    def called(place):
        block = (ctypes.c_int64 * 4).from_address(place)
        count = block[3]
        try:
            while True:
                with lock:  # machine code has atomic operations
                    begin, block[NEXT] = block[NEXT], block[NEXT] + block[SIZE]
                if begin >= count:
                    return
                status = work(begin, min(begin + block[SIZE], count)) or 0
                with lock:
                    block[STATUS] |= status
        except BaseException:
            block[STATUS] |= FAILED

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called)
    address = ctypes.cast(function, ctypes.c_void_p).value
    return Launcher(Trampoline(address, struct.Struct("4q").pack, function), function)


def share(work, count, unit=1, microseconds=1e3):
    return python_kernel(work).launch((count,), count, unit, microseconds)


def test_the_runtime_is_the_one_that_torch_uses():
    """Another library's copy of OpenMP would not follow torch."""
    runtime = openmp.runtime()
    if "OpenMP" not in torch.__config__.parallel_info():
        pytest.skip("torch is built without OpenMP")
    assert runtime is not None
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 5, 3):
            torch.set_num_threads(count)
            assert runtime.max_threads() == count
    finally:
        torch.set_num_threads(before)
    if sys.platform.startswith("linux"):
        assert runtime.path in Path("/proc/self/maps").read_text()
        assert str(Path(torch.__file__).parent) in runtime.path or "LD_PRELOAD" in os.environ


@pytest.mark.usefixtures("two_threads")
def test_many_threads_at_once_get_their_own_results():
    batches = [spread(8), spread(4), spread(40), spread(8, torch.float64)]
    expected = [kernel_eigh.eigh(A, "L") for A in batches]
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


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("count", "unit"), [(1, 1), (2, 1), (7, 16), (33, 16), (1000, 1), (1000, 16)])
def test_every_chunk_is_done_once_and_begins_at_a_multiple_of_its_unit(count, unit):
    done = []
    share(lambda begin, end: done.append((begin, end)), count, unit)
    done.sort()
    assert [begin for begin, _ in done] == [0, *(end for _, end in done[:-1])]
    assert done[-1][1] == count
    assert all(begin % unit == 0 for begin, _ in done)


@pytest.mark.usefixtures("two_threads")
def test_the_status_has_the_bits_of_all_chunks():
    assert share(lambda begin, end: 0, 64) == 0
    assert share(lambda begin, end: begin == 4, 64) == 1
    assert share(lambda begin, end: (begin == 4) + 2 * (end == 64), 64) == 3


def threads_used(microseconds, count=16):
    seen = set()
    share(lambda begin, end: seen.add(threading.get_ident()) or time.sleep(0.02), count, microseconds=microseconds)
    return len(seen)


@parallel
@pytest.mark.usefixtures("two_threads")
def test_a_region_has_as_many_threads_as_torch_and_as_there_is_work_for():
    for threads, microseconds, expected in [(1, 1e4, 1), (2, 1e4, 2), (3, 1e4, 3), (3, 9.0, 1), (3, 15.0, 2)]:
        torch.set_num_threads(threads)
        assert threads_used(microseconds) == expected
    assert threads_used(1e4, count=1) == 1


@pytest.mark.parametrize("n", [4, 8, 40])
def test_results_have_the_same_bits_on_any_number_of_threads(n):
    A, before = spread(n), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3, 64):
            torch.set_num_threads(count)
            found.append(kernel_eigh.eigh(A, "L"))
    finally:
        torch.set_num_threads(before)
    for L, V in found[1:]:
        assert torch.equal(L, found[0][0])
        assert torch.equal(V, found[0][1])


@parallel
@pytest.mark.usefixtures("two_threads")
def test_after_a_region_that_took_far_too_long_calls_stay_on_one_thread_for_a_while(monkeypatch):
    """So it is where other processes occupy the cores: a region lasts until its last thread gets one."""
    monkeypatch.setattr(launch, "_PAUSE", 60.0)
    monkeypatch.setattr(launch, "_single_until", 0.0)
    assert threads_used(1e6) == 2  # 1 s was expected, so this was quick
    assert threads_used(1e6) == 2
    assert threads_used(100.0) == 2
    assert threads_used(1e6) == 1
    monkeypatch.setattr(launch, "_single_until", time.perf_counter())
    assert threads_used(1e6) == 2


@parallel
@pytest.mark.usefixtures("two_threads")
def test_a_thread_without_memory_is_an_error_of_the_call():
    caller, both, ended = threading.get_ident(), threading.Barrier(2), []

    def work(begin, end):
        if begin < 2:  # one chunk for each
            both.wait(60)
            if threading.get_ident() != caller:
                raise MemoryError
        time.sleep(0.02)
        ended.append(begin)

    with pytest.raises(MemoryError, match="no memory"):
        share(work, 8)
    before = list(ended)
    time.sleep(0.1)
    assert ended == before


@linux
def test_no_memory_for_scratch_is_an_error_and_not_a_result():
    script = """
        import torch, eigengrad as eg
        torch.set_num_threads(2)
        A = torch.randn(64, 200, 200, dtype=torch.float64)
        A = A @ A.mT
        L, V = eg.eigh(A)
        from eigengrad.kernels.dispatch import load
        kernel = load("eigensolvers.divide_and_conquer", "divide_and_conquer", torch.float64)
        n = 1 << 20                       # a matrix of which there is no memory: 8 TiB of scratch
        empty = torch.empty(8, dtype=torch.float64).data_ptr()
        try:
            kernel.launch((empty, empty, empty, 1, n), 1, 1, 0.0)
        except MemoryError as error:
            print(error)
        assert torch.equal(eg.eigh(A)[0], L)
    """
    result = run(script)
    assert result.stdout == "a kernel found no memory to work in\n", result.stderr


def run(script, **environment):
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, (result.returncode, result.stderr)
    return result


# Interruptions --------------------------------------------------------------------------------------------------------


@linux
@parallel
@pytest.mark.usefixtures("two_threads")
def test_an_interruption_arrives_when_no_thread_is_at_work_any_more():
    caller, running, ended = threading.get_ident(), threading.Event(), []

    def work(begin, end):
        if threading.get_ident() == caller:
            running.wait(60)
            os.kill(os.getpid(), signal.SIGINT)
        else:
            running.set()
            time.sleep(0.2)
            ended.append(begin)

    with pytest.raises((KeyboardInterrupt, MemoryError)):  # it may be raised in the kernel, which is Python here
        share(work, 2)
    assert len(ended) == 1


class Injected(BaseException):
    """Raised between two bytecodes, as a signal's handler raises."""


def inject(function, at):
    """Call ``function`` and raise before the ``at``-th bytecode of eigengrad's own frames; whether it came to that."""
    seen, raised = 0, False

    def trace(frame, event, argument):
        nonlocal seen, raised
        if "eigengrad" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == at:
                raised = True
                raise Injected
        return trace

    sys.settrace(trace)
    try:
        function()
    except Injected:
        pass
    finally:
        sys.settrace(None)
    return raised


@pytest.mark.usefixtures("two_threads")
def test_no_thread_writes_after_an_exception_at_any_bytecode_around_a_call():
    """Two signals whose handlers raise could once meet in a call, and the caller left while a thread still wrote."""
    at_work, at = set(), 0

    def work(begin, end):
        sys.settrace(None)  # in the kernel there is no Python, hence no bytecode to stop at
        at_work.add(begin)
        time.sleep(1e-4)
        at_work.discard(begin)

    kernel = python_kernel(work)
    while True:
        at += 1
        raised = inject(lambda: kernel.launch((4,), 4, 1, 1e3), at)
        assert not at_work, at
        if not raised:
            break
    assert at > 50


@pytest.mark.usefixtures("two_threads")
def test_a_decomposition_is_whole_after_exceptions_at_bytecodes_of_the_one_before():
    A = spread(8)
    L, V = kernel_eigh.eigh(A, "L")
    at = 0
    while inject(lambda: kernel_eigh.eigh(A, "L"), at := at + 1):
        again = kernel_eigh.eigh(A, "L")
        assert torch.equal(again[0], L)
        assert torch.equal(again[1], V)
    assert at > 50


@linux
def test_two_signals_whose_handlers_raise_leave_every_result_right():
    script = """
        import os, signal, threading, time, torch, eigengrad as eg

        class Interruption(Exception):
            pass

        armed = set()

        def interrupt(number, frame):
            if number in armed:  # each once in a call
                armed.discard(number)
                raise Interruption

        def send():
            while True:
                time.sleep(0.0013)
                os.kill(os.getpid(), signal.SIGINT)

        torch.set_num_threads(2)
        A = torch.randn(512, 32, 32)
        A = A @ A.mT
        L, V = eg.eigh(A)
        signal.signal(signal.SIGALRM, interrupt)
        signal.signal(signal.SIGINT, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0011)
        threading.Thread(target=send, daemon=True).start()
        caught, stop = 0, time.monotonic() + 2
        while time.monotonic() < stop:
            try:
                try:
                    armed |= {signal.SIGALRM, signal.SIGINT}
                    result = eg.eigh(A)
                    armed.clear()
                    if not (torch.equal(result[0], L) and torch.equal(result[1], V)):
                        os._exit(3)
                except Interruption:
                    armed.clear()
                    caught += 1
            except Interruption:
                caught += 1
        os._exit(0 if caught > 100 else 4)
    """
    run(script)


@linux
@pytest.mark.usefixtures("two_threads")
def test_denormal_arithmetic_is_restored_in_every_thread():
    A = spread(4)
    kernel_eigh.eigh(A, "L")
    bad = A.clone()
    bad[-1, 3, 0] = torch.nan
    with pytest.raises(torch.linalg.LinAlgError):
        kernel_eigh.eigh(bad, "L")
    kept = {}

    def look(begin, end):
        kept[threading.get_ident()] = 5e-324 * 1.0 > 0
        time.sleep(0.02)

    share(look, 8)
    assert list(kept.values()) == [True, True]


# Forks ----------------------------------------------------------------------------------------------------------------


@linux
def test_a_forked_child_decomposes_on_one_thread_after_its_parent_used_several():
    script = """
        import os, signal, torch, eigengrad as eg
        from eigengrad.kernels.runtime import openmp

        def fork(depth):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # against waiting for ever
                assert openmp.available_threads() == 1
                result = eg.eigh(A)
                if depth:
                    fork(depth - 1)
                torch.set_num_threads(1)  # torch's own threads do not survive a fork
                os._exit(0 if torch.equal(result[0], L) and torch.equal(result[1], V) else 1)
            assert os.waitpid(child, 0)[1] == 0

        A = torch.randn(2**14, 4, 4)
        A = A @ A.mT
        torch.set_num_threads(2)
        L, V = eg.eigh(A)
        assert openmp.available_threads() == 2 or openmp.runtime() is None
        fork(2)
        fork(0)
        assert torch.equal(eg.eigh(A)[1], V)
    """
    run(script)


@linux
def test_a_fork_while_another_thread_compiles_waits_for_it(tmp_path):
    """In the child the compiler's lock would otherwise stay locked, and its first kernel would hang."""
    script = """
        import gc, os, signal, threading, time, torch, eigengrad as eg
        import eigengrad.kernels.eigensolvers.jacobi
        from eigengrad.kernels.dispatch import load
        A = torch.eye(4).repeat(8, 1, 1)

        compiling = threading.Thread(target=lambda: load("eigensolvers.jacobi", "jacobi", torch.float64))
        compiling.start()
        time.sleep(0.3)
        begun = compiling.is_alive()
        child = os.fork()
        if child == 0:
            signal.alarm(100)
            torch.set_num_threads(1)
            os._exit(0 if gc.isenabled() and torch.equal(eg.eigh(A)[0], torch.ones(8, 4)) else 1)
        compiling.join()
        assert os.waitpid(child, 0)[1] == 0
        assert begun
    """
    run(script, NUMBA_CACHE_DIR=str(tmp_path))


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
