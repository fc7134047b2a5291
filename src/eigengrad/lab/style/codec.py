"""Encoders that turn a picture into feature maps, and decoders that turn them back: the architecture, as data.

All families are blocks of 3×3 convolutions, each block at half the resolution of the one before. The encoder of level L
ends with the first convolution of block L, and the decoder of level L runs the same way back. What differs is in a
:class:`Family`; how wide the layers are is in the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal, cast

from torch import Tensor, nn
from torch.nn import functional

from ..report.tables import require_file_name

__all__ = ["Chain", "Codec", "Family", "Level", "Step", "filled"]

#: Levels of a family, convolutions between two changes of the resolution, and positions of the grid.
_MOST_LEVELS, _MOST_IN_A_BLOCK, _MOST_SHIFTS = 9, 64, 64


@dataclass(frozen=True)
class Step:
    """One layer: a convolution by its name, or a change of resolution."""

    kind: Literal["convolution", "pool", "repeat", "fold", "unfold"]
    name: str = ""
    kernel: int = 3
    relu: bool = True

    def channels(self, before: int) -> int:
        """The number of channels after a change of resolution."""
        return before * 4 if self.kind == "fold" else before // 4 if self.kind == "unfold" else before


@dataclass(frozen=True)
class Family:
    """How a family of encoders and decoders is built, and how its files and parameters are called.

    Args:
        name: for messages.
        blocks: how many convolutions each block of the encoder has, shallow to deep. The last block needs one only.
        encoder, decoder: file names, with ``{level}`` for the level.
        encoder_prefix, decoder_prefix: what the names of the parameters in those files begin with.
        names: ``conv{block}{index}`` or the like, or "sequential" for the numbers that the layers have in a
            ``torch.nn.Sequential`` of padding, convolution, rectifier, and changes of resolution.
        color: the name of a 1×1 convolution from RGB to what the first layer expects, in front of the encoder; or None.
        rectified_output: whether the decoder ends with a rectifier.
        resampling: "pool" takes the largest of 2×2 on the way in and repeats on the way out, as VGG does; "fold" makes
            channels of the 2×2 positions and positions of the channels, so nothing is lost.
        shifts: over how many positions of the grid of a level :func:`~eigengrad.lab.style.stylize.stylize` averages.
    """

    name: str
    blocks: tuple[int, ...]
    encoder: str
    decoder: str
    encoder_prefix: str = ""
    decoder_prefix: str = ""
    names: str = "conv{block}{index}"
    color: str | None = None
    rectified_output: bool = False
    resampling: Literal["pool", "fold"] = "pool"
    shifts: int = 2

    @classmethod
    def from_json(cls, text: str) -> Family:
        """The inverse of :meth:`to_json`.

        Raises:
            ValueError: naming what is missing, unknown or of the wrong kind.
        """
        try:
            entries = json.loads(text)
        except (ValueError, RecursionError) as error:  # the second for brackets in brackets
            raise ValueError(f"it is not JSON: {error}") from error
        known = {field.name for field in fields(cls)}
        if not isinstance(entries, dict):
            raise ValueError(f"it must be an object with the entries {', '.join(sorted(known))}")
        if unknown := set(entries) - known:
            raise ValueError(f"unknown entries {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
        try:
            family = cls(**{**entries, "blocks": tuple(entries["blocks"])})
            _require_sizes(family)
            for name in ("name", "encoder", "decoder", "encoder_prefix", "decoder_prefix", "names"):
                if not isinstance(getattr(family, name), str):
                    raise ValueError(f"{name} is a string, not {getattr(family, name)!r:.80}")
                if name != "name" and set("{}") & set(filled(getattr(family, name), level=1, block=1, index=1)):
                    raise ValueError(f"{name} has braces around something else than level, block and index")
            for name in (family.encoder, family.decoder):
                require_file_name("Family", name)
            if not isinstance(family.color, str | None):
                raise ValueError(f"color is a string or null, not {family.color!r:.80}")
            if not isinstance(family.rectified_output, bool):
                raise ValueError(f"rectified_output is true or false, not {family.rectified_output!r}")
            if family.resampling not in ("pool", "fold"):
                raise ValueError(f"resampling is 'pool' or 'fold', not {family.resampling!r}")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(
                f"it must have name, blocks, encoder and decoder, as in its documentation: {error}"
            ) from error
        return family

    def to_json(self) -> str:
        """The family as text for a file ``codec.json`` beside the weights."""
        return json.dumps(asdict(self), indent=1)

    @property
    def depth(self) -> int:
        """The number of the deepest level."""
        return len(self.blocks)

    def encoder_steps(self, level: int) -> Iterator[Step]:
        """The steps from the picture to the features of a level."""
        if self.color is not None:
            yield Step("convolution", self.color, kernel=1, relu=False)
        for block in range(1, level + 1):
            for index in range(1, (self.blocks[block - 1] if block < level else 1) + 1):
                yield Step("convolution", f"conv{block}{index}")
            if block < level:
                yield Step(self.resampling)

    def decoder_steps(self, level: int) -> Iterator[Step]:
        """The steps from the features of a level to the picture."""
        for block in range(level, 0, -1):
            for index in range(self.blocks[block - 1] if block < level else 1, 0, -1):
                last = block == index == 1
                yield Step("convolution", f"conv{block}{index}", relu=self.rectified_output or not last)
            if block > 1:
                yield Step("repeat" if self.resampling == "pool" else "unfold")

    def parameter_names(self, part: Literal["encoder", "decoder"], level: int) -> dict[str, str]:
        """What the file calls each convolution: from our name to the file's, without ``.weight`` or ``.bias``."""
        steps = list(self.encoder_steps(level) if part == "encoder" else self.decoder_steps(level))
        prefix = filled(self.encoder_prefix if part == "encoder" else self.decoder_prefix, level=level)
        names: dict[str, str] = {}
        position = 0
        for step in steps:
            if step.kind != "convolution":
                position += 1
                continue
            padded = int(step.kernel > 1)
            if self.names == "sequential":
                names[step.name] = f"{prefix}{position + padded}"
            elif step.name == self.color:
                names[step.name] = f"{prefix}{step.name}"
            else:
                block, index = step.name[4], step.name[5:]
                names[step.name] = prefix + filled(self.names, block=block, index=index)
            position += padded + 1 + int(step.relu)
        return names


