"""A run from its beginning to its end, good or bad."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eigengrad.lab.data import DATASETS, Split, load
from eigengrad.lab.training import Config, Result, run, train
from eigengrad.lab.training.classification import Classification, _wrong
from eigengrad.lab.training.engine import LOOK_EVERY
from eigengrad.lab.training.health import Health, TrainingFailedError

SMALL = Config(subset=192, stem_width=8, width=8, group_size=4, epochs=3, batch_size=32, lr=0.02, lr_step=2)
STEPS = 6  # of an epoch


def curves(result):
    """Those that do not depend on the clock."""
    return {name: curve for name, curve in result.curves.items() if "seconds" not in name}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return train(SMALL, folder, progress=False), folder


def test_it_ends_in_a_result_with_a_number_for_every_epoch(finished):
    result, folder = finished
    assert Result.load(folder) == result
    assert (result.outcome, result.failure, result.config, result.seed) == ("succeeded", None, SMALL, 0)
    assert result.steps == 3 * STEPS
    assert {len(curve) for curve in result.curves.values()} == {3}
    assert {"train_loss", "train_error", "test_loss", "test_error", "lr", "seconds"} <= set(result.curves)
    assert all(math.isfinite(value) for curve in result.curves.values() for value in curve)
    assert result.seconds == pytest.approx(sum(result.curves["seconds"] + result.curves["test_seconds"]))


def test_the_best_and_the_last_epoch_are_labelled(finished):
    result, folder = finished
    errors = result.curves["test_error"]
    assert all(five <= first for five, first in zip(result.curves["test_top5_error"], errors, strict=True))
    assert result.best_error == min(errors)
    assert errors.index(min(errors)) + 1 == result.best_epoch
    assert result.last_error == errors[-1]
    best, last = (torch.load(folder / name, weights_only=True) for name in ("best.pt", "last.pt"))
    assert (best["epoch"], last["epoch"]) == (result.best_epoch, 3)
    assert Config.from_dict(last["settings"]) == SMALL
    assert all(tensor.isfinite().all() for tensor in last["modules"]["model"].values())


def test_the_error_in_the_result_is_the_error_of_the_weights(finished):
    result, folder = finished
    from eigengrad.lab.data import loader
    from eigengrad.lab.models import build, normalisation

    data = load("digits")
    norm = normalisation("dbn", group_size=4)
    model = build("convnet", 10, norm=norm, stem_width=8, width=8, in_channels=1, image_size=8).eval()
    model.load_state_dict(torch.load(folder / "last.pt", weights_only=True)["modules"]["model"])
    batches = loader(data.test, 64, train=False, augmentation=data.augmentation, mean=data.mean, std=data.std)
    with torch.no_grad():
        wrong = sum(int((model(images).argmax(1) != labels).sum()) for images, labels in batches)
    assert wrong / len(data.test) == result.last_error


def test_the_learning_rate_falls_by_steps(finished):
    assert finished[0].curves["lr"] == pytest.approx([0.02, 0.02, 0.002])


def test_it_learns(tmp_path):
    result = train(Config(stem_width=16, width=16, epochs=4, group_size=8, batch_size=32), tmp_path, progress=False)
    assert result.curves["train_loss"][-1] < result.curves["train_loss"][0] / 2
    assert result.gradient["norm_max"] >= result.gradient["norm_mean"] > 0


def test_the_same_configuration_gives_the_same_run_whatever_the_global_generators(finished, tmp_path):
    torch.manual_seed(99)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    assert curves(train(SMALL, tmp_path, progress=False)) == curves(finished[0])
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), states[2])


def test_another_seed_gives_another_run(finished, tmp_path):
    assert curves(train(SMALL.replace(seed=1), tmp_path, progress=False)) != curves(finished[0])


def test_threads_are_given_back(finished, tmp_path):
    assert torch.get_num_threads() == 1
    result = train(SMALL.replace(threads=2, epochs=1, subset=32), tmp_path, progress=False)
    assert result.machine["threads"] == 2
    assert torch.get_num_threads() == 1


def test_a_run_that_has_ended_is_not_repeated(finished):
    result, folder = finished
    changed = (folder / "last.pt").stat().st_mtime_ns
    assert train(SMALL, folder, progress=False) == result
    assert train(SMALL.replace(threads=3, data_root="/elsewhere"), folder, progress=False).curves == result.curves
    assert (folder / "last.pt").stat().st_mtime_ns == changed


def test_a_run_that_has_ended_can_be_done_again_on_request(finished, tmp_path):
    train(SMALL.replace(seed=5), tmp_path, progress=False)
    assert curves(train(SMALL, tmp_path, resume=False, progress=False)) == curves(finished[0])


def test_nothing_of_the_earlier_run_is_left_when_it_is_done_again(tmp_path):
    train(SMALL, tmp_path, progress=False)
    assert not train(SMALL.replace(lr=1e30), tmp_path, resume=False, progress=False).succeeded
    assert not list(tmp_path.glob("*.pt"))


def test_the_folder_of_another_run_is_refused_by_naming_the_fields(finished):
    expected = r"holds another run: group_size is 4 there and 8 here, lr is 0.02 there and 0.3 here\. Choose another"
    with pytest.raises(ValueError, match=expected):
        train(SMALL.replace(lr=0.3, group_size=8), finished[1], progress=False)


def test_only_what_is_of_use_remains(finished):
    names = {path.name for path in finished[1].iterdir()}
    assert names == {"result.json", "best.pt", "last.pt", "tensorboard", "lock"}


def test_tensorboard_has_the_curves(finished):
    result, folder = finished
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for name in ("train_loss", "test_error", "lr", "gradient_norm"):
        shown = [event.value for event in events.Scalars(f"epoch/{name}")]
        assert shown == pytest.approx(result.curves[name])
    assert [event.step for event in events.Scalars("step/loss")] == [10]


def test_the_reporter_hears_of_everything(tmp_path):
    heard = []

    class Listener:
        def step(self, snapshot):
            heard.append("step")
            assert 0 < snapshot.share <= 1
            assert snapshot.samples_per_second > 0
            assert {"loss", "error"} == set(snapshot.values)

        def epoch(self, epoch, epochs, values):
            heard.append((epoch, epochs, values["test_error"]))

        def message(self, text):
            heard.append(text)

        def close(self):
            heard.append("closed")

    result = train(SMALL.replace(epochs=2), tmp_path, progress=Listener())
    assert heard[0] == "step"
    assert [item for item in heard if isinstance(item, tuple)] == [
        (1, 2, result.curves["test_error"][0]),
        (2, 2, result.curves["test_error"][1]),
    ]
    assert heard[-1] == "closed"


def test_where_there_is_no_terminal_there_is_a_line_an_epoch(tmp_path, capfd):
    train(SMALL.replace(epochs=2), tmp_path)
    lines = capfd.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert "test error" in lines[0]


@pytest.mark.parametrize("change", [{"norm": "iternorm"}, {"norm": "batchnorm"}, {"pooling": "svd_taylor"}], ids=str)
def test_other_networks_train_too(change, tmp_path):
    assert train(SMALL.replace(**change, epochs=1), tmp_path, progress=False).succeeded


def test_the_work_of_a_gradient_rule_is_reported_where_there_is_one(finished, tmp_path):
    health = finished[0].gradient
    assert 0 <= health["acted"] <= 1
    assert 0 <= health["removed"] <= 1
    assert health["amplification"] > 0
    exact = train(SMALL.replace(gradient="exact", epochs=1), tmp_path, progress=False)
    assert set(exact.gradient) == {"norm_mean", "norm_max", "lost"}
    assert exact.gradient["lost"] == 0
    assert 0 < health["lost"] <= 1


def test_the_rank_that_svd_pi_keeps_is_reported(tmp_path):
    result = train(SMALL.replace(gradient="power_iteration", epochs=1), tmp_path, progress=False)
    assert 0 < result.gradient["rank"] < SMALL.group_size


def test_a_config_that_is_none_is_refused(tmp_path):
    with pytest.raises(TypeError, match="train: config must be a Config; got"):
        train({"lr": 0.1}, tmp_path)


def test_float16_without_a_gpu_is_refused(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="precision: got 'fp16', but there is no GPU here"):
        train(SMALL.replace(precision="fp16"), tmp_path)


@pytest.mark.slow
def test_mixed_precision_trains(tmp_path):
    """In a process of its own: where AMX is announced but not allowed, oneDNN has to be told before torch starts."""
    script = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from eigengrad.lab.training import Config, train\n"
        "result = train(Config(epochs=5, precision='bf16'), sys.argv[1], progress=False)\n"
        "assert result.curves['train_loss'][-1] < 0.5, result.curves"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, check=True)
    assert all(
        tensor.dtype in (torch.float32, torch.int64)
        for tensor in torch.load(tmp_path / "last.pt", weights_only=True)["modules"]["model"].values()
    )


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(monkeypatch):
    """Digits that are not as they should be, by name."""
    digits = load("digits", subset=192)
    silent = Split(torch.zeros_like(digits.train.images), digits.train.labels)
    monkeypatch.setitem(DATASETS, "infinite", lambda *_, **__: replace(digits, std=(0.0,)))
    monkeypatch.setitem(DATASETS, "silent", lambda *_, **__: replace(digits, train=silent, mean=(0.0,)))


def failing(folder, **changes):
    result = train(SMALL.replace(subset=None, **changes), folder, progress=False)
    assert result.outcome == "failed"
    assert not result.succeeded
    assert Result.load(folder) == result
    assert result.best_error is result.last_error is None
    assert json.loads((folder / "result.json").read_text())["failure"]["reason"] == result.failure.reason
    assert f"step {result.failure.step} (epoch {result.failure.epoch})" in result.failure.message
    return result.failure


def test_infinite_data_is_a_loss_that_is_not_finite(data, tmp_path):
    failure = failing(tmp_path, data="infinite", norm="batchnorm")
    assert (failure.step, failure.epoch, failure.reason, failure.where) == (1, 1, "non-finite loss", "loss")


def test_infinite_data_before_a_decomposition_is_reported_with_its_words_and_its_layer(data, tmp_path):
    failure = failing(tmp_path, data="infinite")
    assert (failure.step, failure.reason, failure.where) == (1, "decomposition", "bn1")
    assert "non-finite entries (NaN or infinity); expected finite numbers" in failure.message


def test_plain_svd_of_silent_channels_is_a_gradient_that_is_not_finite_in_the_first_layer(data, tmp_path):
    failure = failing(tmp_path, data="silent", gradient="svd")
    assert (failure.step, failure.reason, failure.where) == (1, "non-finite gradient", "conv1.weight")


def test_taylor_trains_where_plain_svd_fails(data, tmp_path):
    assert train(SMALL.replace(subset=None, data="silent", epochs=1), tmp_path, progress=False).succeeded


def test_a_huge_learning_rate_is_divergence(tmp_path):
    failure = failing(tmp_path, lr=30.0, norm="batchnorm", epochs=1)
    assert (failure.step, failure.epoch, failure.reason) == (40, 1, "divergence")


def test_a_gradient_whose_norm_overflows_is_divergence_as_well():
    health = Health()
    gradients = {"fine": torch.ones(3), "huge": torch.full((4,), 1e30)}
    health.step, health.epoch = 7, 2
    health.record(torch.tensor(1e20), gradients)
    with pytest.raises(TrainingFailedError, match="the gradient of huge has grown beyond float32 at step 7") as caught:
        health.check(gradients=gradients)
    assert (caught.value.failure.reason, caught.value.failure.where) == ("divergence", "huge")


@pytest.mark.parametrize("broken", [2, 5])
def test_a_failure_that_is_found_late_is_dated_by_the_step_that_caused_it(broken):
    """As on a device whose values are read every ten steps."""
    health = Health()
    for step in range(1, 11):
        health.step, health.epoch = step, 1
        loss = torch.tensor(torch.nan if step > broken else 1.0)
        health.record(loss, {"first": torch.ones(2), "second": torch.ones(3) * (torch.inf if step >= broken else 1)})
    with pytest.raises(TrainingFailedError) as caught:
        health.check()
    failure = caught.value.failure
    assert (failure.step, failure.reason, failure.where) == (broken, "non-finite gradient", "second")
    health.check()  # what has been checked is not checked again


class Device(Classification):
    """A task on a device that has to be waited for, so that its values are read only now and then."""

    def __init__(self, config, engine):
        super().__init__(config, engine)
        engine.look_every = LOOK_EVERY


def test_a_device_that_is_seldom_looked_at_does_the_same(finished, tmp_path):
    result = run(SMALL, lambda engine: Device(SMALL, engine), tmp_path, progress=False, checkpoint_steps=4)
    assert curves(result) == curves(finished[0])
    assert result.gradient == finished[0].gradient


def test_a_device_that_is_seldom_looked_at_fails_at_the_same_step(data, tmp_path):
    config = SMALL.replace(subset=None, data="silent", gradient="svd", norm="dbn")
    result = run(config, lambda engine: Device(config, engine), tmp_path, progress=False)
    assert (result.failure.reason, result.failure.step) == ("non-finite gradient", 1)
    assert result.failure.where == "conv1.weight"


def test_a_device_that_is_seldom_looked_at_does_not_save_broken_weights_on_ctrl_c(data, tmp_path):
    class Stopped(Device):
        def step(self, batch):
            os.kill(os.getpid(), signal.SIGINT)
            return super().step(batch)

    config = SMALL.replace(subset=None, data="silent", gradient="svd")
    result = run(config, lambda engine: Stopped(config, engine), tmp_path, progress=False)
    assert (result.failure.reason, result.failure.step) == ("non-finite gradient", 1)


def test_statistics_that_are_broken_show_in_the_evaluation(data, tmp_path):
    class Poisoned(Classification):
        def evaluate(self):
            self.modules["model"].bn1.running_covariance.fill_(torch.nan)
            return super().evaluate()

    config = SMALL.replace(subset=None)
    result = run(config, lambda engine: Poisoned(config, engine), tmp_path, progress=False)
    assert (result.failure.reason, result.failure.where) == ("decomposition", "bn1")
    assert (result.failure.step, result.failure.epoch) == (40, 1)


def test_a_failed_run_is_not_repeated_either(data, tmp_path):
    failing(tmp_path, data="infinite")
    seen = (tmp_path / "result.json").stat().st_mtime_ns
    failing(tmp_path, data="infinite")
    assert (tmp_path / "result.json").stat().st_mtime_ns == seen
    assert not (tmp_path / "last.pt").exists()
    assert not list(tmp_path.glob("step-*"))


def test_the_weights_are_not_touched_by_the_step_that_fails(tmp_path):
    """The learning rate rises after one epoch: the failure comes later, and the epoch before it stays in the curves."""
    result = train(SMALL.replace(lr_factor=1e30, lr_step=1), tmp_path, progress=False)
    assert result.outcome == "failed"
    assert result.failure.epoch == 2
    assert result.failure.step > STEPS
    assert len(result.curves["train_loss"]) == 1
    assert result.best_epoch == 1
    best = torch.load(tmp_path / "best.pt", weights_only=True)["modules"]["model"]
    assert all(tensor.isfinite().all() for tensor in best.values())


def test_an_answer_counts_among_the_guesses():
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.9, 0.5, 0.1], [0.0, 1.0, torch.nan], [-1.0, 3.0, 2.0]])
    labels = torch.tensor([2, 0, 1, 0])
    assert _wrong(scores, labels).item() == 3
    assert _wrong(scores, labels, guesses=2).item() == 2  # the NaN and the last
    assert _wrong(scores, labels, guesses=3).item() == 1  # NaN is never right
