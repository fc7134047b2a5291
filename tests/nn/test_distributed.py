"""Synchronised statistics: two processes that share them do what one does with the joined batch.

Run as a script, this file is one of the two processes: it goes through all scenarios and saves what it found.
"""

import copy
import os
import subprocess
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from eigengrad.nn import DecorrelatedBatchNorm2d, distributed
from layers_matrix import CHOLESKY, DEFAULTS, F32, F64, PCA, ZCA, Layer, features, over, randomize, wavy

CHANNELS, SPATIAL = 8, (3, 4)
#: How long a process waits for the other, which compiles for tens of seconds where cores are shared with much else.
PATIENCE = timedelta(minutes=10)
#: How many samples each process has.
SPLITS = {"even": (4, 4), "uneven": (5, 2), "one sample": (6, 1), "one empty": (5, 0)}
SAMPLES = [split for split in SPLITS if split != "one empty"]
TOLERANCE = {F64: 1e-10, F32: 1e-5}
BY_NAME = {str(layer): layer for layer in DEFAULTS}

# Scenarios: (layer, split, dtype, mean, second order)
SCENARIOS = {
    **{f"{layer}-{split}-{dtype}": (str(layer), split, dtype, 1.0, False)
       for layer in DEFAULTS for split in SAMPLES for dtype in TOLERANCE},
    "far": ("zca", "uneven", F64, 1e4, False),
    "far apart": ("zca", "uneven", F64, None, False),
    "second order": ("zca", "uneven", F64, 1.0, True),
}  # fmt: skip
EMPTY = {f"one empty, {dtype}": ("zca", "one empty", dtype, 1.0, False) for dtype in TOLERANCE}


def joined_batch(split: str, dtype: torch.dtype, mean: float | None) -> Tensor:
    first, second = SPLITS[split]
    x = features(first + second, CHANNELS, *SPATIAL, dtype=dtype, mean=1.0 if mean is None else mean)
    if mean is None:  # each process has a mean of its own
        x[:first] += 300
    return x


def weights(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.sin(torch.arange(1, torch.Size(shape).numel() + 1, dtype=F64)).reshape(shape).to(dtype)


def work(layer: Layer, x: Tensor, w: Tensor, second: bool, **options) -> dict[str, Tensor]:
    """Output, gradients and statistics of one layer on one part of a batch, with the loss's own weights."""
    module = randomize(layer.make(CHANNELS, dtype=x.dtype, group_size=4, **options))
    x = x.clone().requires_grad_()
    y = module(x)
    loss = (w * (y + y**2 / 3)).sum()
    if second:
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = (w.flip(0) * g).sum()
    loss.backward()
    found = {
        "output": y,
        "x": x.grad,
        "running_mean": module.running_mean,
        "running_covariance": module.running_covariance,
    }
    found |= {"weight": module.weight.grad, "batches": module.num_batches_tracked}
    if not second:  # then β has no second derivative
        found["bias"] = module.bias.grad
    return {name: t.detach() for name, t in found.items()}


def network(**options) -> nn.Module:
    torch.manual_seed(0)
    norm = DecorrelatedBatchNorm2d(8, group_size=4, **options)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 9, 5)).to(F64)


IMAGES, TARGETS = features(8, 3, 5, 5, mean=0.5), torch.arange(8) % 5


def train(net: nn.Module, images: Tensor, targets: Tensor, steps: int = 3) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), targets).backward()
        optimizer.step()
    net.eval()
    return {**net.state_dict(), "evaluation": net(images).detach()}


# One of two processes -------------------------------------------------------------------------------------------------


def scenarios(rank: int, chosen: dict) -> dict:
    found = {}
    for name, (layer, split, dtype, mean, second) in chosen.items():
        part = slice(0, SPLITS[split][0]) if rank == 0 else slice(SPLITS[split][0], None)
        x = joined_batch(split, dtype, mean)
        w = weights(tuple(x.shape), dtype)
        if second:  # flipping a part is not a part of the flipped whole: weigh samples alike in both
            w = w[:1].expand_as(x)
        found[name] = work(BY_NAME[layer], x[part], w[part], second, process_group="world")
    return found


