"""Sweeps on a Ray cluster: here one of two nodes on this machine."""

import os
import signal
import sys
import threading
import time

import pytest

from eigengrad.lab.sweeps import SweepError, sweep
from eigengrad.lab.training import Config

SMALL = Config(subset=64, stem_width=8, width=8, group_size=4, epochs=2, batch_size=32, lr=0.02)


def test_without_ray_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"backend='ray' needs Ray: pip install ray"):
        sweep([SMALL], tmp_path, backend="ray", progress=False)


def test_a_cluster_that_does_not_answer_is_named(tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(ConnectionError, match="address: no Ray cluster answers at 'auto'"):
        sweep([SMALL], tmp_path, backend="ray", address="auto", progress=False)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def wait_for(condition, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


@pytest.mark.slow
def test_runs_are_shared_by_the_nodes_and_come_back(cluster, tmp_path):
    configs = [SMALL.replace(seed=seed, epochs=20) for seed in range(4)] + [SMALL.replace(lr=1e30)]
    results = sweep(configs, tmp_path, backend="ray", address=cluster.address, progress=False)
    assert [result.config for result in results] == configs
    assert [result.outcome for result in results] == ["succeeded"] * 4 + ["failed"]
    nodes = {(tmp_path / config.key() / "lock").read_text().split()[0] for config in configs}
    assert len(nodes) >= 2, "one process did all of them"
    before = [(tmp_path / config.key() / "result.json").stat().st_mtime_ns for config in configs]
    again = sweep(configs, tmp_path, backend="ray", address=cluster.address, progress=False)
    assert [result.curves for result in again] == [result.curves for result in results]
    assert [(tmp_path / config.key() / "result.json").stat().st_mtime_ns for config in configs] == before
    local = sweep(configs[:1], tmp_path / "local", jobs=1, threads=1, progress=False)
    assert local[0].curves["train_loss"] == results[0].curves["train_loss"]


@pytest.mark.slow
def test_what_cannot_begin_is_named_and_the_others_go_on(cluster, tmp_path):
    missing = SMALL.replace(data="cifar10", data_root=str(tmp_path / "nowhere"))
    with pytest.raises(SweepError, match=rf"{missing.key()}: \w+: .*nowhere") as caught:
        sweep([missing, SMALL], tmp_path, backend="ray", address=cluster.address, progress=False)
    assert [result.config for result in caught.value.results] == [SMALL]


@pytest.mark.slow
def test_ctrl_c_saves_the_runs_at_work(cluster, tmp_path):
    endless = SMALL.replace(epochs=1_000_000)
    folder = tmp_path / endless.key()

    def interrupt():
        wait_for(lambda: len(list(folder.glob("step-*.pt"))) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="interrupted with 0 of 1 runs done"):
        sweep([endless], tmp_path, backend="ray", address=cluster.address, progress=False)
    thread.join()
    newest = max(folder.glob("step-*.pt")).name
    time.sleep(1)
    assert max(folder.glob("step-*.pt")).name == newest, "the run goes on"
    assert not (folder / "result.json").exists()


@pytest.mark.slow
def test_a_run_whose_node_is_lost_goes_on_at_another_one(cluster, tmp_path):
    configs = [SMALL.replace(epochs=300, seed=seed) for seed in range(2)]
    folders = [tmp_path / config.key() for config in configs]
    processes = []

    def lose():
        wait_for(lambda: all(len(list(folder.glob("step-*.pt"))) == 2 for folder in folders))
        processes.extend((folder / "lock").read_text().split()[0] for folder in folders)
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)

    thread = threading.Thread(target=lose)
    thread.start()
    results = sweep(configs, tmp_path, backend="ray", address=cluster.address, progress=False)
    thread.join()
    assert [result.outcome for result in results] == ["succeeded", "succeeded"]
    assert [result.steps for result in results] == [600, 600]
    assert [(folder / "lock").read_text().split()[0] for folder in folders] != processes
