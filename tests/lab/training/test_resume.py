"""Runs that are killed, interrupted, damaged or out of room, and what becomes of them afterwards."""

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from eigengrad.lab.files import DamagedFileWarning
from eigengrad.lab.training import Config, Result, lock, loop, train
from eigengrad.lab.training.checkpoint import CheckpointError, Checkpoints
from eigengrad.lab.training.lock import BusyError
from eigengrad.lab.training.reporter import Silent

CONFIG = Config(subset=320, stem_width=8, width=8, group_size=4, epochs=4, batch_size=16, lr_step=2, threads=1)
STEPS = 20  # of an epoch


@pytest.fixture(scope="module")
def processes():
    """Real processes that do not have to import everything again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eigengrad.lab.training", "sklearn.datasets", "torch._dynamo", "numba"])
    return context


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(CONFIG, folder, progress=False)
    return folder


def assert_same(folder: Path, expected: Path) -> None:
    """The same weights bit for bit, the same curves, the same report of the gradients."""
    for name in ("last.pt", "best.pt"):
        got, wanted = (torch.load(f / name, weights_only=True)["modules"]["model"] for f in (folder, expected))
        assert got.keys() == wanted.keys()
        for key, value in wanted.items():
            assert torch.equal(got[key], value), f"{name}: {key}"
    got, wanted = Result.load(folder), Result.load(expected)
    assert (got.steps, got.best_epoch, got.gradient) == (wanted.steps, wanted.best_epoch, wanted.gradient)
    for name, curve in wanted.curves.items():
        if "seconds" not in name:
            assert got.curves[name] == curve, name


def newest_step(folder: Path) -> int:
    return max((int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.pt")), default=0)


class StopAt(Silent):
    """Sends a signal to its own process at some step."""

    def __init__(self, step: int, number: int = signal.SIGINT) -> None:
        self.left, self.number = step, number

    def step(self, snapshot):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)


@pytest.fixture(autouse=True)
def every_step_is_reported(monkeypatch):
    monkeypatch.setattr("eigengrad.lab.training.reporter.Pace.due", lambda self: True)


def stop_at(step: int, folder: Path, number: int = signal.SIGINT, config: Config = CONFIG, **options) -> BaseException:
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        train(config, folder, progress=StopAt(step, number), **options)
    return caught.value


# Kill -9 --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_five_times_at_random_it_ends_with_the_same_weights(processes, uninterrupted, tmp_path):
    draw = random.Random()
    kills = sorted(draw.sample(range(2, 45), 5))
    for kill in kills:
        options = {"progress": False, "checkpoint_steps": 3}
        process = processes.Process(target=train, args=(CONFIG, tmp_path), kwargs=options, daemon=True)
        process.start()
        deadline = time.monotonic() + 300
        while newest_step(tmp_path) < kill and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"kills at {kills}"
    assert newest_step(tmp_path) >= kills[-1]
    train(CONFIG, tmp_path, progress=False)
    assert_same(tmp_path, uninterrupted)
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", "best.pt", "last.pt", "tensorboard", "lock"}


def test_what_a_killed_writer_leaves_is_removed(uninterrupted, tmp_path):
    stop_at(7, tmp_path)
    (tmp_path / ".step-0000000009.pt.123.partial").write_bytes(b"half")
    train(CONFIG, tmp_path, progress=False)
    assert_same(tmp_path, uninterrupted)
    assert not list(tmp_path.glob(".*"))


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 1, 3 * STEPS + 7])
def test_ctrl_c_finishes_the_step_and_the_run_goes_on_from_there(step, uninterrupted, tmp_path):
    stopped = stop_at(step, tmp_path)
    assert isinstance(stopped, KeyboardInterrupt)
    assert f"interrupted after step {step}, in epoch" in str(stopped)
    assert f"saved in {tmp_path}. Start the same run again" in str(stopped)
    assert newest_step(tmp_path) == step
    assert not (tmp_path / "result.json").exists()
    train(CONFIG, tmp_path, progress=False)
    assert_same(tmp_path, uninterrupted)


def test_termination_saves_too_and_ends_as_termination(uninterrupted, tmp_path):
    stopped = stop_at(25, tmp_path, signal.SIGTERM)
    assert isinstance(stopped, SystemExit)
    assert stopped.code == 143
    assert newest_step(tmp_path) == 25
    train(CONFIG, tmp_path, progress=False)
    assert_same(tmp_path, uninterrupted)


def test_a_second_ctrl_c_does_not_wait(uninterrupted, tmp_path):
    class Impatient(StopAt):
        def step(self, snapshot):
            super().step(snapshot)
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
                pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, progress=Impatient(30))
    assert newest_step(tmp_path) == STEPS, "the last epoch is there, and no step after it"
    train(CONFIG, tmp_path, progress=False)
    assert_same(tmp_path, uninterrupted)


def test_the_handlers_of_the_caller_are_back_afterwards(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop_at(2, tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_ctrl_c_in_a_terminal(tmp_path):
    """A process of its own, with the handlers Python starts with."""
    script = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from eigengrad.lab.training import Config, train\n"
        "train(Config(epochs=100000, subset=64, stem_width=8, width=8, group_size=4), sys.argv[1])"
    )
    process = subprocess.Popen([sys.executable, "-c", script, tmp_path], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while newest_step(tmp_path) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGINT, printed
    assert f"saved in {tmp_path}. Start the same run again to go on from there" in printed
    assert Checkpoints(tmp_path).newest()["step"] == newest_step(tmp_path)
    assert not (tmp_path / "result.json").exists()


# Checkpoints ----------------------------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":  # one bit, in the middle of some tensor
        state = torch.load(path, weights_only=True)
        raw = state["modules"]["model"]["fc.weight"].numpy().tobytes()
        at = content.index(raw) + len(raw) // 2
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    else:
        path.write_bytes(b"something else entirely")


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped", "foreign"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(how, uninterrupted, tmp_path):
    stop_at(50, tmp_path)
    newest, before = sorted(tmp_path.glob("step-*.pt"), reverse=True)
    assert (newest.stem, before.stem) == ("step-0000000050", "step-0000000040")
    damage(newest, how)
    with pytest.warns(DamagedFileWarning, match=rf"{newest} is damaged \(.*; going on from {before}"):
        train(CONFIG, tmp_path, progress=False)
    assert_same(tmp_path, uninterrupted)


def test_if_all_are_damaged_all_are_named_and_nothing_is_touched(tmp_path):
    stop_at(50, tmp_path)
    paths = sorted(tmp_path.glob("step-*.pt"))
    for path in paths:
        damage(path, "truncated")
    contents = [path.read_bytes() for path in paths]
    with pytest.raises(CheckpointError, match=rf"{paths[1]} is damaged .*{paths[0]} is damaged .*Delete the folder"):
        train(CONFIG, tmp_path, progress=False)
    assert [path.read_bytes() for path in paths] == contents


CHANGES = {
    "a module is missing": lambda state: state["modules"].clear(),
    "weights of another shape": lambda state: state["modules"]["model"].update({"head.weight": torch.ones(1)}),
    "weights that are none": lambda state: state["modules"].update(model="weights"),
    "an optimizer without its groups": lambda state: [
        part.pop("param_groups") for part in state["optimizers"].values()
    ],
    "no random numbers": lambda state: state["processes"].__setitem__(0, {}),
    "random numbers of another kind": lambda state: state["processes"][0].update(random=7),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_that_does_not_fit_the_run_is_named(change, tmp_path):
    """Its checksums are right: somebody has made it up."""
    stop_at(3, tmp_path)
    (path,) = tmp_path.glob("step-*.pt")
    state = torch.load(path, weights_only=True)
    CHANGES[change](state)
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=rf"the checkpoint of step 3 in {tmp_path} does not fit this run \("):
        train(CONFIG, tmp_path, progress=False)
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "value"), [("step", "3"), ("epoch", 1.5), ("seconds", float("nan")), ("curves", []), ("processes", {})]
)
def test_a_checkpoint_with_a_field_of_another_type_is_named(name, value, tmp_path):
    stop_at(3, tmp_path)
    (path,) = tmp_path.glob("step-*.pt")
    torch.save(torch.load(path, weights_only=True) | {name: value}, path)
    with pytest.raises(CheckpointError, match=rf"{path} is damaged \({name}: got"):
        train(CONFIG, tmp_path, progress=False)


def test_starting_over_is_possible(uninterrupted, tmp_path):
    stop_at(50, tmp_path)
    damage(max(tmp_path.glob("step-*.pt")), "truncated")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(CONFIG, tmp_path, resume=False, progress=False)
    assert_same(tmp_path, uninterrupted)


def test_a_checkpoint_of_another_configuration_is_refused_by_naming_the_fields(tmp_path):
    stop_at(3, tmp_path)
    expected = r"holds another run: degree is 9 there and 5 here, momentum is 0.9 there and 0.8 here"
    with pytest.raises(ValueError, match=expected):
        train(CONFIG.replace(momentum=0.8, degree=5), tmp_path, progress=False)


def test_two_checkpoints_are_kept_while_it_runs_and_none_afterwards(tmp_path):
    seen = set()

    class Counter(Silent):
        def step(self, snapshot):
            seen.add(len(list(tmp_path.glob("step-*.pt"))))

    train(CONFIG.replace(epochs=2), tmp_path, progress=Counter(), checkpoint_steps=4)
    assert seen == {0, 1, 2}
    assert not list(tmp_path.glob("step-*.pt"))


def test_dropout_goes_on_from_the_same_random_numbers(monkeypatch, tmp_path):
    from eigengrad.lab.models import MODELS, convnet

    def with_dropout(classes, **options):
        network = convnet.ConvNet(classes, **options)
        network.pool = torch.nn.Sequential(network.pool, torch.nn.Dropout(0.5))
        return network

    monkeypatch.setitem(MODELS, "convnet", with_dropout)
    config = CONFIG.replace(epochs=2)
    train(config, tmp_path / "whole", progress=False)
    stop_at(9, tmp_path / "parts", config=config)
    stop_at(15, tmp_path / "parts", config=config)
    train(config, tmp_path / "parts", progress=False)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_a_folder_in_use_is_refused(processes, tmp_path):
    options = {"progress": False, "checkpoint_steps": 1}
    process = processes.Process(target=train, args=(CONFIG.replace(epochs=1000), tmp_path), kwargs=options, daemon=True)
    process.start()
    deadline = time.monotonic() + 300
    while newest_step(tmp_path) == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        with pytest.raises(BusyError, match=rf"{tmp_path} is in use by process {process.pid} on \S+ since \d{{4}}-"):
            train(CONFIG.replace(epochs=1000), tmp_path, progress=False)
    finally:
        process.kill()
        process.join()
    stop_at(3, tmp_path, config=CONFIG.replace(epochs=1000))  # a killed process holds nothing


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Another process ends, and removes its folder, between our opening its lock and our locking it."""
    attempts = []

    def try_to_lock(file):
        attempts.append(file)
        if len(attempts) == 1:
            (tmp_path / "lock").unlink()
        return original(file)

    original = lock._try_to_lock
    monkeypatch.setattr(lock, "_try_to_lock", try_to_lock)
    (tmp_path / "kept").touch()
    with lock.locked(tmp_path):
        assert len(attempts) == 2
        assert lock.is_held(tmp_path)
    assert not lock.is_held(tmp_path)


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(victim)
    with pytest.raises(OSError, match=rf"cannot write {tmp_path}/run/lock: "):
        train(CONFIG, tmp_path / "run", progress=False)
    assert victim.read_text() == "mine"