def filled(pattern: str, **numbers: int | str) -> str:
    """A pattern of a description with its ``{level}``, ``{block}`` and ``{index}`` put in.

    It is not ``str.format``, by which a pattern from a file could ask for attributes and for any width.
    """
    for name, number in numbers.items():
        pattern = pattern.replace(f"{{{name}}}", str(number))
    return pattern


def _require_sizes(family: Family) -> None:
    """Refuse numbers of levels, convolutions and shifts that no network has.

    Raises:
        ValueError: names the entry.
    """
    counts = family.blocks
    if not 1 <= len(counts) <= _MOST_LEVELS or not all(type(n) is int and 1 <= n <= _MOST_IN_A_BLOCK for n in counts):
        expected = f"1 to {_MOST_LEVELS} whole numbers from 1 to {_MOST_IN_A_BLOCK}"
        raise ValueError(f"blocks is a list of {expected}, not {list(counts)!r:.80}")
    if type(family.shifts) is not int or not 1 <= family.shifts <= _MOST_SHIFTS:
        raise ValueError(f"shifts is a whole number from 1 to {_MOST_SHIFTS}, not {family.shifts!r:.80}")


class Chain(nn.Module):
    """The layers of an encoder or decoder, one after the other.

    Pictures are continued by reflection, so borders look like the rest. Sizes must be multiples of :attr:`stride`:
    :mod:`~eigengrad.lab.style.stylize` sees to that.

    Args:
        steps: the layers.
        widths: input and output channels of each convolution, by name.
    """

    def __init__(self, steps: Iterator[Step], widths: Mapping[str, tuple[int, int]]) -> None:
        super().__init__()
        self.steps = tuple(steps)
        self.convolutions = nn.ModuleDict(
            {s.name: nn.Conv2d(*widths[s.name], s.kernel) for s in self.steps if s.kind == "convolution"}
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers: (N, C, H, W) to (N, C', H', W')."""
        for step in self.steps:
            x = self.advance(step, x)
        return x

    def advance(self, step: Step, x: Tensor) -> Tensor:
        """Apply one layer to the output of the one before it."""
        if step.kind == "pool":
            return functional.max_pool2d(x, 2)
        if step.kind == "repeat":
            return functional.interpolate(x, scale_factor=2, mode="nearest")
        if step.kind == "fold":
            return functional.pixel_unshuffle(x, 2)
        if step.kind == "unfold":
            return functional.pixel_shuffle(x, 2)
        x = functional.pad(x, (1, 1, 1, 1), mode="reflect") if step.kernel == 3 else x
        x = self.convolution(step.name)(x)
        return functional.relu(x, inplace=not x.requires_grad) if step.relu else x

    def convolution(self, name: str) -> nn.Conv2d:
        """The convolution of a layer."""
        return cast(nn.Conv2d, self.convolutions[name])

    @property
    def stride(self) -> int:
        """How many pixels of the finer side one position of the coarser side stands for, in each direction."""
        return int(2 ** sum(step.kind != "convolution" for step in self.steps))

    @property
    def reach(self) -> int:
        """How many pixels away something can be and still have an influence, as a multiple of the stride."""
        fine_to_coarse = self.steps if any(s.kind in ("pool", "fold") for s in self.steps) else self.steps[::-1]
        pixels, scale = 0, 1
        for step in fine_to_coarse:
            if step.kind == "convolution":
                pixels += scale * (step.kernel // 2)
            else:
                scale *= 2
        return -(-pixels // scale) * scale


@dataclass(frozen=True)
class Level:
    """An encoder with the decoder that inverts it.

    Args:
        encoder, decoder: the layers.
        channels: of the features.
        shifts: how many positions of the grid are enough to hide it; see :func:`~eigengrad.lab.style.stylize.stylize`.
    """

    encoder: Chain
    decoder: Chain
    channels: int
    shifts: int


@dataclass(frozen=True)
class Codec:
    """The levels of a family that there are weights for, by number: 1 is the shallowest."""

    name: str
    levels: Mapping[int, Level]

    def require(self, level: int) -> Level:
        """The level of this number.

        Raises:
            ValueError: if there is none, naming those there are.
        """
        if level not in self.levels:
            there = ", ".join(str(number) for number in sorted(self.levels))
            raise ValueError(f"levels: {self.name} has no level {level}; it has {there}")
        return self.levels[level]
