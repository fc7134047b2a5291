"""Several processes: the same curve as one with the joined batch, and runs that go on after an interruption."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from eigengrad.lab.data import DATASETS, Split, load
from eigengrad.lab.training import Config, Result, train
from eigengrad.lab.training.reporter import Silent
from eigengrad.lab.training.synchronise import SynchronisedBatchNorm2d

pytestmark = pytest.mark.slow  # tests/nn/test_distributed.py has what is quick

CONFIG = Config(subset=320, stem_width=8, width=8, group_size=4, epochs=2, batch_size=64, lr=0.02, threads=1)
#: The defaults, for as long as it takes to learn the digits. Float32 would amplify round-off to where it shows.
WHOLE = Config(precision="float64", epochs=5, threads=1)
METHODS = {"taylor": {}, "exact": {"gradient": "exact"}, "iternorm": {"norm": "iternorm"}, "bn": {"norm": "batchnorm"}}


class Interrupt(Silent):
    """Asks only the main process to stop: the other one has to be told."""

    def epoch(self, epoch, epochs, values):
        os.kill(os.getpid(), 2)


def work(folder: Path) -> None:
    """One of the processes that torchrun starts."""
    for name, change in METHODS.items():
        result = train(CONFIG.replace(**change), folder / name, progress=False)
        if int(os.environ["RANK"]) == 1:  # both know the result; the main one has written it
            result.save(folder / f"{name}-1.json")
    train(WHOLE, folder / "whole", progress=False)
    try:
        train(CONFIG, folder / "interrupted", progress=Interrupt())
    except KeyboardInterrupt as stopped:
        (folder / f"stopped-{os.environ['RANK']}").write_text(str(stopped))
    train(CONFIG, folder / "interrupted", progress=False)
    digits = load("digits", subset=320)
    silent = Split(torch.zeros_like(digits.train.images), digits.train.labels)
    DATASETS["silent"] = lambda *_, **__: replace(digits, train=silent, mean=(0.0,))
    DATASETS["infinite"] = lambda *_, **__: replace(digits, std=(0.0,))
    failing = CONFIG.replace(data="silent", gradient="svd", subset=None)
    failed = train(failing, folder / "gradient", progress=False)
    (folder / f"failed-{os.environ['RANK']}").write_text(failed.failure.message)
    try:
        train(CONFIG.replace(data="infinite", subset=None), folder / "decomposition", progress=False)
    except torch.linalg.LinAlgError as error:
        (folder / f"raised-{os.environ['RANK']}").write_text(str(error))
    try:
        train(CONFIG.replace(batch_size=63), folder / "odd", progress=False)
    except ValueError as error:
        (folder / f"odd-{os.environ['RANK']}").write_text(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, __file__, folder], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def trained_weights(run):
    return torch.load(run / "last.pt", weights_only=True)["modules"]["model"]


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_have_the_curve_of_one(method, folder, tmp_path):
    alone = train(CONFIG.replace(**METHODS[method]), tmp_path, progress=False)
    together = Result.load(folder / method)
    for name in ("train_loss", "train_error", "test_loss", "test_error", "lr"):
        assert together.curves[name] == pytest.approx(alone.curves[name], rel=1e-4), name
    assert together.steps == alone.steps
    other = Result.load(folder / f"{method}-1.json")
    assert (other.curves["train_loss"], other.best_error) == (together.curves["train_loss"], together.best_error)


def test_the_weights_are_those_of_an_ordinary_model(folder, tmp_path):
    train(CONFIG, tmp_path, progress=False)
    alone, together = (trained_weights(place) for place in (tmp_path, folder / "taylor"))
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-3, atol=1e-4)


def test_in_double_precision_a_whole_training_is_the_same(folder, tmp_path):
    alone, together = train(WHOLE, tmp_path, progress=False), Result.load(folder / "whole")
    assert alone.curves["train_loss"][-1] < 0.1 * alone.curves["train_loss"][0]  # it has learned something
    for name in ("train_loss", "train_error", "test_loss", "test_error"):
        assert together.curves[name] == pytest.approx(alone.curves[name], rel=1e-9), name
    one, two = trained_weights(tmp_path), trained_weights(folder / "whole")
    for name, value in one.items():
        assert value.dtype in (torch.float64, torch.int64), name
        torch.testing.assert_close(two[name], value, rtol=1e-9, atol=1e-9)


def test_all_stop_when_one_is_asked_to_and_go_on_as_if_nothing_had_been(folder):
    assert "interrupted after step 5" in (folder / "stopped-0").read_text()
    assert (folder / "stopped-0").read_text() == (folder / "stopped-1").read_text()
    expected, got = Result.load(folder / "taylor").curves, Result.load(folder / "interrupted").curves
    assert got["train_loss"] == expected["train_loss"]
    assert got["test_error"] == expected["test_error"]


def recorded(folder):
    """The failure in a result; its data set is not known here."""
    return json.loads((folder / "result.json").read_text())["failure"]


def test_all_fail_at_the_same_step_for_the_same_reason(folder):
    assert recorded(folder / "gradient")["reason"] == "non-finite gradient"
    assert (folder / "failed-0").read_text() == (folder / "failed-1").read_text()


def test_a_decomposition_that_fails_is_on_record_and_an_error_so_that_nobody_waits(folder):
    assert recorded(folder / "decomposition")["reason"] == "decomposition"
    assert "non-finite entries" in (folder / "raised-0").read_text()
    assert (folder / "raised-1").exists()


def test_a_batch_that_cannot_be_shared_is_refused_everywhere(folder):
    for rank in range(2):
        assert "cannot be shared equally by 2 processes" in (folder / f"odd-{rank}").read_text()


def test_a_run_of_two_processes_is_not_gone_on_with_by_one(folder, tmp_path):
    class Stop(Silent):
        def step(self, snapshot):
            os.kill(os.getpid(), 2)

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path, progress=Stop())
    (checkpoint,) = tmp_path.glob("step-*.pt")
    state = torch.load(checkpoint, weights_only=True)
    state["processes"] *= 2
    torch.save(state, checkpoint)
    with pytest.raises(ValueError, match="was begun with 2 processes, and there are 1 now; start as many again"):
        train(CONFIG, tmp_path, progress=False)


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(torch.float32, 1e-4, 1e-5), (torch.float64, 1e-12, 1e-13)])
def test_the_synchronised_batch_norm_is_batch_norm_on_its_own(dtype, rtol, atol, tmp_path):
    x = torch.randn(6, 4, 5, 5, dtype=dtype) * 3 + 2
    plain = nn.BatchNorm2d(4, dtype=dtype)
    nn.init.normal_(plain.weight)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        synchronised = SynchronisedBatchNorm2d.like(plain)
        expected, got = x.clone().requires_grad_(), x.clone().requires_grad_()
        weights = torch.randn_like(x)
        for norm, points in ((plain, expected), (synchronised, got)):
            (norm(points) * weights).sum().backward()
        torch.testing.assert_close(synchronised(x), plain(x))
        torch.testing.assert_close(got.grad, expected.grad, rtol=rtol, atol=atol)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(synchronised.state_dict()[name], value)
        torch.testing.assert_close(synchronised.eval()(x), plain.eval()(x))
    finally:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