def test_a_file_system_without_locks_can_be_used(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock.locked(tmp_path):
        (tmp_path / "kept").touch()


# Other conditions -----------------------------------------------------------------------------------------------------


class Listener(StopAt):
    """Also keeps the messages."""

    def __init__(self, step: int = 0) -> None:
        super().__init__(step)
        self.messages: list[str] = []

    def message(self, text):
        self.messages.append(text)


def test_going_on_with_another_number_of_threads_is_said_and_recorded(tmp_path):
    stop_at(7, tmp_path)
    listener = Listener(3)
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG.replace(threads=2), tmp_path, progress=listener)
    assert any("since step 7 was saved, threads was 1 and is 2: the last bits" in text for text in listener.messages)
    result = train(CONFIG.replace(threads=1), tmp_path, progress=Listener())
    expected = [
        {"step": 7, "what": "threads", "before": 1, "after": 2},
        {"step": 10, "what": "threads", "before": 2, "after": 1},
    ]
    assert result.changes == expected
    assert json.loads((tmp_path / "result.json").read_text())["changes"] == expected
    assert result.succeeded


def test_going_on_with_other_versions_or_on_another_processor_is_recorded(tmp_path, monkeypatch):
    stop_at(7, tmp_path)
    now = loop.conditions()
    monkeypatch.setattr(loop, "conditions", lambda: {**now, "torch": "9.9", "gpu": "new"})
    listener = Listener()
    result = train(CONFIG, tmp_path, progress=listener)
    assert [(c["what"], c["before"], c["after"]) for c in result.changes] == [
        ("torch", torch.__version__, "9.9"),
        ("gpu", now.get("gpu"), "new"),
    ]
    assert any(f"torch was {torch.__version__} and is 9.9, gpu was" in text for text in listener.messages)


