"""Every call that writes is made to fail once, by an error, for lack of memory and by the end of the process.

An operation is first run to count its calls of ``os.open``, ``write``, ``fsync``, ``close``, ``replace``, ``mkdir`` and
``unlink``. Then it is run again for each of them, with that one failing.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from eigengrad.lab import tensors
from eigengrad.lab.experiments.records import write_records
from eigengrad.lab.files import TEMPORARY, make_folder, remove_partial, write_atomically
from eigengrad.lab.report import Finding, Outcome, Table, build_page, figures
from eigengrad.lab.style.images import Picture, read_picture, write_picture
from eigengrad.lab.tensors import load_tensors, save_tensors
from eigengrad.lab.training import Config, Result, train
from eigengrad.lab.training.checkpoint import Checkpoints

CALLS = ("open", "write", "fsync", "close", "replace", "mkdir", "unlink")
KILLED = 99


class InterruptError(BaseException):
    """Stands for a second Ctrl-C, which comes anywhere."""


def no_room() -> BaseException:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken_disk() -> BaseException:
    return OSError(errno.EIO, os.strerror(errno.EIO))


ERRORS: dict[str, Callable[[], BaseException]] = {
    "no room": no_room,
    "broken disk": broken_disk,
    "no memory": MemoryError,
    "interrupted": InterruptError,
}


@contextlib.contextmanager
def faults(fail_at: int | None = None, error: Callable[[], BaseException] | None = None) -> Iterator[list[str]]:
    """Count the calls of this thread, and let one of them fail.

    Args:
        fail_at: which one, counted from 0.
        error: what it raises; without one, the process ends at it, as by a kill.

    Yields:
        The names of the calls so far.
    """
    calls: list[str] = []
    thread = threading.get_ident()
    originals = {name: getattr(os, name) for name in CALLS}

    def replacement(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            reads = name == "open" and not arguments[1] & os.O_CREAT and not os.path.isdir(arguments[0])
            if threading.get_ident() != thread or reads:
                return originals[name](*arguments, **options)
            calls.append(name)
            if len(calls) - 1 != fail_at:
                return originals[name](*arguments, **options)
            if name == "write":  # a full disk takes a part
                originals["write"](arguments[0], arguments[1][: len(arguments[1]) // 2])
            if name == "close":  # the system closes a file even if it reports an error
                originals["close"](*arguments)
            if error is None:
                os._exit(KILLED)
            raise error()

        return call

    for name in CALLS:
        setattr(os, name, replacement(name))
    try:
        yield calls
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    """The disk is not what is tested; only the call is."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


