"""Folders of weights for the tests of style transfer: the published families, narrow and random."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from eigengrad.lab.style.codec import Family
from eigengrad.lab.style.images import Picture
from eigengrad.lab.style.weights import FAMILIES

VGG, SMALL = FAMILIES
WIDTHS = (6, 8, 10, 12, 12)


def state_dicts(family: Family, level: int, seed: int = 0) -> dict[str, dict[str, Tensor]]:
    """Random weights of one level, by the names that the family's files use; offset, so that no channel is dead."""
    generator = torch.Generator().manual_seed(100 * seed + level)
    parts: dict[str, dict[str, Tensor]] = {}
    for part, steps in (("encoder", family.encoder_steps(level)), ("decoder", family.decoder_steps(level))):
        names = family.parameter_names(part, level)  # type: ignore[arg-type]
        state: dict[str, Tensor] = {}
        before = 3 if part == "encoder" else WIDTHS[level - 1]
        for step in (step for step in steps if step.kind == "convolution"):
            if step.kernel == 1:
                after = 3
            elif part == "encoder":
                after = WIDTHS[int(step.name[4]) - 1]
            else:  # the decoder mirrors the encoder: the first convolution of a block leads to the block before
                block, index = int(step.name[4]), int(step.name[5:])
                after = WIDTHS[block - 1] if index > 1 else (WIDTHS[block - 2] if block > 1 else 3)
            scale = (2 / (before * step.kernel**2)) ** 0.5
            weight = torch.randn(after, before, step.kernel, step.kernel, generator=generator) * scale
            state[f"{names[step.name]}.weight"] = weight
            state[f"{names[step.name]}.bias"] = 0.5 + 0.1 * torch.randn(after, generator=generator)
            before = after
        parts[part] = state
    return parts


def write(folder: Path, family: Family, levels: tuple[int, ...] = (1, 2, 3)) -> Path:
    """A folder of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for level in levels:
        for part, state in state_dicts(family, level).items():
            torch.save(state, folder / getattr(family, part).format(level=level))
    return folder


def sequential(family: Family, part: str, level: int) -> nn.Sequential:
    """The layers written out as PyTorch modules, one by one, as the published models are."""
    steps = family.encoder_steps(level) if part == "encoder" else family.decoder_steps(level)
    state = state_dicts(family, level)[part]
    names = family.parameter_names(part, level)  # type: ignore[arg-type]
    layers: list[nn.Module] = []
    for step in steps:
        if step.kind == "pool":
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        elif step.kind == "repeat":
            layers.append(nn.UpsamplingNearest2d(scale_factor=2))
        else:
            weight, bias = (state[f"{names[step.name]}.{kind}"] for kind in ("weight", "bias"))
            convolution = nn.Conv2d(weight.shape[1], weight.shape[0], step.kernel)
            convolution.load_state_dict({"weight": weight, "bias": bias})
            layers += [nn.ReflectionPad2d(1)] if step.kernel == 3 else []
            layers += [convolution, nn.ReLU()] if step.relu else [convolution]
    return nn.Sequential(*layers).requires_grad_(False)


def photo(seed: int, size: tuple[int, int] = (64, 80)) -> Picture:
    """Noise at several scales, with colour: something that varies in all directions of the features."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.full((3, *size), 0.5)
    for scale in (1, 2, 4, 8, 16):
        coarse = torch.randn(1, 3, -(-size[0] // scale), -(-size[1] // scale), generator=generator)
        fine = nn.functional.interpolate(coarse, scale_factor=scale, mode="nearest")[0, :, : size[0], : size[1]]
        image += 0.04 * scale**0.5 * fine
    return Picture((image.clamp(0, 1) * 255).round() / 255)