def others(rank: int) -> dict:
    half = slice(0, 4) if rank == 0 else slice(4, None)
    model = nn.parallel.DistributedDataParallel(network(process_group=dist.group.WORLD))
    state = train(model, IMAGES[half], TARGETS[half])
    found = {"ddp": {name.removeprefix("module."): value for name, value in state.items()}}
    found["alone"] = work(ZCA, features(4, 8, 3, 4, seed=rank), weights((4, 8, 3, 4), F64), False)
    # A broadcast writes into the buffers of a layer that has evaluated before.
    module = randomize(ZCA.make(8), seed=rank).eval()
    x = features(2, 8, 3, 4)
    module(x)
    for tensor in (*module.buffers(), *(p.data for p in module.parameters())):
        dist.broadcast(tensor, 0)
    found["broadcast"] = {"output": module(x).detach()}
    module = randomize(ZCA.make(8, process_group="world"), seed=0).eval()
    found["evaluation"] = {"output": module(features(2, 8, 3, 4, seed=rank)).detach()}
    return found


def unsynchronised(rank: int) -> dict:
    """How often layers warn, and what a converted layer does with a half of the batch."""
    x = features(4, 8, 3, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        def count(forward) -> int:
            before = len(caught)
            forward(x)
            return sum("whitening layer" in str(warning.message) for warning in caught[before:])

        quiet = [ZCA.make(8).eval(), ZCA.make(8, process_group="local"), ZCA.make(8, process_group="world")]
        quiet.append(nn.BatchNorm2d(8, dtype=F64))
        found: dict = {"quiet": [count(layer) for layer in quiet]}
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(ZCA.make(8)))
        found["first"], message = count(converted), str(caught[-1].message)
        found["again"] = count(converted) + count(ZCA.make(8))
        distributed._warned = False
        compiled = torch.compile(ZCA.make(8), fullgraph=True, backend="aot_eager")
        found["compiled"] = [count(compiled), count(compiled)]
    found["message"] = message
    model = nn.Sequential(ZCA.make(8), nn.BatchNorm2d(8, dtype=F64))
    found["same"] = DecorrelatedBatchNorm2d.convert_sync_batchnorm(model) is model
    model[0](features(4, 8, 3, 4, seed=rank))
    found["converted"] = model[0].running_covariance
    given = DecorrelatedBatchNorm2d.convert_sync_batchnorm(ZCA.make(8), dist.group.WORLD)
    given(features(4, 8, 3, 4, seed=rank))
    found["given"] = given.running_covariance
    return found


