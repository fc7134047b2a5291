"""Pictures of any size through a trained translation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from ....errors import unknown_choice
from ...tensors import load_tensors
from ..images import Picture
from .config import TranslationConfig
from .translator import Translator

__all__ = ["Painter", "load_painter"]

#: The weights of a run, those that are wanted first.
_WEIGHTS = ("last.pt", "best.pt")

#: The content is a quarter of a picture in size.
_STRIDE = 4


@dataclass(frozen=True)
class Painter:
    """A trained translation.

    Args:
        config: it was trained with.
        translator: its networks.
    """

    config: TranslationConfig
    translator: Translator

    @torch.no_grad()
    def paint(self, content: Picture, style: Picture, *, to: str = "b", size: int | None = None) -> Picture:
        """A picture in the style of another.

        Args:
            content: of one domain.
            style: of the other.
            to: which domain ``style`` is of, "a" or "b".
            size: of the shorter side of the result; by default that of the pictures it was trained with.

        Raises:
            ValueError: the size is too small.
        """
        self.check(to, size)
        chosen = self.config.image_size if size is None else size
        picture = content.scaled(round(max(content.size) * chosen / min(content.size)))
        height, width = picture.size
        x = pad(picture.pixels[None], (0, -width % _STRIDE, 0, -height % _STRIDE), mode="reflect")
        made = self.translator.translate(2 * x - 1, 2 * self._style(style) - 1, to=to)
        pixels = made[0, :, :height, :width].float().add(1).div(2).clamp(0, 1)
        return picture.with_pixels(pixels)

    def check(self, to: str, size: int | None) -> None:
        """Refuse what :meth:`paint` cannot do for any picture."""
        if to not in ("a", "b"):
            raise unknown_choice("to", to, ("a", "b"))
        if size is not None and size < self._least:
            raise ValueError(f"size: the shorter side must have at least {self._least} pixels; got {size}")

    def _style(self, style: Picture) -> Tensor:
        """The whole picture of the style in the size of the training, because strokes have a size too."""
        factor = self.config.image_size / min(style.size)
        target = [max(round(side * factor), self._least) for side in style.size]
        return interpolate(style.pixels[None], target, mode="bicubic", antialias=True).clamp(0, 1)

    @property
    def _least(self) -> int:
        """The shorter side that leaves every convolution a border to mirror, and the style more than one position."""
        return max(16, 8 << self.config.style_reductions)


def load_painter(checkpoint: Path) -> Painter:
    """The translation that a run has trained.

    Args:
        checkpoint: the folder of the run, or a file of weights in it.

    Raises:
        FileNotFoundError: there are no weights.
        ValueError: the file is damaged, or of another kind of run.
    """
    path = checkpoint
    if checkpoint.is_dir():
        found = [checkpoint / name for name in _WEIGHTS if (checkpoint / name).exists()]
        if not found:
            raise FileNotFoundError(
                f"checkpoint: {checkpoint} has no {' or '.join(_WEIGHTS)}; expected the folder of a run that "
                "`eigengrad translate train` has taken to its first evaluation at least"
            )
        path = found[0]
    elif not checkpoint.exists():
        raise FileNotFoundError(f"checkpoint: {checkpoint} does not exist; expected the folder of a run")
    try:
        content = load_tensors(path)
        config = TranslationConfig.from_dict(content["settings"])
        weights = content["modules"]["translator"]
        if config.blocks > len(weights):
            raise ValueError(f"it has {len(weights)} tensors for {config.blocks} blocks")
        with torch.device("meta"):  # nothing is allocated that the file only declares
            translator = Translator(config)
        translator.load_state_dict(weights, assign=True)
    except Exception as error:  # what a damaged file raises depends on where it is damaged
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"checkpoint: {path} is damaged or of another kind of run ({reason}); expected weights that "
            "`eigengrad translate train` wrote"
        ) from error
    return Painter(config, translator.eval())
