"""Image files that are read when they are needed, for data that does not fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

__all__ = ["Pictures"]


@dataclass(frozen=True)
class Pictures:
    """A sequence of image files. Reading is the work of ``read``, which names the file if it cannot.

    Args:
        names: of the files.
        read: from a name to an RGB image.
    """

    names: Sequence[str]
    read: Callable[[str], Image.Image]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, indices: Tensor) -> Pictures:
        return Pictures([self.names[i] for i in indices.tolist()], self.read)