# The operations -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """Something that writes, with an old and a new value.

    Args:
        write: value 0 or 1 to a folder.
        read: the values that the files of a folder have; raises if one of them is damaged.
        files: how many there are.
    """

    write: Callable[[Path, int], object]
    read: Callable[[Path], list[int]]
    files: int = 1


def write_checkpoint(folder: Path, value: int) -> None:
    for step in range(2 * value + 1):
        Checkpoints(folder).save(step + 1, {**STATE, "step": value})


STATE = {
    **dict.fromkeys(("epoch", "batch", "epoch_seconds", "seconds", "best", "scaler"), 0),
    "processes": [],
    **{name: {} for name in ("settings", "curves", "health", "modules", "optimizers", "schedulers")},
    "weights": torch.zeros(1000),
}


def outcome(value: int) -> Outcome:
    table = Table("numbers", "Numbers", ("value",), ((value,),))
    findings = (Finding(f"value {value}", "confirmed", ""),)
    return Outcome("table4", "Title", "small", {}, "", (table,), (), findings, seconds=float(value), day="2026-11-18")


def read_outcome(folder: Path) -> list[int]:
    csv = int((folder / "numbers.csv").read_text().split()[1])
    text = (folder / "README.md").read_text()
    assert text.endswith(".\n")
    return [csv, int("value 1" in text), int(Outcome.load(folder).seconds)]


def write_page(folder: Path, value: int) -> None:
    results = folder / "table4" / "small"
    make_folder(results)
    (results / "outcome.json").write_text(json.dumps(outcome(value).to_dict()))
    build_page(folder)


def read_page(folder: Path) -> list[int]:
    text = (folder / "report" / "index.html").read_text()
    assert text.rstrip().endswith("</html>")
    return [int("value 1" in text)]


def write_figure(folder: Path, value: int) -> None:
    with figures.style() as plt:
        figure, axis = plt.subplots(figsize=(1 + value, 1))
        axis.plot([0, 1])
        try:
            figures.save(figure, folder, "drawing")
        finally:
            plt.close(figure)


def read_figure(folder: Path) -> list[int]:
    drawing = (folder / "drawing.svg").read_text()
    assert drawing.rstrip().endswith("</svg>")
    height, width = read_picture(folder / "drawing.png").size
    return [int('width="144' in drawing), int(width > 1.5 * height)]


def read_records(folder: Path) -> list[int]:
    return [json.loads((folder / "runs.json").read_text())[0]["value"]]


def read_bytes(folder: Path) -> list[int]:
    content = (folder / "file").read_bytes()
    assert len(content) == 100_000
    assert len(set(content)) == 1
    return [content[0]]


def plain(flush: bool) -> Operation:
    return Operation(lambda folder, v: write_atomically(folder / "file", bytes([v]) * 100_000, flush=flush), read_bytes)


OPERATIONS = {
    "a file": plain(flush=True),
    "a file that is not flushed": plain(flush=False),
    "tensors": Operation(
        lambda folder, v: save_tensors(folder / "a.pt", {"value": v, "weights": torch.zeros(1000)}),
        lambda folder: [load_tensors(folder / "a.pt")["value"]],
    ),
    "a checkpoint": Operation(write_checkpoint, lambda folder: [Checkpoints(folder).newest()["step"]]),
    "a result": Operation(
        lambda folder, v: Result(Config(), "succeeded", steps=v).save(folder / "result.json"),
        lambda folder: [Result.load(folder).steps],
    ),
    "an outcome": Operation(lambda folder, v: outcome(v).write(folder), read_outcome, files=3),
    "the page": Operation(write_page, read_page),
    "records": Operation(lambda folder, v: write_records(folder, [{"value": v}]), read_records),
    "a figure": Operation(write_figure, read_figure, files=2),
    "a picture": Operation(
        lambda folder, v: write_picture(Picture(torch.full((3, 9, 9), float(v))), folder / "made" / "a.png"),
        lambda folder: [int(read_picture(folder / "made" / "a.png").pixels.mean())],
    ),
}


def temporaries(folder: Path) -> list[Path]:
    return list(folder.rglob(f".*{TEMPORARY}"))


def assert_old_or_new(operation: Operation, folder: Path) -> None:
    """Every file is whole. Of several files, the first are new and the others old."""
    values = operation.read(folder)
    assert len(values) == operation.files
    assert values == sorted(values, reverse=True)
    assert set(values) <= {0, 1}


def prepared(operation: Operation, folder: Path) -> Path:
    folder.mkdir()
    operation.write(folder, 0)
    assert operation.read(folder) == [0] * operation.files
    return folder


def counted(operation: Operation, folder: Path) -> list[str]:
    prepared(operation, folder)
    with faults() as calls:
        operation.write(folder, 1)
    assert operation.read(folder) == [1] * operation.files
    assert not temporaries(folder)
    return calls


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (name, error) for name in OPERATIONS for error in ERRORS if name != "a figure" or error == "no room"
    ],  # it is slow
)
def test_whichever_call_fails_the_old_or_the_new_file_is_whole(name, error, tmp_path):
    operation = OPERATIONS[name]
    calls = counted(operation, tmp_path / "counted")
    assert calls.count("replace") >= operation.files
    assert name in ("a file that is not flushed", "a picture") or calls.count("fsync") >= 2 * operation.files
    raised = 0
    for number, call in enumerate(calls):
        folder = prepared(operation, tmp_path / f"{number}")
        try:
            with faults(number, ERRORS[error]):
                operation.write(folder, 1)
        except (OSError, MemoryError, InterruptError) as caught:
            raised += 1
            # (Lack of memory is not expected where a file is removed.)
            anonymous = isinstance(caught, InterruptError) or (call == "unlink" and isinstance(caught, MemoryError))
            if not anonymous and f"{folder}" not in str(caught):
                pytest.fail(f"call {number}, {call}, is not named: {caught!r}")
        assert not temporaries(folder), f"call {number}, {call}"
        assert_old_or_new(operation, folder)
        operation.write(folder, 1)
        assert operation.read(folder) == [1] * operation.files
    assert raised >= 3 * operation.files


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "a figure"])  # matplotlib is not safe to fork
def test_whenever_the_process_is_killed_the_old_or_the_new_file_is_whole(name, tmp_path):
    operation = OPERATIONS[name]
    calls = counted(operation, tmp_path / "counted")
    left_over = 0
    for number in range(len(calls)):
        folder = prepared(operation, tmp_path / f"{number}")
        child = os.fork()
        if child == 0:
            try:
                with faults(number):
                    operation.write(folder, 1)
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
        assert_old_or_new(operation, folder)
        left_over += len(temporaries(folder))
        operation.write(folder, 1)
        assert operation.read(folder) == [1] * operation.files
        for path in temporaries(folder):
            remove_partial(path.parent)
        assert not temporaries(folder)
    assert left_over > 0, "no kill came between the making of a temporary file and its move"


@pytest.mark.parametrize("name", ["an outcome", "the page"])
def test_what_a_killed_writer_left_is_removed_by_the_next_but_not_what_another_is_writing(name, tmp_path):
    operation = OPERATIONS[name]
    operation.write(tmp_path, 0)
    folder = next(path.parent for path in tmp_path.rglob("*") if path.name in ("README.md", "index.html"))
    old, new = folder / f".a.1.x{TEMPORARY}", folder / f".a.2.x{TEMPORARY}"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    operation.write(tmp_path, 1)
    assert temporaries(tmp_path) == [new]


def test_whichever_growth_of_the_buffer_fails_the_checkpoint_is_named_and_the_old_one_intact(tmp_path, monkeypatch):
    class Buffer(io.BytesIO):
        left = 10**9

        def write(self, content: Any) -> int:
            Buffer.left -= 1
            if Buffer.left == 0:
                raise MemoryError
            return super().write(content)

    monkeypatch.setattr(tensors.io, "BytesIO", Buffer)
    write_checkpoint(tmp_path, 0)
    writes = 10**9 - Buffer.left
    assert writes > 10
    for number in range(1, writes + 1):
        Buffer.left = number
        with pytest.raises(
            MemoryError, match=rf"cannot write {tmp_path}/step-0000000007\.pt: out of memory\. What was"
        ):
            Checkpoints(tmp_path).save(7, STATE)
        Buffer.left = 10**9
        assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.pt"]
        assert Checkpoints(tmp_path).newest()["step"] == 0


@pytest.mark.parametrize("failing", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_no_memory_for_a_checkpoint_names_the_file_and_leaves_the_old_one(failing, tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 0)

    def fail(*_: object) -> None:
        raise failing

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(MemoryError, match=rf"cannot write {tmp_path}/step-0000000007\.pt: .* What was saved before is"):
        Checkpoints(tmp_path).save(7, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000001.pt"]


def test_a_folder_that_cannot_be_flushed_by_its_kind_is_no_error(tmp_path, monkeypatch):
    original = os.fsync

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        original(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_write_that_takes_a_part_is_continued(tmp_path, monkeypatch):
    original = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: original(handle, content[:7]))
    content = bytes(range(100))
    write_atomically(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == content


# A whole training -----------------------------------------------------------------------------------------------------

TINY = Config(subset=40, stem_width=4, width=4, group_size=4, epochs=2, batch_size=20, lr_step=1, threads=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Path, list[str]]:
    """A training that nothing happens to, and its calls."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with faults() as calls:
        train(TINY, folder, progress=False)
    return folder, list(calls)


