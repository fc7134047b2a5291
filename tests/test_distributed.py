"""Synchronised statistics: two processes that share them do what one does with the joined batch.

Run as a script, this file is one of the two processes: it goes through all scenarios and saves what it found.
"""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from layers_matrix import CHOLESKY, DEFAULTS, F32, F64, PCA, ZCA, Layer, features, over, randomize, wavy
from torch import Tensor, nn

from eigengrad.nn import DecorrelatedBatchNorm2d

CHANNELS, SPATIAL = 8, (3, 4)
#: How many samples each process has.
SPLITS = {"even": (4, 4), "uneven": (5, 2), "one sample": (6, 1), "one empty": (5, 0)}
TOLERANCE = {F64: 1e-10, F32: 1e-5}
BY_NAME = {str(layer): layer for layer in DEFAULTS}

# Scenarios: (layer, split, dtype, mean, second order)
SCENARIOS = {
    **{f"{layer}-{split}-{dtype}": (str(layer), split, dtype, 1.0, False)
       for layer in DEFAULTS for split in SPLITS for dtype in TOLERANCE},
    "far": ("zca", "uneven", F64, 1e4, False),
    "far apart": ("zca", "uneven", F64, None, False),
    "second order": ("zca", "uneven", F64, 1.0, True),
}  # fmt: skip


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
    found = {"output": y, "x": x.grad, "running_mean": module.running_mean, "running_covariance": module.running_covariance}
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


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    found = {}
    for name, (layer, split, dtype, mean, second) in SCENARIOS.items():
        part = slice(0, SPLITS[split][0]) if rank == 0 else slice(SPLITS[split][0], None)
        x = joined_batch(split, dtype, mean)
        w = weights(tuple(x.shape), dtype)
        if second:  # flipping a part is not a part of the flipped whole: weigh samples alike in both
            w = w[:1].expand_as(x)
        try:
            found[name] = work(BY_NAME[layer], x[part], w[part], second, process_group="world")
        except Exception as error:  # so that one failure is one failure
            found[name] = f"{type(error).__name__}: {error}"
        dist.barrier()
    half = slice(0, 4) if rank == 0 else slice(4, None)
    model = nn.parallel.DistributedDataParallel(network(process_group=dist.group.WORLD))
    found["ddp"] = {k.removeprefix("module."): v for k, v in train(model, IMAGES[half], TARGETS[half]).items()}
    found["alone"] = work(ZCA, features(4, 8, 3, 4, seed=rank), weights((4, 8, 3, 4), F64), False)
    # A broadcast writes into the buffers of a layer that has evaluated before.
    module = randomize(ZCA.make(8), seed=rank).eval()
    x = features(2, 8, 3, 4)
    module(x)
    for buffer in module.buffers():
        dist.broadcast(buffer, 0)
    for p in module.parameters():
        dist.broadcast(p.data, 0)
    found["broadcast"] = {"output": module(x).detach()}
    module.process_group = "world"
    found["evaluation"] = {"output": module(features(2, 8, 3, 4, seed=rank)).detach()}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distributed")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [p.communicate(timeout=120)[0] for p in started]
    finally:
        for p in started:
            p.kill()
    assert [p.returncode for p in started] == [0, 0], "\n".join(printed)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


# The tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_two_processes_do_what_one_does_with_the_joined_batch(processes, scenario):
    layer, split, dtype, mean, second = SCENARIOS[scenario]
    found = [p[scenario] for p in processes]
    assert not any(isinstance(part, str) for part in found), found
    x = joined_batch(split, dtype, mean)
    w = weights(tuple(x.shape), dtype)
    expected = work(BY_NAME[layer], x, w[:1].expand_as(x) if second else w, second)
    joined = {name: torch.cat([part[name] for part in found]) for name in ("output", "x")}
    joined |= {name: found[0][name] + found[1][name] for name in ("weight", "bias") if name in expected}
    tolerance = TOLERANCE[dtype] if mean == 1.0 else 1e-8  # (300/σ)² and (1e4/σ)² times the round-off
    for name, got in joined.items():
        error = (got - expected[name]).abs().max() / expected[name].abs().max()
        assert error < tolerance, name
    for part in found:
        for name in ("running_mean", "running_covariance"):
            error = (part[name] - expected[name]).abs().max() / expected[name].abs().max()
            assert error < tolerance, name
        assert part["batches"] == expected["batches"] == 1
    assert torch.equal(found[0]["running_covariance"], found[1]["running_covariance"])


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
    process(int(sys.argv[1]), Path(sys.argv[2]))
