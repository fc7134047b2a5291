"""Device cases of the layers and their functions, in NCHW and channels_last. See ``device_cases.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import eigengrad.nn as nn
from device_cases import Case, randn
from device_under_test import no_waiting
from eigengrad.nn.second_order_pool import METHODS

__all__ = ["GROUPS"]


def layer(make: Callable[[], torch.nn.Module], *inputs: Tensor, evaluate: bool = False, rtol: float = 1e-3) -> Case:
    """The case of a layer in training, or after a step of training in evaluation."""

    def made_for(device: torch.device) -> Callable[..., Any]:
        module = make().to(device)
        if not evaluate:
            return module
        module(*(x.to(device) for x in inputs))
        return module.eval()

    return Case(made_for, inputs, rtol=rtol, made_for=True)


def normalisations(x: Tensor, tag: str) -> dict[str, Case]:
    """The layers in the place of batch norm, on maps of 8 channels."""
    found = {}
    for name, options in {
        "": {},
        " cholesky": {"whitening": "cholesky"},
        " taylor": {"gradient": "taylor"},
        " svd": {"gradient": "svd"},
        " momentum None": {"momentum": None},
        " without weight": {"affine": False},
        " without bias": {"bias": False},
        " without statistics": {"track_running_stats": False},
    }.items():
        make = lambda options=options: nn.DecorrelatedBatchNorm2d(8, group_size=4, **options)  # noqa: E731
        found[f"nn.DecorrelatedBatchNorm2d{name} {tag}"] = layer(make, x)
    for name, kind in {
        "DecorrelatedBatchNorm2d": nn.DecorrelatedBatchNorm2d,
        "IterativeNorm": nn.IterativeNorm,
    }.items():
        make = lambda kind=kind: kind(8, group_size=4)  # noqa: E731
        found[f"nn.{name} evaluation {tag}"] = layer(make, x, evaluate=True)
    found[f"nn.IterativeNorm {tag}"] = layer(lambda: nn.IterativeNorm(8, group_size=4), x)
    half = layer(lambda: nn.DecorrelatedBatchNorm2d(8, group_size=4), x.bfloat16(), rtol=0.03)
    found[f"nn.DecorrelatedBatchNorm2d bfloat16 {tag}"] = half
    return found


def poolings(x: Tensor, tag: str) -> dict[str, Case]:
    """Second-order pooling by every method and with every output."""
    found = {f"nn.SecondOrderPool2d {tag}": layer(nn.SecondOrderPool2d, x)}
    for method in METHODS:
        found[f"nn.functional.second_order_pool {method} {tag}"] = Case(
            lambda a, method=method: nn.functional.second_order_pool(a, method=method),
            (x,),
            rtol=1e-3,
            forward_mode=method != "svd_pi",
        )
    for output in ("matrix", "features"):
        found[f"nn.functional.second_order_pool {output} {tag}"] = Case(
            lambda a, output=output: nn.functional.second_order_pool(a, output=output, normalize="frobenius"),
            (x,),
            rtol=1e-3,
        )
    return found


def colourings(x: Tensor, style: Tensor, tag: str) -> dict[str, Case]:
    """Whitening and colouring, and the transfer of colours."""
    found = {}
    for name, options in {
        "": {},
        " alpha": {"alpha": 0.5},
        " taylor": {"gradient": "taylor"},
        " batch": {"per_sample": False},
    }.items():
        make = lambda options=options: nn.WhitenColor2d(8, groups=2, **options)  # noqa: E731
        found[f"nn.WhitenColor2d{name} {tag}"] = layer(make, x, style)
    found[f"nn.functional.whiten_color {tag}"] = Case(
        lambda c, s: nn.functional.whiten_color(c, s, groups=2), (x, style), rtol=1e-3
    )
    for clamp in (True, False):
        found[f"nn.functional.color_transfer clamp={clamp} {tag}"] = Case(
            lambda a, b, clamp=clamp: nn.functional.color_transfer(a, b, clamp=clamp),
            (x[:, :3].sigmoid(), style[:, :3].sigmoid()),
            rtol=1e-3,
        )
    return found


def fused(device: torch.device) -> Callable[[Tensor], Tensor]:
    """A convolution with the whitening layer behind it folded in, after a step of training."""
    torch.manual_seed(0)
    conv, dbn = torch.nn.Conv2d(8, 8, 1).to(device), nn.DecorrelatedBatchNorm2d(8, group_size=4).to(device)
    dbn(conv(MAPS.to(device)))
    dbn.eval()
    with no_waiting():
        return nn.fuse_conv_dbn(conv, dbn)


MAPS, STYLE = randn(6, 8, 5, 5) * 2 + 3, randn(6, 8, 4, 4)
layers: dict[str, Case] = {}
pooling: dict[str, Case] = {}
colouring: dict[str, Case] = {}
for layout in (torch.contiguous_format, torch.channels_last):
    maps, tag = MAPS.contiguous(memory_format=layout), str(layout).removeprefix("torch.")
    layers |= normalisations(maps, tag)
    pooling |= poolings(maps, tag)
    colouring |= colourings(maps, STYLE.contiguous(memory_format=layout), tag)
    # Autocast casts convolutions.
    layers[f"nn.fuse_conv_dbn {tag}"] = Case(
        fused, (maps,), rtol=1e-3, autocast=False, made_for=True
    )  # convolutions are cast
layers["nn.DecorrelatedBatchNorm1d"] = layer(lambda: nn.DecorrelatedBatchNorm1d(8), randn(40, 8))
layers["nn.DecorrelatedBatchNorm1d sequences"] = layer(lambda: nn.DecorrelatedBatchNorm1d(8), randn(10, 8, 6))
layers["nn.DecorrelatedBatchNorm3d"] = layer(lambda: nn.DecorrelatedBatchNorm3d(8, group_size=4), randn(6, 8, 3, 3, 3))
pooling["nn.SecondOrderPool2d of few points"] = layer(nn.SecondOrderPool2d, randn(3, 16, 2, 2))
for per_sample, name in ((True, "a strength for each sample"), (False, "a strength for each sample, batch moments")):
    colouring[f"nn.functional.whiten_color {name}"] = Case(
        lambda c, s, a, per_sample=per_sample: nn.functional.whiten_color(
            c, s, groups=2, alpha=a, per_sample=per_sample
        ),
        (MAPS, STYLE, randn(6).sigmoid()),
        rtol=1e-3,
    )
colouring["nn.functional.whiten_color one strength"] = Case(
    lambda c, s, a: nn.functional.whiten_color(c, s, groups=2, alpha=a), (MAPS, STYLE, torch.tensor(0.3)), rtol=1e-3
)

GROUPS = {"layers": layers, "pooling": pooling, "colouring": colouring}
