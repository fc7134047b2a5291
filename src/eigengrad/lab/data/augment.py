"""Augmentation of whole batches, as a function of the images and of uniform random numbers.

An augmentation draws nothing itself: it says how many uniform numbers it wants for an image and is given them. So what
happens to an image does not depend on how a batch is divided between processes, nor on any global state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from .pictures import Images, pixels
from .resize import resized

__all__ = ["Augmentation", "ColourJitter", "RandomResizedCrop", "RandomShift"]


class Augmentation(Protocol):
    """How images are changed for training, and which view of them is tested."""

    @property
    def draws(self) -> int:
        """How many uniform numbers in [0, 1) an image takes."""
        ...

    @property
    def output_size(self) -> int | None:
        """Height and width of what comes out; ``None`` is that of what goes in."""
        ...

    def train(self, images: Images, uniform: Tensor) -> Tensor:
        """Changed images, uint8 (N, C, H, W), for uniform numbers (N, draws)."""
        ...

    def test(self, images: Images) -> Tensor:
        """The view of the images that is tested, uint8 (N, C, H, W)."""
        ...


@dataclass(frozen=True)
class RandomShift:
    """A crop of the original size at a random place of the image with a black border, and a random mirror image.

    This is the paper's augmentation of CIFAR, with a border of 4 pixels. For images in memory.
    """

    padding: int = 4
    flip: bool = True
    output_size: None = None

    @property
    def draws(self) -> int:
        """Three uniform numbers: shift down, shift right, mirror."""
        return 3

    def train(self, images: Images, uniform: Tensor) -> Tensor:
        """Shifted and mirrored images, uint8 (N, C, H, W)."""
        images = self.test(images)
        count, _, height, width = images.shape
        down, right = (uniform[:, :2] * (2 * self.padding + 1)).long().unbind(1)
        columns = torch.arange(width).expand(count, width)
        if self.flip:
            columns = torch.where(uniform[:, 2:] < 0.5, columns.flip(1), columns)
        rows = torch.arange(height) + down[:, None]
        columns = columns + right[:, None]
        padded = pad(images, (self.padding,) * 4)
        places = (rows[:, :, None] * padded.shape[-1] + columns[:, None, :]).reshape(count, 1, -1)
        moved = padded.flatten(2).gather(2, places.expand(-1, images.shape[1], -1))
        return moved.view(images.shape)

    def test(self, images: Images) -> Tensor:
        """The images as they are."""
        if not isinstance(images, Tensor):
            raise TypeError(f"RandomShift: images must be a tensor; got {type(images).__name__}")
        return images


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the image, scaled to a square, and a random mirror image: the usual augmentation of ImageNet.

    A part has between ``area`` of the image and all of it, and a shape between 3:4 and 4:3. Tested is the square in
    the middle with 7/8 of the shorter side, which is what "scale to 256, cut out 224" sees.

    Args:
        size: height and width of what comes out.
        area: of the smallest part, as a share of the image.
        flip: mirror one image in two.
    """

    size: int
    area: float = 0.08
    flip: bool = True

    #: How often an area and a shape are tried until the part fits into the image; then the middle is taken.
    _TRIES = 10

    @property
    def draws(self) -> int:
        """The uniform numbers of all attempts at an area and a shape, of the place, and of the mirror image."""
        return 2 * self._TRIES + 3

    @property
    def output_size(self) -> int:
        """Height and width of what comes out."""
        return self.size

    def train(self, images: Images, uniform: Tensor) -> Tensor:
        """Random parts of the images, scaled to squares: uint8 (N, C, H, W)."""
        views = []
        for index, numbers in enumerate(uniform.tolist()):
            image = _nth(images, index)
            view = self._scaled(image, self._box(*_extent(image), numbers))
            views.append(view.flip(-1) if self.flip and numbers[-1] < 0.5 else view)
        return torch.stack(views)

    def test(self, images: Images) -> Tensor:
        """The squares in the middle of the images, scaled: uint8 (N, C, H, W)."""
        views = []
        for index in range(len(images)):
            image = _nth(images, index)
            height, width = _extent(image)
            side = max(round(min(height, width) * 7 / 8), 1)
            views.append(self._scaled(image, ((height - side) // 2, (width - side) // 2, side, side)))
        return torch.stack(views)

    def _box(self, height: int, width: int, numbers: list[float]) -> tuple[int, int, int, int]:
        """Top, left, height and width of a part."""
        for attempt in range(self._TRIES):
            area = height * width * (self.area + (1 - self.area) * numbers[2 * attempt])
            shape = (3 / 4) ** (1 - 2 * numbers[2 * attempt + 1])
            h, w = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < h <= height and 0 < w <= width:
                return int(numbers[-3] * (height - h + 1)), int(numbers[-2] * (width - w + 1)), h, w
        h, w = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
        return (height - h) // 2, (width - w) // 2, h, w

    def _scaled(self, image: Tensor | Image.Image, box: tuple[int, int, int, int]) -> Tensor:
        top, left, height, width = box
        if isinstance(image, Tensor):
            return resized(image[None, :, top : top + height, left : left + width], self.size)[0]
        part = image.crop((left, top, left + width, top + height))
        return pixels(part.resize((self.size, self.size), Image.Resampling.BILINEAR))


@dataclass(frozen=True)
class ColourJitter:
    """Another augmentation, and random colours: contrast, saturation, and the lighting of AlexNet.

    Contrast and saturation are multiplied by factors between 1 − ``strength`` and 1 + ``strength``: each pixel is moved
    from or towards the mean grey of the image, and its own grey. Then a random multiple of the principal components of
    ImageNet's colours is added to all pixels, with the standard deviation ``lighting`` in units of theirs. Test images
    are as the other augmentation has them. For images of three channels.

    Args:
        inner: what is done before.
        strength: of contrast and saturation, in [0, 1); MPN-COV has 0.4.
        lighting: 0.1 as in AlexNet.
    """

    inner: Augmentation
    strength: float = 0.4
    lighting: float = 0.1

    @property
    def draws(self) -> int:
        """Five uniform numbers more: contrast, saturation, and one for each principal component."""
        return self.inner.draws + 5

    @property
    def output_size(self) -> int | None:
        """As the other augmentation has it."""
        return self.inner.output_size

    def train(self, images: Images, uniform: Tensor) -> Tensor:
        """Images in other colours, uint8 (N, 3, H, W)."""
        changed = self.inner.train(images, uniform[:, :-5]).float()
        if changed.shape[1] != 3:
            raise ValueError(f"ColourJitter: images must have 3 channels; got {changed.shape[1]}")
        numbers = uniform[:, -5:].to(changed.dtype)
        contrast, saturation = (1 + self.strength * (2 * numbers[:, :2] - 1))[:, :, None, None, None].unbind(1)
        grey = (changed * changed.new_tensor(_GREY)[:, None, None]).sum(1, keepdim=True)
        changed = grey + saturation * (changed - grey)
        mean = grey.mean((2, 3), keepdim=True)
        changed = mean + contrast * (changed - mean)
        # Normal numbers from uniform ones; the ends of the interval are infinite.
        normal = math.sqrt(2) * torch.erfinv((2 * numbers[:, 2:] - 1).clamp(-1 + 1e-6, 1 - 1e-6))
        shift = (self.lighting * normal * normal.new_tensor(_DEVIATIONS)) @ normal.new_tensor(_COMPONENTS).mT
        return (changed + shift[:, :, None, None]).round().clamp(0, 255).to(torch.uint8)

    def test(self, images: Images) -> Tensor:
        """As the other augmentation has them."""
        return self.inner.test(images)


#: Shares of red, green and blue in the grey of a colour (ITU-R 601).
_GREY = (0.299, 0.587, 0.114)

#: Principal components of the colours of ImageNet's pixels, as columns, and their standard deviations, from 0 to 255.
_COMPONENTS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
_DEVIATIONS = (55.46, 4.794, 1.148)


def _nth(images: Images, index: int) -> Tensor | Image.Image:
    return images[index] if isinstance(images, Tensor) else images.read(index)


def _extent(image: Tensor | Image.Image) -> tuple[int, int]:
    """Height and width of images (N, C, H, W)."""
    if isinstance(image, Tensor):
        return image.shape[-2], image.shape[-1]
    return image.height, image.width
