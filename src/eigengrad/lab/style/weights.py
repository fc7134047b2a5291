"""Weights of encoders and decoders, read from a folder of state dicts.

Which family a folder holds is said by a ``codec.json`` in it (a :class:`Family`), or else told from the names of its
files. Files are opened with ``weights_only=True``: they cannot run code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..files import read_regular_file
from ..tensors import load_tensors
from .codec import Chain, Codec, Family, Level, Step, filled

__all__ = ["FAMILIES", "SHIPPED", "WeightsError", "load_codec"]

DESCRIPTION = "codec.json"
SHIPPED = Path(__file__).parent / "shipped_codec"
#: Bytes of a description; ours has 300.
_LARGEST_DESCRIPTION = 1 << 16
VGG_19 = (2, 2, 4, 4, 4)

FAMILIES = (
    Family(
        name="VGG-19, normalised",
        blocks=VGG_19,
        encoder="vgg_normalised_conv{level}_1.pth",
        decoder="feature_invertor_conv{level}_1.pth",
        names="sequential",
        color="conv0",
    ),
    Family(
        name="small VGG-19",
        blocks=VGG_19,
        encoder="encoder_relu{level}_1.pth",
        decoder="decoder_relu{level}_1.pth",
        color="conv0",
        rectified_output=True,
    ),
)


class WeightsError(ValueError):
    """Weights that cannot be used; the message names the file and what does not fit."""


def load_codec(folder: Path = SHIPPED) -> Codec:
    """The levels that a folder has both an encoder and a decoder for. The default comes with the package.

    Raises:
        WeightsError: if a file is damaged or does not fit, or nothing there is known.
    """
    if not folder.is_dir():
        raise WeightsError(
            f"{folder}: expected a folder of weights; {'this is a file' if folder.exists() else 'there is none'}"
        )
    family = _family(folder)
    levels = {}
    for number in range(1, family.depth + 1):
        paths = {part: folder / filled(getattr(family, part), level=number) for part in ("encoder", "decoder")}
        missing = [path for path in paths.values() if not path.exists()]
        if len(missing) == 1 and paths["encoder"] != paths["decoder"]:
            (other,) = set(paths.values()) - set(missing)
            raise WeightsError(f"{missing[0]}: missing, while {other.name} is there; level {number} needs both")
        if not missing:
            levels[number] = _level(family, number, paths)
    if not levels:
        raise WeightsError(
            f"{folder}: no weights of the family {family.name!r} here, such as {filled(family.encoder, level=1)}"
        )
    return Codec(family.name, levels)


def _family(folder: Path) -> Family:
    """The family of encoders and decoders that a folder holds."""
    description = folder / DESCRIPTION
    if description.exists():
        try:
            return Family.from_json(read_regular_file(description, _LARGEST_DESCRIPTION).decode())
        except (ValueError, OSError) as error:
            raise WeightsError(f"{description}: {error}") from error
    names = {path.name for path in folder.iterdir()}
    for family in FAMILIES:
        for level in range(1, family.depth + 1):
            if {filled(family.encoder, level=level), filled(family.decoder, level=level)} & names:
                return family
    expected = " or ".join(
        f"{filled(f.encoder, level=1)} and {filled(f.decoder, level=1)} ({f.name})" for f in FAMILIES
    )
    raise WeightsError(
        f"{folder}: unknown weights ({', '.join(sorted(names)[:4]) or 'the folder is empty'}). Expected {expected}; "
        f"or a {DESCRIPTION} that describes them"
    )


def _level(family: Family, number: int, paths: Mapping[str, Path]) -> Level:
    encoder = _chain(family, "encoder", number, paths["encoder"])
    decoder = _chain(family, "decoder", number, paths["decoder"])
    made, expected = ([c.convolution(name) for name in c.convolutions] for c in (encoder, decoder))
    channels = made[-1].out_channels
    if made[0].in_channels != 3 or expected[-1].out_channels != 3:
        raise WeightsError(
            f"{paths['encoder']}, {paths['decoder']}: expected pictures of 3 channels; the encoder takes "
            f"{made[0].in_channels}, the decoder makes {expected[-1].out_channels}"
        )
    if expected[0].in_channels != channels:
        raise WeightsError(
            f"{paths['decoder']}: expects {expected[0].in_channels} channels, but {paths['encoder'].name} makes "
            f"{channels}; they are not of the same set"
        )
    return Level(encoder, decoder, channels, family.shifts)


def _chain(family: Family, part: Literal["encoder", "decoder"], level: int, path: Path) -> Chain:
    """An encoder or decoder with the weights of a file, every shape of which is checked."""
    tensors = _read(path)
    steps = list(family.encoder_steps(level) if part == "encoder" else family.decoder_steps(level))
    names = family.parameter_names(part, level)
    prefix = filled(family.encoder_prefix if part == "encoder" else family.decoder_prefix, level=level)
    _require_names(path, tensors, names.values(), prefix)
    state: dict[str, Tensor] = {}
    widths: dict[str, tuple[int, int]] = {}
    before: int | None = None
    for step in steps:
        if step.kind != "convolution":
            before = None if before is None else step.channels(before)
            continue
        weight, bias = (tensors[f"{names[step.name]}.{kind}"] for kind in ("weight", "bias"))
        _require_shape(path, names[step.name], weight, bias, step, before)
        state |= {f"convolutions.{step.name}.weight": weight.float(), f"convolutions.{step.name}.bias": bias.float()}
        widths[step.name] = (weight.shape[1], weight.shape[0])
        before = weight.shape[0]
    with torch.device("meta"):
        chain = Chain(iter(steps), widths)
    chain.load_state_dict(state, assign=True)
    return chain.requires_grad_(False).eval()


def _read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file."""
    try:
        state: Any = load_tensors(path, allow_legacy=True)  # the weights of many papers are that old
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{path}: damaged, or no file of weights ({reason})") from error
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path}: expected a state dict, from names to tensors; got {type(state).__name__}")
    if bad := [name for name, value in state.items() if not bool(torch.isfinite(value).all())]:
        raise WeightsError(f"{path}: {bad[0]} holds NaN or infinity")
    return dict(state)


def _require_names(path: Path, tensors: Mapping[str, Tensor], names: Iterable[str], prefix: str) -> None:
    """Refuse a file without the expected parameters; others may be there under another prefix."""
    expected = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    if missing := sorted(expected - set(tensors)):
        raise WeightsError(f"{path}: no {missing[0]} in it ({len(missing)} of {len(expected)} parameters are missing)")
    if not prefix and (unknown := sorted(set(tensors) - expected)):
        raise WeightsError(f"{path}: {unknown[0]} is not part of the described architecture ({len(unknown)} unknown)")


def _require_shape(path: Path, name: str, weight: Tensor, bias: Tensor, step: Step, before: int | None) -> None:
    """Refuse a convolution whose shape does not fit the one before it."""
    size = (step.kernel, step.kernel)
    if weight.ndim != 4 or tuple(weight.shape[2:]) != size or (before is not None and weight.shape[1] != before):
        channels = "C" if before is None else before
        raise WeightsError(
            f"{path}: {name}.weight must have shape (C', {channels}, {step.kernel}, {step.kernel}); "
            f"got {tuple(weight.shape)}"
        )
    if tuple(bias.shape) != (weight.shape[0],):
        raise WeightsError(f"{path}: {name}.bias must have shape ({weight.shape[0]},); got {tuple(bias.shape)}")
