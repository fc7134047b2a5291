"""The small codec that comes with the package, made from freely licensed pictures: style transfer needs no download.

It has three levels, of 1, 2 and 4 pixels a position. Nothing is lost where the resolution changes, and each level has
at least as many components as a picture has numbers there (3, 12 and 48), so reconstructions are sharp. How the weights
are found is in :mod:`.codec_fitting`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ...arguments import require_integer
from ..files import make_folder, write_atomically
from ..tensors import save_tensors
from .codec import Chain, Family
from .codec_fitting import fit_decoder, fit_encoder
from .training_pictures import Crops, pictures
from .weights import DESCRIPTION

__all__ = ["FAMILY", "train_codec"]

FAMILY = Family(
    name="the codec of eigengrad",
    blocks=(1, 1, 1),
    encoder="codec.pth",
    decoder="codec.pth",
    encoder_prefix="encoder.",
    decoder_prefix="decoder{level}.",
    resampling="fold",
    shifts=4,
)
WIDTHS = (24, 36, 128)  # of the blocks; in half precision all weights together are 0.86 MB
CROPS, SIDE = 96, 96


def train_codec(folder: Path, *, seed: int = 0, progress: Callable[[str], None] | None = None) -> None:
    """Make a codec and write it to a folder that :func:`~eigengrad.lab.style.weights.load_codec` reads.

    Args:
        folder: for ``codec.pth`` (half precision, which is good enough for pictures) and ``codec.json``.
        seed: of everything that is random.
        progress: called with what is done next.
    """
    require_integer("train_codec", "seed", seed, minimum=0)
    tell = progress or (lambda _: None)
    tell("the pictures")
    generator = torch.Generator().manual_seed(seed)
    sample = Crops(pictures(), generator).batch(CROPS, SIDE)
    tell("the encoder")
    encoder = Chain(FAMILY.encoder_steps(FAMILY.depth), widths())
    fit_encoder(encoder, sample, generator)
    state = {f"encoder.{name}": value for name, value in encoder.convolutions.state_dict().items()}
    for level in range(1, FAMILY.depth + 1):
        tell(f"the decoder of level {level}")
        decoder = Chain(FAMILY.decoder_steps(level), widths(reverse=True))
        fit_decoder(decoder, encoder, sample, generator)
        state |= {f"decoder{level}.{name}": value for name, value in decoder.convolutions.state_dict().items()}
    make_folder(folder)
    save_tensors(folder / FAMILY.encoder, {name: value.half() for name, value in state.items()})
    write_atomically(folder / DESCRIPTION, f"{FAMILY.to_json()}\n".encode())


def widths(*, reverse: bool = False) -> dict[str, tuple[int, int]]:
    """Input and output channels of each convolution of the encoder, or of the decoders."""
    found, before = {}, 3
    for step in FAMILY.encoder_steps(FAMILY.depth):
        if step.kind == "convolution":
            after = WIDTHS[int(step.name[4]) - 1]
            found[step.name] = (after, before) if reverse else (before, after)
            before = after
        else:
            before = step.channels(before)
    return found