def process(rank: int, folder: Path, what: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=PATIENCE)
    if what == "all":
        found = scenarios(rank, SCENARIOS) | others(rank)
    else:
        found = scenarios(rank, EMPTY) if what == "empty" else unsynchronised(rank)
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # Not by way of the interpreter's end: what gloo's threads still hold of Python's objects then can abort the process
    # (pytorch/pytorch#179291), about once in a hundred runs.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run(folder: Path, what: str) -> list[dict]:
    """What the two processes found."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # the helpers, too
    commands = [[sys.executable, __file__, str(rank), str(folder), what] for rank in range(2)]
    logs = [(folder / f"{rank}.log").open("w+") for rank in range(2)]
    pairs = zip(commands, logs, strict=True)
    started = [subprocess.Popen(c, env=environment, stdout=log, stderr=subprocess.STDOUT) for c, log in pairs]
    try:
        deadline = time.monotonic() + PATIENCE.total_seconds()
        while any(p.poll() is None for p in started):
            if any(p.poll() for p in started) or time.monotonic() > deadline:
                break  # one has failed, and the other waits for it
            time.sleep(0.05)
    finally:
        for p in started:
            p.kill()
            p.wait()
    printed = "\n".join((folder / f"{rank}.log").read_text()[-3000:] for rank in range(2))
    for log in logs:
        log.close()
    assert [p.returncode for p in started] == [0, 0], printed
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    return run(tmp_path_factory.mktemp("distributed"), "all")


# The tests ------------------------------------------------------------------------------------------------------------


def assert_joined(found: list[dict], scenario: tuple) -> None:
    layer, split, dtype, mean, second = scenario
    x = joined_batch(split, dtype, mean)
    w = weights(tuple(x.shape), dtype)
    expected = work(BY_NAME[layer], x, w[:1].expand_as(x) if second else w, second)
    joined = {name: torch.cat([part[name] for part in found]) for name in ("output", "x")}
    joined |= {name: found[0][name] + found[1][name] for name in ("weight", "bias") if name in expected}
    statistics = ("running_mean", "running_covariance")
    tolerance = TOLERANCE[dtype] if mean == 1.0 else 1e-8  # (300/σ)² and (1e4/σ)² times the round-off
    for got in (joined, *({name: part[name] for name in statistics} for part in found)):
        for name, value in got.items():
            error = (value - expected[name]).abs().max() / expected[name].abs().max()
            assert error < tolerance, name
    assert found[0]["batches"] == found[1]["batches"] == expected["batches"] == 1
    assert torch.equal(found[0]["running_covariance"], found[1]["running_covariance"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_do_what_one_does_with_the_joined_batch(processes, scenario):
    assert_joined([p[scenario] for p in processes], SCENARIOS[scenario])


def test_a_process_without_samples_takes_part(tmp_path):
    found = run(tmp_path, "empty")
    for name, scenario in EMPTY.items():
        assert_joined([p[name] for p in found], scenario)


def test_who_trains_beside_others_without_sharing_is_told_once(tmp_path):
    """By the layer, since SyncBatchNorm.convert_sync_batchnorm passes over it, and nobody else would say so."""
    joined = ZCA.make(8)
    joined(torch.cat([features(4, 8, 3, 4, seed=rank) for rank in range(2)]))
    for found in run(tmp_path, "unsynchronised"):
        assert found["quiet"] == [0, 0, 0, 0]
        assert (found["first"], found["again"]) == (1, 0)
        assert found["compiled"] == [1, 0]
        for remedy in ("process_group='world'", "convert_sync_batchnorm(model)", "process_group='local'"):
            assert remedy in found["message"]
        assert found["same"]
        torch.testing.assert_close(found["converted"], joined.running_covariance)
        torch.testing.assert_close(found["given"], joined.running_covariance)


def test_one_process_has_nobody_to_share_with():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ZCA.make(8)(features(4, 8, 3, 4))


@over(DEFAULTS)
def test_conversion_sets_the_group_of_whitening_layers_alone(layer):
    model = nn.Sequential(layer.make(8), nn.Sequential(layer.make(8, process_group="local")), nn.BatchNorm2d(8))
    assert type(layer.make(8)).convert_sync_batchnorm(model) is model
    assert model[0].process_group == model[1][0].process_group == "world"
    assert type(model[2]) is nn.BatchNorm2d
    with pytest.raises(TypeError, match=r"module must be an nn\.Module; got str"):
        type(layer.make(8)).convert_sync_batchnorm("model")
    with pytest.raises(ValueError, match='"world", or "local" for none; got \'all\''):
        layer.make(8, process_group="all")


def test_ddp_training_with_a_synchronised_layer_is_training_by_one_process(processes):
    expected = train(network(), IMAGES, TARGETS)
    evaluation = expected.pop("evaluation")
    got = torch.cat([p["ddp"]["evaluation"] for p in processes])
    torch.testing.assert_close(got, evaluation, rtol=1e-9, atol=1e-9)
    for p in processes:
        for name, value in expected.items():
            torch.testing.assert_close(p["ddp"][name], value, rtol=1e-9, atol=1e-9)


def test_without_a_process_group_processes_are_on_their_own(processes):
    for rank, p in enumerate(processes):
        expected = work(ZCA, features(4, 8, 3, 4, seed=rank), weights((4, 8, 3, 4), F64), False)
        for name, value in expected.items():
            torch.testing.assert_close(p["alone"][name], value)


def test_evaluation_follows_a_broadcast_of_the_statistics(processes):
    expected = randomize(ZCA.make(8), seed=0).eval()(features(2, 8, 3, 4))
    for p in processes:
        torch.testing.assert_close(p["broadcast"]["output"], expected.detach())


def test_evaluation_is_not_synchronised(processes):
    for rank, p in enumerate(processes):
        expected = randomize(ZCA.make(8), seed=0).eval()(features(2, 8, 3, 4, seed=rank))
        torch.testing.assert_close(p["evaluation"]["output"], expected.detach())


@over([ZCA, CHOLESKY, PCA])
def test_a_process_group_without_distributed_is_an_ordinary_layer(layer):
    x = features(3, 8, 4, 5)
    plain = randomize(layer.make(8))
    alone = randomize(layer.make(8, process_group="world"))
    assert torch.equal(wavy(plain(x)), wavy(alone(x)))
    assert copy.deepcopy(alone).process_group == "world"


if __name__ == "__main__":
    process(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