def test_going_on_under_the_same_conditions_is_not_remarked(tmp_path):
    stop_at(7, tmp_path)
    listener = Listener()
    result = train(CONFIG, tmp_path, progress=listener)
    assert result.changes == []
    assert not any("last bits" in text for text in listener.messages)


def test_a_checkpoint_of_an_earlier_version_has_no_conditions_and_goes_on(uninterrupted, tmp_path):
    stop_at(7, tmp_path)
    (path,) = tmp_path.glob("step-*.pt")
    state = torch.load(path, weights_only=True)
    del state["conditions"], state["changes"]
    torch.save(state, path)
    assert train(CONFIG, tmp_path, progress=False).changes == []
    assert_same(tmp_path, uninterrupted)


# Disks ----------------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=rf"cannot create the folder {tmp_path / 'file' / 'run'}: .*Choose one that can"):
        train(CONFIG, tmp_path / "file" / "run", progress=False)


@contextmanager
def largest_file(size: int):
    """As a disk that is full: writes beyond some size fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_does_not_fit_leaves_the_earlier_ones_intact(uninterrupted, tmp_path):
    stop_at(30, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("step-*.pt")}
    with (
        largest_file(20_000),
        pytest.raises(OSError, match=rf"cannot write {tmp_path}/.*\.pt: File too large\. What was"),
    ):
        train(CONFIG, tmp_path, progress=False)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("step-*.pt")} == before
    torch.load(tmp_path / "best.pt", weights_only=True)
    assert not list(tmp_path.glob(".*"))
    train(CONFIG, tmp_path, progress=False)
    assert_same(tmp_path, uninterrupted)


def test_starting_over_costs_nothing_if_it_cannot_begin(tmp_path):
    stop_at(50, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("step-*.pt")}
    assert before
    with pytest.raises(OSError, match="nowhere"):
        train(CONFIG.replace(data="cifar10", data_root="nowhere"), tmp_path, resume=False, progress=False)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("step-*.pt")} == before


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 400 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_full_from_the_start_is_named(small_disk):
    (small_disk / "run").mkdir()
    with (small_disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError, match=rf"cannot write {small_disk}/run/lock: No space left on device"):
        train(CONFIG, small_disk / "run", progress=False)


@pytest.mark.parametrize("room", [0, 1, 8, 30, 50, 80], ids="{} kB".format)
def test_a_disk_that_fills_up_is_an_error_and_not_a_loss(room, small_disk, uninterrupted):
    run = small_disk / "run"
    run.mkdir()
    filling = small_disk / "filling"
    filling.write_bytes(bytes((380 - room) * 1024))
    with pytest.raises(OSError, match=r"cannot write .*: No space left on device\. What was saved before is intact"):
        train(CONFIG, run, progress=False)
    for path in run.glob("step-*.pt"):
        torch.load(path, weights_only=True)
    assert not (run / "result.json").exists()
    filling.unlink()
    train(CONFIG, run, progress=False)
    assert_same(run, uninterrupted)
