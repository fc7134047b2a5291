"""A training step of a slim ResNet-18 with one whitening layer, against the step with batch norm; and the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

import harness
from eigengrad.lab.models import build, normalisation
from eigengrad.nn import DecorrelatedBatchNorm2d
from harness import interleave, write

GROUP_SIZES = [4, 8, 16, 32, 64]
LAYER, STEP = (128, 64, 32, 32), (128, 3, 32, 32)
TEXT = """One step of SGD with momentum on 128 images of 32×32, forward, backward and update, of the slim ResNet-18 of
the experiments (stem of 64 channels, blocks from 16, channels_last); *norm* is the layer behind its first convolution,
decorrelated batch norm with group size d and exact gradients. *step/batch norm* is the ratio of medians of steps taken
in turns. *layer's peak* is how far forward + backward of that layer alone on 128×64×32×32, NCHW, raises the resident
memory of the process at its highest point, input and incoming gradient not counted; the page cache of the allocator
and the kernels' own buffers are."""


def run(threads: list[int]) -> Path:
    rows, peaks = [], {}
    for count in threads:  # memory first: what networks leave behind would be taken again, and not be seen
        torch.set_num_threads(count)
        peaks[count] = layer_peaks()
    for count in threads:
        torch.set_num_threads(count)
        rows += measure(count, peaks[count])
    return write("training", TEXT, ["threads", "norm", "d", "step", "step/batch norm", "layer's peak (MB)"], rows)


def layer_peaks() -> dict[str, float]:
    layers: dict[str, nn.Module] = {"batch norm": nn.BatchNorm2d(LAYER[1])}
    layers |= {f"ours {d}": DecorrelatedBatchNorm2d(LAYER[1], group_size=d) for d in GROUP_SIZES}
    return {name: peak_memory(layer) for name, layer in layers.items()}


def measure(threads: int, peaks: dict[str, float]) -> list[dict[str, Any]]:
    names = {"batch norm": normalisation("batchnorm")}
    names |= {f"ours {d}": normalisation("dbn", group_size=d, gradient="exact") for d in GROUP_SIZES}
    times = interleave({name: step(norm) for name, norm in names.items()}, seconds=12.0)
    base = times["batch norm"].median
    return [
        {
            "threads": threads,
            "norm": name.split()[0] if name.startswith("ours") else name,
            "d": name.split()[1] if name.startswith("ours") else "–",
            "step": timing,
            "step/batch norm": timing.median / base,
            "layer's peak (MB)": peaks[name],
        }
        for name, timing in times.items()
    ]


def step(norm: Callable[[int], nn.Module]) -> Callable[[], object]:
    torch.manual_seed(0)
    model = build("resnet18", 10, norm=norm, stem_width=64, width=16).to(memory_format=torch.channels_last)
    optimizer = SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=5e-4, foreach=True)
    images = torch.randn(STEP).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (STEP[0],))

    def call() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return call


def peak_memory(layer: nn.Module) -> float:
    """Megabytes that one forward + backward adds at its highest point: to the process (Linux), or on the GPU."""
    x, gradient = torch.randn(LAYER, requires_grad=True), torch.randn(LAYER)
    highest = 0.0
    if harness.on_gpu():
        module = torch.get_device_module(harness.DEVICE)
        for _ in range(3):  # the first call measures
            x.grad = None
            module.reset_peak_memory_stats()
            before = module.memory_allocated()
            layer(x).backward(gradient)
            highest = (module.max_memory_allocated() - before) / 2**20
        return highest
    for _ in range(3):  # the first call compiles
        x.grad = None
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is resident now
        before = resident("VmRSS")
        layer(x).backward(gradient)
        highest = resident("VmHWM") - before
    return highest


def resident(field: str) -> float:
    """VmRSS or VmHWM of this process in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