def assert_ends_as(folder: Path, expected: Path) -> None:
    assert train(TINY, folder, progress=False).succeeded
    for name in ("last.pt", "best.pt"):
        got, wanted = (load_tensors(path / name)["modules"]["model"] for path in (folder, expected))
        assert all(torch.equal(got[key], value) for key, value in wanted.items()), name
    assert {path.name for path in folder.iterdir()} <= {"result.json", "best.pt", "last.pt", "tensorboard", "lock"}


def fail_and_go_on(number: int, error: str, folder: Path, whole: Path) -> None:
    try:
        with faults(number, ERRORS[error]):
            train(TINY, folder, progress=False)
    except (OSError, MemoryError, InterruptError) as caught:
        if isinstance(caught, OSError) and str(folder) not in str(caught):
            pytest.fail(f"call {number} is not named: {caught!r}")
    assert not folder.exists() or not temporaries(folder)
    assert_ends_as(folder, whole)


def some(calls: list[str]) -> list[int]:
    """The first and the last call of each kind."""
    return sorted({calls.index(name) for name in set(calls)} | {len(calls) - 1 - calls[::-1].index(n) for n in calls})


def test_a_training_in_which_a_call_fails_goes_on_to_the_same_weights(whole, tmp_path):
    """Some of the calls; the slow test does all of them."""
    expected, calls = whole
    assert calls.count("replace") >= 5, "two checkpoints, the best and the last weights, the result"
    for number in some(calls):
        fail_and_go_on(number, "no room", tmp_path / f"{number}", expected)


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
def test_a_training_in_which_any_call_fails_goes_on_to_the_same_weights(error, whole, tmp_path):
    expected, calls = whole
    for number in range(len(calls)):
        fail_and_go_on(number, error, tmp_path / f"{number}", expected)


def train_until_killed(number: int, folder: Path) -> None:
    with faults(number):
        train(TINY, folder, progress=False)


def kill_and_go_on(numbers: list[int], root: Path, expected: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eigengrad.lab.training", "sklearn.datasets", "torch._dynamo"])
    for number in numbers:
        folder = root / f"{number}"
        process = context.Process(target=train_until_killed, args=(number, folder))
        process.start()
        process.join()
        assert process.exitcode == KILLED
        assert_ends_as(folder, expected)


def test_a_training_that_is_killed_at_a_call_goes_on_to_the_same_weights(whole, tmp_path):
    """Three of the calls: in the middle of a checkpoint, before its move, and before the move of the result."""
    expected, calls = whole
    moves = [number for number, name in enumerate(calls) if name == "replace"]
    kill_and_go_on([calls.index("write"), moves[1], moves[-1]], tmp_path, expected)


@pytest.mark.slow
def test_a_training_that_is_killed_at_any_call_goes_on_to_the_same_weights(whole, tmp_path):
    expected, calls = whole
    kill_and_go_on(list(range(len(calls))), tmp_path, expected)
