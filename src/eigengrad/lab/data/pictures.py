"""Image files that are decoded when they are needed."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from ..jpeg import require_few_scans
from .errors import CorruptDataError
from .files import Files

__all__ = ["Images", "Pictures", "decoded", "pixels"]

#: Pictures that take no more bytes than this are decoded once and stay in memory.
MEMORY = 2 << 30

#: What Pillow may read. Others start programs (EPS) or are read by code that few use.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
#: Pixels of one image, above which Pillow warns: 360 MB as it decodes them. The largest of ImageNet has 61 million.
_MOST_PIXELS = 89_478_485


@dataclass(frozen=True)
class Pictures:
    """Image files in a folder or a zip.

    Args:
        files: where they are.
        names: of the image files among them.
    """

    files: Files
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, indices: Tensor) -> Pictures:
        return Pictures(self.files, [self.names[i] for i in indices.tolist()])

    def read(self, index: int) -> Image.Image:
        """One image, in colour."""
        image = self.read_of_size(index, None)
        assert image is not None  # as any size will do
        return image

    def read_of_size(self, index: int, size: tuple[int, int] | None) -> Image.Image | None:
        """One image, in colour, if it has this width and height; one of another size is not decoded."""
        name = self.names[index]
        content = self.files.read(name)
        try:
            require_few_scans(content)
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"{image.width} × {image.height} pixels; expected at most {_MOST_PIXELS:,}")
                return image.convert("RGB") if size is None or image.size == size else None
        except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error, …
            reason = "no known format" if isinstance(error, UnidentifiedImageError) else str(error)
            problem = f"is not an image that can be read ({len(content):,} bytes: {reason})"
            raise CorruptDataError(self.files.where(name), problem) from error


#: Images in memory, uint8 (N, C, H, W), or in files.
Images = Tensor | Pictures


def decoded(pictures: Pictures) -> Images:
    """The pictures as a tensor, uint8 (N, 3, H, W), if they are of one size and not too many; else as they are."""
    size = pictures.read(0).size
    if len(pictures) * size[0] * size[1] * 3 > MEMORY:
        return pictures
    # Colours side by side, as the decoder has them, and as cutting and scaling is fastest.
    images = torch.empty(len(pictures), size[1], size[0], 3, dtype=torch.uint8).permute(0, 3, 1, 2)

    def decode(index: int) -> bool:
        image = pictures.read_of_size(index, size)
        if image is not None:
            images[index] = pixels(image)
        return image is not None

    pool = ThreadPoolExecutor(os.cpu_count())  # Pillow decodes without holding Python's lock
    try:
        return images if all(pool.map(decode, range(len(pictures)))) else pictures
    finally:
        pool.shutdown(cancel_futures=True)


def pixels(image: Image.Image) -> Tensor:
    """The pixels of an image, uint8 (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
