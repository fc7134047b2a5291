"""Training a translation: its pictures, its steps, its samples; killed, resumed and shared by processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings

import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eigengrad.lab.data import DataError
from eigengrad.lab.files import DamagedFileWarning
from eigengrad.lab.style.translation import Translation, TranslationConfig, train
from eigengrad.lab.style.translation.domains import Domain, Pairs, load_domains
from eigengrad.lab.sweeps import sweep
from eigengrad.lab.training import Engine, Result
from eigengrad.lab.training.reporter import Silent

CONFIG = TranslationConfig(
    domain_a="hills",
    domain_b="strokes",
    width=4,
    group_size=8,
    critic_width=4,
    critic_scales=1,
    image_size=32,
    style_reductions=0,
    blocks=1,
    batch_size=2,
    iterations=6,
    evaluate_every=3,
    decay_from=0,
    decay_every=3,
    lr=1e-3,
    threads=1,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    return train(CONFIG, folder, progress=False), folder


def weights(folder):
    modules = torch.load(folder / "last.pt", weights_only=True)["modules"]
    return {f"{name}.{key}": value for name, module in modules.items() for key, value in module.items()}


def assert_same_weights(folder, expected):
    got, wanted = weights(folder), weights(expected)
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(got[key], value), key


def save(folder, name, size=(40, 36), colour=(200, 120, 40)):
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(folder / name)


def test_a_run_ends_in_a_result_with_curves_of_every_part(finished):
    result, folder = finished
    assert result.succeeded
    assert result.steps == 6
    for name in ("loss", "critic", "reconstruction", "cycle", "content", "style", "adversarial"):
        assert len(result.curves[f"train_{name}"]) == 2
    assert len(result.curves["test_error"]) == 2
    assert result.curves["lr"] == [1e-3, 5e-4]  # as it was in the epoch
    assert Result.load(folder, TranslationConfig).config == CONFIG


def test_samples_are_in_tensorboard(finished):
    _, folder = finished
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0}).Reload()
    assert {"a_as_b", "b_as_a", "a_and_back"} <= {tag.split("/")[0] for tag in events.Tags()["images"]}


def test_both_networks_move_and_judges_only_by_their_own_loss():
    engine = Engine()
    torch.manual_seed(0)
    task = Translation(CONFIG, engine)
    engine.prepare(task)
    before = {name: [p.detach().clone() for p in module.parameters()] for name, module in task.modules.items()}
    engine.health.step = 2
    task.step(next(iter(task.epoch_batches(0))))
    for name, module in task.modules.items():
        moved = [not torch.equal(p, q) for p, q in zip(module.parameters(), before[name], strict=True)]
        assert sum(moved) >= 0.9 * len(moved), name
    gradients = [p.grad.clone() for p in task.modules["critics"].parameters()]
    task._opinion(*[torch.zeros(1, 3, 32, 32, requires_grad=True)] * 2)[0][0].sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(task.modules["critics"].parameters(), gradients, strict=True))


def test_training_learns_to_reconstruct(tmp_path):
    config = CONFIG.replace(iterations=40, evaluate_every=4, decay_from=40, decay_every=4, wct="exact")
    result = train(config, tmp_path, progress=False)
    assert result.curves["test_reconstruction_error"][-1] < 0.8 * result.curves["test_reconstruction_error"][0]


# Killed and resumed ---------------------------------------------------------------------------------------------------

_CHILD = """
import json, sys
from eigengrad.lab.style.translation import TranslationConfig, train
train(TranslationConfig.from_dict(json.loads(sys.argv[1])), sys.argv[2], progress=False, checkpoint_steps=1)
"""


@pytest.mark.slow
def test_killed_it_goes_on_and_ends_with_the_same_weights(finished, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", _CHILD, json.dumps(CONFIG.to_dict()), str(tmp_path)])
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("step-*[24].pt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.wait()
    if process.returncode == -signal.SIGKILL:
        assert not (tmp_path / "result.json").exists()
    train(CONFIG, tmp_path, progress=False)
    assert_same_weights(tmp_path, finished[1])


class _Interrupt(Silent):
    def step(self, snapshot):
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_the_same_call_goes_on(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("eigengrad.lab.training.reporter.Pace.due", lambda self: True)
    with pytest.raises(KeyboardInterrupt, match="saved in"):
        train(CONFIG, tmp_path, progress=_Interrupt())
    train(CONFIG, tmp_path, progress=False)
    assert_same_weights(tmp_path, finished[1])


@pytest.mark.slow
def test_a_sweep_carries_out_translations_in_processes(finished, tmp_path):
    (result,) = sweep([CONFIG], tmp_path, jobs=1, threads=1, progress=False)
    assert result.succeeded
    assert result.config == CONFIG
    assert_same_weights(tmp_path / CONFIG.key(), finished[1])
    (again,) = sweep([CONFIG], tmp_path, jobs=1, threads=1, progress=False)
    assert again.seconds == result.seconds


_RANK = """
import json, sys
from eigengrad.lab.style.translation import TranslationConfig, train
train(TranslationConfig.from_dict(json.loads(sys.argv[1])), sys.argv[2], progress=False)
"""


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path):
    config = CONFIG.replace(iterations=1, evaluate_every=1, decay_every=1)
    train(config, tmp_path / "one", progress=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, json.dumps(config.to_dict()), str(tmp_path / "two")],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(2)
    ]
    assert [child.wait(300) for child in children] == [0, 0]
    got, wanted = weights(tmp_path / "two"), weights(tmp_path / "one")
    # The means are summed in another order; where a gradient is nearly zero, Adam's first step follows its sign.
    off = torch.cat([(got[key] - wanted[key]).abs().flatten() for key in wanted])
    assert (off < 1e-2 * config.lr).float().mean() > 0.95
    curves, expected = (Result.load(place, TranslationConfig).curves for place in (tmp_path / "two", tmp_path / "one"))
    for name in ("train_loss", "train_critic", "train_cycle"):
        assert curves[name] == pytest.approx(expected[name], rel=1e-4)


@pytest.mark.parametrize("wct", ["gd", "svd"])
def test_double_precision_trains(wct, tmp_path):
    result = train(CONFIG.replace(precision="float64", wct=wct), tmp_path, progress=False)
    assert result.succeeded
    assert all(value.dtype == torch.float64 for value in weights(tmp_path).values())


@pytest.mark.slow
def test_mixed_precision_trains(tmp_path):
    """In a process of its own: where AMX is announced but not allowed, oneDNN has to be told before torch starts."""
    fields = json.dumps(CONFIG.replace(precision="bf16", wct="svd").to_dict())
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    subprocess.run([sys.executable, "-c", _RANK, fields, str(tmp_path)], env=environment, check=True)
    assert Result.load(tmp_path, TranslationConfig).succeeded
    assert all(value.dtype == torch.float32 for value in weights(tmp_path).values())


# The pictures ---------------------------------------------------------------------------------------------------------


def test_batches_depend_on_seed_and_step_only_and_are_shared_without_loss():
    a, b = load_domains(CONFIG)
    whole = list(Pairs(a, b, 32, 4, 5, 10, seed=1))
    again = list(Pairs(a, b, 32, 4, 4, 11, seed=1))
    for (x, y), (u, v) in zip(whole[1:], again, strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
    halves = [list(Pairs(a, b, 32, 4, 5, 10, seed=1, rank=rank, world=2)) for rank in range(2)]
    for (x, y), first, second in zip(whole, *halves, strict=True):
        assert torch.equal(x, torch.cat([first[0], second[0]]))
        assert torch.equal(y, torch.cat([first[1], second[1]]))
    other = list(Pairs(a, b, 32, 4, 5, 10, seed=2))
    assert not torch.equal(whole[0][0], other[0][0])


def test_every_picture_comes_once_before_any_comes_again():
    marked = [torch.full((3, 8, 8), i, dtype=torch.uint8) for i in range(10)]
    domain = Domain("marked", marked, marked)
    batches = torch.cat([x[:, 0, 0, 0] for x, _ in Pairs(domain, domain, 8, 2, 5, 0, 0)])
    seen = (batches + 1).mul(127.5).round().int().tolist()
    assert sorted(seen) == list(range(10))


def test_pictures_of_any_shape_are_cut_to_squares(tmp_path):
    for i, size in enumerate(((50, 36), (36, 90), (20, 20))):
        save(tmp_path / "a", f"{i}.png", size)
    for i in range(3):
        save(tmp_path / "b", f"{i}.jpg")
    config = CONFIG.replace(domain_a="a", domain_b="b", folder_a=tmp_path / "a", folder_b=tmp_path / "b")
    a, b = load_domains(config)
    assert (len(a.train), len(a.test)) == (2, 1)
    for x, y in Pairs(a, b, 32, 3, 3, 0, 0):
        assert x.shape == y.shape == (3, 3, 32, 32)
        assert -1 <= x.min() <= x.max() <= 1


def test_a_test_folder_beside_the_training_folder_is_used(tmp_path):
    for name in ("a", "b"):
        save(tmp_path / "train" / name, "1.png")
        save(tmp_path / "test" / name, "1.png")
        save(tmp_path / "test" / name, "2.png")
    a, _ = load_domains(CONFIG.replace(domain_a="a", domain_b="b", data_root=tmp_path))
    assert (len(a.train), len(a.test)) == (1, 2)


def test_a_broken_picture_is_named_and_left_out(tmp_path):
    for name in ("a", "b"):
        for i in range(3):
            save(tmp_path / name, f"{i}.png")
    (tmp_path / "b" / "1b.jpg").write_bytes(b"\xff\xd8 half a picture")
    config = CONFIG.replace(domain_a="a", domain_b="b", folder_a=tmp_path / "a", folder_b=tmp_path / "b")
    with pytest.warns(DamagedFileWarning, match=r"left out: .*1b\.jpg"):
        _, b = load_domains(config)
    assert len(b.train) + len(b.test) == 3


def test_a_folder_without_pictures_is_an_error(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"nothing")
    save(tmp_path / "b", "1.png")
    config = CONFIG.replace(domain_a="a", domain_b="b", folder_a=tmp_path / "a", folder_b=tmp_path / "b")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(DataError, match=r"/a: has no pictures; the 1 files there cannot be read"):
            load_domains(config)
        with pytest.raises(DataError, match=r"/c: is not a folder"):
            load_domains(config.replace(folder_a=tmp_path / "c"))
        with pytest.raises(DataError, match=r"/b: has only one picture"):
            load_domains(config.replace(folder_a=tmp_path / "b"))
    with pytest.raises(DataError, match=r"photo: has no folder.*hills"):
        load_domains(CONFIG.replace(domain_a="photo"))
