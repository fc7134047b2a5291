"""Sweeps on this machine: grids, real worker processes, interruptions and deaths."""

import errno
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from rich.console import Console

from eigengrad.lab.sweeps import Grid, SweepError, sweep, worker
from eigengrad.lab.sweeps.local import budget
from eigengrad.lab.sweeps.progress_table import ProgressTable
from eigengrad.lab.sweeps.run import Run
from eigengrad.lab.training import Config, Failure, Result, train
from eigengrad.lab.training.environment import available_cores
from eigengrad.lab.training.reporter import Snapshot

SMALL = Config(subset=64, stem_width=8, width=8, group_size=4, epochs=2, batch_size=32, lr=0.02)
ENDLESS = SMALL.replace(epochs=1_000_000)


def marks(folder: Path) -> dict[str, int]:
    """When each result was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/result.json")}


def wait_for(condition, what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def holder(folder: Path) -> int:
    """The process that has, or had, the folder of a run."""
    return int((folder / "lock").read_text().split()[0])


# The grid -------------------------------------------------------------------------------------------------------------


METHODS = {"SVD-Taylor": {"gradient": "taylor"}, "ours": {"gradient": "exact"}, "batch norm": {"norm": "batchnorm"}}


def test_a_grid_is_every_method_by_every_value_by_every_seed():
    grid = Grid(SMALL, METHODS, {"group_size": (2, 4), "eps": (0.1,)}, seeds=(0, 5))
    configs = grid.configs()
    assert len(configs) == 3 * 2 * 2
    assert [config.seed for config in configs] == [0] * 6 + [5] * 6, "something of every cell comes first"
    assert {(c.norm, c.gradient, c.group_size) for c in configs if c.norm == "dbn"} == {
        ("dbn", gradient, size) for gradient in ("taylor", "exact") for size in (2, 4)
    }
    assert all(config.epochs == SMALL.epochs and config.eps == 0.1 for config in configs)


def test_a_method_that_fixes_an_axis_has_one_cell():
    grid = Grid(SMALL, {**METHODS, "d = 8": {"group_size": 8}}, {"group_size": (2, 4)})
    assert [(method, point) for method, point, _ in grid.cells()][-1] == ("d = 8", {})
    assert len(grid.configs()) == 7


def test_a_grid_of_a_field_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="unknown field 'depth'"):
        Grid(SMALL, METHODS, {"depth": (1, 2)}).configs()


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("jobs", [None, 1, 2, 5])
def test_the_default_budget_does_not_exceed_the_cores(jobs, cores):
    processes, threads = budget(jobs, None, cores)
    assert processes >= 1
    assert threads >= 1
    assert processes == jobs if jobs else processes * threads <= cores
    assert processes * threads <= max(cores, processes)


def test_a_budget_that_is_asked_for_is_kept():
    assert budget(3, 4, cores=2) == (3, 4)
    assert budget(None, 4, cores=2) == (1, 4)
    assert budget(None, None, cores=16, devices=4) == (4, 4)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"backend": "slurm"}, ValueError, "backend: got 'slurm'; expected one of 'local', 'ray'"),
        ({"jobs": 0}, ValueError, "sweep: jobs must be at least 1; got 0"),
        ({"threads": 1.5}, TypeError, "sweep: threads must be an integer; got 1.5"),
        ({"address": "auto"}, ValueError, "address: got 'auto', which is for backend='ray'"),
    ],
)
def test_bad_arguments_are_named(options, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        sweep([SMALL], tmp_path, **options)


def test_nothing_to_do_is_done_at_once(tmp_path):
    assert sweep([], tmp_path) == []


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    failing = SMALL.replace(lr=1e30, seed=9)
    same = [SMALL.replace(norm="batchnorm", group_size=size) for size in (2, 4)]
    configs = [SMALL, failing, SMALL.replace(seed=1), *same]
    return configs, sweep(configs, folder, jobs=2, progress=False), folder


def test_results_come_in_the_order_of_the_configurations(done):
    configs, results, _ = done
    assert [result.config for result in results] == configs
    assert [result.outcome for result in results] == ["succeeded", "failed", "succeeded", "succeeded", "succeeded"]


def test_each_run_is_in_the_folder_of_its_key_and_runs_that_are_the_same_are_done_once(done):
    configs, results, folder = done
    assert {path.parent.name for path in folder.glob("*/result.json")} == {config.key() for config in configs}
    assert len({config.key() for config in configs}) == 4
    assert results[3].curves == results[4].curves


def test_a_run_of_a_sweep_is_the_run_of_train(done, tmp_path):
    alone = train(SMALL.replace(threads=1), tmp_path, progress=False)
    assert done[1][0].curves["train_loss"] == alone.curves["train_loss"]


def test_each_process_has_its_share_of_the_cores(done):
    assert done[1][0].machine["threads"] == max(1, available_cores() // 2)


def test_finished_runs_are_not_repeated_the_failed_ones_included(done, capfd):
    configs, results, folder = done
    before = marks(folder)
    assert [result.curves for result in sweep(configs, folder)] == [result.curves for result in results]
    assert marks(folder) == before
    assert "4 of 4 runs are already done" in capfd.readouterr().err


def test_a_result_that_is_damaged_is_named_before_anything_is_run(done, tmp_path):
    run = tmp_path / SMALL.key()
    run.mkdir()
    (run / "result.json").write_text("{")
    with pytest.raises(ValueError, match=rf"{run}/result.json is not a whole result"):
        sweep([SMALL.replace(seed=5), SMALL], tmp_path, progress=False)
    assert not (tmp_path / SMALL.replace(seed=5).key()).exists()


@contextmanager
def meanwhile(act):
    """Do something in another thread while a sweep is at work in this one; report it if that goes wrong."""
    trouble = []

    def attempt():
        try:
            act()
        except BaseException as error:
            trouble.append(error)
            os.kill(os.getpid(), signal.SIGINT)  # end the sweep

    thread = threading.Thread(target=attempt)
    thread.start()
    yield
    thread.join()
    assert not trouble, trouble


@pytest.mark.slow
def test_a_run_that_dies_is_named_and_the_others_go_on(tmp_path):
    """Killed from outside, as by a system that is out of memory."""
    missing = SMALL.replace(data="cifar10", data_root=str(tmp_path / "nowhere"))
    victim, bystander = ENDLESS, SMALL.replace(seed=1)
    folder = tmp_path / victim.key()

    def kill():
        wait_for(lambda: len(list(folder.glob("step-*.pt"))) == 2, "the run never began")
        os.kill(holder(folder), signal.SIGKILL)

    with meanwhile(kill), pytest.raises(SweepError, match=r"2 of the runs in .* ended without a result") as caught:
        sweep([missing, victim, bystander], tmp_path, jobs=1, progress=False)
    reasons = caught.value.reasons
    assert reasons[victim.key()] == f"its process was killed by SIGKILL (see {folder / 'log.txt'})"
    assert "nowhere" in reasons[missing.key()]
    assert all(f"{key}: {reason}" in str(caught.value) for key, reason in reasons.items())
    assert [result.config for result in caught.value.results] == [bystander]
    assert "Traceback" in (tmp_path / missing.key() / "log.txt").read_text()
    assert len(list(folder.glob("step-*.pt"))) == 2, "what was saved is still there to go on from"


def test_ctrl_c_saves_the_run_at_work_in_the_middle_of_an_epoch(tmp_path, monkeypatch):
    config = SMALL.replace(subset=None, batch_size=1, epochs=2)  # an epoch of many steps: nothing is saved before
    folder = tmp_path / config.key()
    steps = threading.Event()
    monkeypatch.setattr(ProgressTable, "progress", lambda table, run, snapshot: steps.set())

    def interrupt():
        assert steps.wait(300), "the run never began"
        assert not list(folder.glob("step-*.pt"))
        os.kill(os.getpid(), signal.SIGINT)

    expected = f"interrupted with 0 of 1 runs done; the others are saved in {tmp_path}. Start the sweep again to go on"
    with meanwhile(interrupt), pytest.raises(KeyboardInterrupt, match=expected):
        sweep([config], tmp_path, progress=False)
    worker = holder(folder)
    assert worker != os.getpid()
    assert not alive(worker)
    assert not (folder / "result.json").exists()
    (saved,) = folder.glob("step-*.pt")
    assert 0 < torch.load(saved, weights_only=True)["step"] < 1000


# Two sweeps in one folder ---------------------------------------------------------------------------------------------

SWEEP = """
import sys
from eigengrad.lab.sweeps import sweep
from eigengrad.lab.training import Config
configs = [Config.from_dict(fields) for fields in {fields!r}]
results = sweep(configs, sys.argv[1], jobs=1, threads=1)
assert [result.outcome for result in results] == ["succeeded"] * len(configs)
"""


def start_sweep(configs, folder: Path) -> subprocess.Popen:
    code = SWEEP.format(fields=[config.to_dict() for config in configs])
    command = [sys.executable, "-c", code, str(folder)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.slow
def test_two_sweeps_in_one_folder_share_the_runs_and_both_end_well(tmp_path):
    """The second one begins while the first is at its first run, which is long, and does the others."""
    configs = [SMALL.replace(subset=None, epochs=50), SMALL.replace(seed=1), SMALL.replace(seed=2)]
    first = start_sweep(configs, tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/step-*.pt")), "the first sweep never began")
    at_work = next(tmp_path.glob("*/step-*.pt")).parent
    second = start_sweep(configs, tmp_path)
    outputs = [process.communicate(timeout=300)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert f"{at_work.name}  is being done by process {holder(at_work)} on " in outputs[1]
    assert len(marks(tmp_path)) == 3
    assert "2 of 3 runs are already done" not in outputs[1]
    assert all(f"  {config.key()}  best error" in outputs[1] for config in configs), outputs


@pytest.mark.slow
def test_a_run_of_a_sweep_that_is_killed_goes_on_in_the_other_one(tmp_path):
    config = SMALL.replace(subset=None, epochs=60)
    first = start_sweep([config], tmp_path)
    folder = tmp_path / config.key()
    wait_for(lambda: list(folder.glob("step-*.pt")), "the first sweep never began")
    second = start_sweep([config], tmp_path)
    log = []
    thread = threading.Thread(target=lambda: log.extend(second.stderr))
    thread.start()
    wait_for(lambda: any("is being done by" in line for line in log) or second.poll() is not None, "it never waited")
    assert second.poll() is None, log
    worker = holder(folder)
    first.kill()
    os.kill(worker, signal.SIGKILL)
    first.wait()
    assert second.wait(timeout=300) == 0, log
    thread.join()
    assert holder(folder) != worker
    assert Result.load(folder).succeeded
    first.stderr.close()
    second.stderr.close()


@pytest.mark.slow
def test_a_worker_saves_its_run_and_ends_when_its_parent_is_killed(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eigengrad.lab.sweeps"])
    parent = context.Process(target=sweep, args=([ENDLESS], tmp_path), kwargs={"progress": False})
    parent.start()
    folder = tmp_path / ENDLESS.key()
    wait_for(lambda: list(folder.glob("step-*.pt")), "the run never began")
    worker = holder(folder)
    assert worker != parent.pid
    parent.kill()
    parent.join()
    wait_for(lambda: not alive(worker), "the worker goes on without its parent")
    assert list(folder.glob("step-*.pt"))


def test_a_worker_that_cannot_begin_ends_the_sweep_with_its_own_words(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        RuntimeError, match=r"(?s)a worker process ended with exit code 1 before .*this torch is broken"
    ):
        sweep([SMALL], tmp_path / "sweep", progress=False)


def test_a_result_of_another_run_is_not_taken_for_this_one(tmp_path):
    sweep([SMALL], tmp_path, progress=False)
    other = SMALL.replace(seed=1)
    (tmp_path / other.key()).mkdir()
    (tmp_path / SMALL.key() / "result.json").rename(tmp_path / other.key() / "result.json")
    with pytest.raises(ValueError, match=rf"{other.key()}/result.json holds another run: seed is 0 there and 1 here"):
        sweep([other], tmp_path, progress=False)


def test_the_reason_survives_a_disk_that_is_full_for_the_log_as_well(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr(worker.os, "dup2", lambda *_: None)  # the test's own output is not the run's
    monkeypatch.setattr(worker, "execute", full)
    monkeypatch.setattr(worker.traceback, "print_exc", full)
    answer = worker._execute({"directory": str(tmp_path), "run": {}}, lambda **_: None)
    assert answer["kind"] == "crashed"
    assert "No space left on device" in answer["reason"]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=rf"cannot create the folder {tmp_path}/file/sweep"):
        sweep([SMALL], tmp_path / "file" / "sweep")


# The table ------------------------------------------------------------------------------------------------------------


def snapshot(**values):
    return Snapshot(**{"epoch": 2, "epochs": 4, "batch": 5, "batches": 10, "gradient_norm": 0.5, **values})


def show(terminal: bool, act) -> str:
    text = io.StringIO()
    with ProgressTable(4, 1, visible=True, console=Console(file=text, force_terminal=terminal, width=120)) as table:
        act(table)
        table._live.refresh()
    return text.getvalue()


def test_the_board_shows_the_runs_at_work_and_a_line_for_each_that_ended(tmp_path):
    runs = [Run(SMALL.replace(seed=seed), tmp_path / f"run-{seed}") for seed in range(3)]
    failure = Failure(7, 1, "divergence", "loss", "the loss has grown")

    def act(table):
        for run in runs:
            table.started(run)
        table.progress(runs[0], snapshot(values={"loss": 1.25, "error": 0.4}, samples_per_second=1234.0))
        change = {"step": 8, "what": "threads", "before": 1, "after": 2}
        table.ended(runs[1], Result(SMALL, "succeeded", best_error=0.125, best_epoch=3, seconds=7.0, changes=[change]))
        table.ended(runs[2], Result(SMALL, "failed", failure))

    for terminal in (False, True):
        shown = show(terminal, act)
        assert "1 of 4 runs are already done" in shown
        assert "2/4  run-1  best error 12.50 % in epoch 3  7 s" in shown
        assert "run-1  threads was 1 up to step 8 and 2 after it: the last bits differ" in shown
        assert "3/4  run-2  failed: the loss has grown" in shown
        assert ("3 of 4 done (1 failed), 1 at work, about" in shown) == terminal
    for cell in ("run-0", "2/4", "38 %", "1.250", "60.0 %", "1,234"):
        assert cell in shown


def test_a_board_that_is_not_to_be_seen_says_nothing(tmp_path, capfd):
    with ProgressTable(1, 0, visible=False) as table:
        table.crashed(Run(SMALL, tmp_path / "run"), "no reason")
    assert capfd.readouterr().err == ""
    assert table.crashes == {"run": "no reason"}
