"""Pictures on disk: what colour and style transfer read and write.

Everything becomes RGB from 0 to 1, upright, with transparency beside it. Pillow reads and writes the formats; what it
cannot do is here: RGB with 16 bits a channel, which it reads at 8 and does not write.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageCms, ImageFile, UnidentifiedImageError
from torch import Tensor
from torch.nn import functional

from ..files import make_folder, read_regular_file, write_atomically
from ..jpeg import require_few_scans

__all__ = ["Picture", "PictureError", "find_pictures", "read_mask", "read_picture", "refuse_output", "write_picture"]

PNG = (".png",)
OPAQUE = (".jpg", ".jpeg", ".bmp")
SUFFIXES = (*PNG, *OPAQUE, ".webp", ".tif", ".tiff")
READABLE = (*SUFFIXES, ".gif", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".jfif", ".jp2", ".avif")
#: What Pillow may read. Others start programs (EPS) or are read by code that few use.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "TGA", "JPEG2000", "AVIF")
#: Bytes of a file. Pillow refuses more than 179 million pixels, which are 1.4 GB at 16 bits with transparency.
LARGEST = 2 << 30
#: A file that declares more pixels than both is made to fill the memory: 8,300 a byte are what PNG can do, of a
#: drawing in black and white without a line in it.
MANY_PIXELS, PIXELS_PER_BYTE = 1 << 24, 10_000
ORIENTATION = 0x0112  # of the EXIF tags
PART = 1 << 20  # bytes of a PNG that are compressed at once


class PictureError(OSError):
    """A picture that cannot be read or written; the message names the file."""


@dataclass(frozen=True)
class Picture:
    """An image in memory.

    Args:
        pixels: (3, H, W), float32, sRGB from 0 to 1.
        alpha: (H, W), float32, from 0 (transparent) to 1; None where everything is opaque.
        bits: of each channel in the file it comes from, 8 or 16. It is written with as many, where the format can.
    """

    pixels: Tensor
    alpha: Tensor | None = None
    bits: Literal[8, 16] = 8

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def with_pixels(self, pixels: Tensor) -> Picture:
        """A picture with other colours and the same transparency and depth."""
        return replace(self, pixels=pixels)

    def scaled(self, longer: int) -> Picture:
        """The picture scaled to so many pixels along its longer side.

        Raises:
            ValueError: if that leaves less than a pixel of the shorter side.
        """
        factor = longer / max(self.size)
        height, width = (round(side * factor) for side in self.size)
        if min(height, width) < 1:
            raise ValueError(f"a picture of {self.size[1]}×{self.size[0]} pixels cannot be scaled to {width}×{height}")

        def scale(planes: Tensor) -> Tensor:
            # Bicubic overshoots at edges.
            made = functional.interpolate(planes.unsqueeze(0), (height, width), mode="bicubic", antialias=True)
            return made.squeeze(0).clamp(0, 1)

        alpha = None if self.alpha is None else scale(self.alpha.unsqueeze(0)).squeeze(0)
        return replace(self, pixels=scale(self.pixels), alpha=alpha)


def read_picture(path: Path) -> Picture:
    """The picture in a file, of one of :data:`FORMATS`: the first frame, turned upright, in sRGB.

    Raises:
        PictureError: if the file is missing, damaged or no image.
    """
    with _Naming(path):
        # From memory: of a file, Python allocates as many bytes as a chunk declares before it reads them.
        content = read_regular_file(path, LARGEST)
        require_few_scans(content)
    with _Naming(path), Image.open(io.BytesIO(content), formats=_formats()) as image:
        if image.width * image.height > max(MANY_PIXELS, PIXELS_PER_BYTE * len(content)):
            raise ValueError(f"it declares {image.width} × {image.height} pixels in {len(content):,} bytes")
        picture = _picture(*(_read_16(image, content) if _is_16(image) else _read_8(image)))
        # Afterwards: for some formats this reads the pixels, at 8 bits.
        orientation = image.getexif().get(ORIENTATION, 1)
    return _upright(picture, orientation)


def read_mask(path: Path, size: tuple[int, int]) -> Tensor:
    """A grey picture as weights (H, W) from 0 (black) to 1 (white), scaled to ``size`` if it has the same proportions.

    Raises:
        PictureError: also for proportions that differ by more than a pixel.
    """
    picture = read_picture(path)
    mask = picture.pixels.mean(0)
    if picture.alpha is not None:
        mask = mask * picture.alpha
    (height, width), (rows, columns) = size, mask.shape
    if (rows, columns) == size:
        return mask
    scale = max(height / rows, width / columns)
    if abs(rows * scale - height) > max(scale, 1) or abs(columns * scale - width) > max(scale, 1):
        raise PictureError(
            f"{path}: a mask must have the proportions of its picture, {width}×{height}; got {columns}×{rows}"
        )
    return functional.interpolate(mask[None, None], size, mode="bilinear", antialias=True)[0, 0].clamp(0, 1)


def refuse_output(output: Path, inputs: Iterable[Path], *, transparent: bool = False) -> None:
    """Say what is wrong with an output file before any work is done for it.

    Raises:
        PictureError: if it is one of the inputs, of no known format, or cannot hold the transparency.
    """
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise PictureError(f"{output}: cannot tell the format; use one of the endings {', '.join(SUFFIXES)}")
    if transparent and suffix in OPAQUE:
        raise PictureError(f"{output}: {suffix[1:]} has no transparency, and the picture does; write a .png")
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise PictureError(f"{output}: this is an input, which would be overwritten; choose another output")


def write_picture(picture: Picture, path: Path, *, inputs: Iterable[Path] = ()) -> None:
    """Write a picture in the format that the file's ending says, whole or not at all.

    Args:
        picture: what to write. Values outside 0 to 1 are clamped.
        path: where; missing folders are made.
        inputs: files that must not be overwritten.

    Raises:
        PictureError: see :func:`refuse_output`; and if there is no room, or no permission.
    """
    refuse_output(path, inputs, transparent=picture.alpha is not None)
    if not bool(picture.pixels.sum().isfinite()):  # a sum is finite if every term is; much faster than asking each
        raise PictureError(f"{path}: the picture holds NaN or infinity, so it is not written")
    suffix = path.suffix.lower()
    buffer = io.BytesIO()
    if suffix in PNG:
        _write_png(_levels(picture, picture.bits), buffer)
    else:
        # Colour at full resolution: it is what was made. (Formats ignore the options of others.)
        options = {"quality": 95, "subsampling": 0}
        try:
            Image.fromarray(_levels(picture, 8)).save(buffer, Image.registered_extensions()[suffix], **options)
        except (OSError, ValueError) as error:  # a picture that is too large for the format
            raise PictureError(f"{path}: {suffix[1:]} cannot hold this picture ({error})") from error
    try:
        make_folder(path.parent)
        write_atomically(path, buffer.getbuffer(), flush=False)
    except OSError as error:
        raise PictureError(error.strerror or str(error)) from error


def find_pictures(folder: Path) -> list[Path]:
    """The image files in a folder, by their endings, in the order of their names."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix.lower() in READABLE and not path.name.startswith(".")
    )


@cache
def _formats() -> tuple[str, ...]:
    """The entries of FORMATS that this Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


class _Naming:
    """Context in which any error of reading a file becomes a :class:`PictureError` that names it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is None or isinstance(error, PictureError) or not isinstance(error, Exception):
            return
        if isinstance(error, FileNotFoundError):
            reason = "there is no such file"
        elif isinstance(error, IsADirectoryError):
            reason = "this is a folder, not a picture"
        elif isinstance(error, PermissionError):
            reason = "no permission to read it"
        elif isinstance(error, Image.DecompressionBombError):
            reason = f"it has more pixels than Pillow reads without being asked twice ({error})"
        elif isinstance(error, UnidentifiedImageError):
            reason = "this is no image, or a damaged one"
        else:  # Pillow's decoders raise whatever the damage leads to: OSError, SyntaxError, struct.error, ...
            reason = f"this image is damaged or of an unknown kind ({error})"
        raise PictureError(f"{self.path}: {reason}") from error


def _is_16(image: ImageFile.ImageFile) -> bool:
    deep_png = image.format == "PNG" and image.tile and str(image.tile[0].args).endswith(";16B")
    return bool(deep_png) or image.mode == "I" or image.mode.startswith("I;16")


def _read_8(image: Image.Image) -> tuple[np.ndarray, np.ndarray | None]:
    """Colours (H, W, 3) and transparency (H, W), of 8 bits."""
    if image.mode == "F":
        raise ValueError("it holds floating-point numbers, whose black and white are not known")
    bands = () if image.mode == "LAB" else image.getbands()  # whose A is a colour
    transparent = "A" in bands or "a" in bands or "transparency" in image.info
    profile = image.info.get("icc_profile")
    if image.mode in ("P", "PA", "1", "La", "RGBa"):
        image = image.convert("RGBA" if transparent else "RGB")
    alpha = np.asarray(image.convert("RGBA").getchannel("A")) if transparent else None
    return np.asarray(_to_srgb(image, profile)), alpha


def _to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """RGB as a screen shows it: by the colour profile in the file, if there is one for these channels."""
    if image.mode in ("RGBA", "RGBX"):
        image = image.convert("RGB")
    if profile and image.mode in ("RGB", "CMYK", "L"):
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            if "sRGB" not in ImageCms.getProfileDescription(source):
                target = ImageCms.createProfile("sRGB")
                image = ImageCms.profileToProfile(image, source, target, outputMode="RGB") or image
        except (ImageCms.PyCMSError, OSError):
            pass  # a profile that cannot be used is treated as viewers do: as if there were none
    return image.convert("RGB")


def _read_16(image: ImageFile.ImageFile, content: bytes) -> tuple[np.ndarray, np.ndarray | None]:
    """Colours (H, W, 3) and transparency (H, W), of 16 bits.

    Pillow keeps one byte of each colour. But PNG stores the high byte first, and its reader for the opposite order
    keeps the other byte: two passes give both.
    """
    if image.mode == "I" or image.mode.startswith("I;16"):
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 65535:
            raise ValueError(f"its numbers, from {grey.min()} to {grey.max()}, are not of 16 bits")
        return _opaque(np.repeat(grey.astype(np.uint16)[..., None], 3, axis=2), image.info.get("transparency"))
    (tile,) = image.tile
    if tile.args == "LA;16B":  # two numbers of 16 bits are four bytes
        image.tile = [tile._replace(args="RGBA")]
        b = np.asarray(image).astype(np.uint16)
        grey, alpha = (b[..., 0] << 8 | b[..., 1], b[..., 2] << 8 | b[..., 3])
        return np.repeat(grey[..., None], 3, axis=2), alpha
    with Image.open(io.BytesIO(content), formats=_formats()) as other:
        other.tile = [other.tile[0]._replace(args=str(tile.args).replace(";16B", ";16L"))]
        low = np.asarray(other)
    levels = np.asarray(image).astype(np.uint16) << 8 | low
    if levels.shape[2] == 4:
        return levels[..., :3], levels[..., 3]
    return _opaque(levels, image.info.get("transparency"))


def _opaque(levels: np.ndarray, key: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """The image with the transparency of a colour that the file declares transparent."""
    if key is None:
        return levels, None
    return levels, np.where((levels == np.asarray(key, np.uint16)).all(2), 0, 65535).astype(np.uint16)


def _picture(levels: np.ndarray, alpha: np.ndarray | None) -> Picture:
    bits: Literal[8, 16] = 8 if levels.dtype == np.uint8 else 16
    if alpha is not None and alpha.size and alpha.min() == np.iinfo(alpha.dtype).max:
        alpha = None  # a transparency that nothing makes use of
    return Picture(_unit(np.moveaxis(levels, 2, 0)), None if alpha is None else _unit(alpha), bits)


def _unit(levels: np.ndarray) -> Tensor:
    """Whole numbers as float32 from 0 to 1."""
    whole = torch.from_numpy(np.array(levels, order="C"))  # a copy: Pillow's memory is read-only
    return whole.to(torch.float32).div_(255 if levels.dtype == np.uint8 else 65535)


def _upright(picture: Picture, orientation: int) -> Picture:
    """Undo how the camera was held: EXIF's eight orientations are a transposition and two reflections."""

    def turn(x: Tensor) -> Tensor:
        x = x.mT if orientation in (5, 6, 7, 8) else x
        flips = [axis for axis, those in ((-1, (2, 3, 6, 7)), (-2, (3, 4, 7, 8))) if orientation in those]
        return x.flip(flips).contiguous() if flips else x.contiguous()

    return replace(picture, pixels=turn(picture.pixels), alpha=None if picture.alpha is None else turn(picture.alpha))


def _levels(picture: Picture, bits: int) -> np.ndarray:
    """A picture as whole numbers, (H, W, 3 or 4)."""
    planes = picture.pixels
    if picture.alpha is not None:
        planes = torch.cat([planes, picture.alpha.unsqueeze(0)])
    channels, height, width = planes.shape
    levels = np.empty((height, width, channels), np.uint8 if bits == 8 else np.uint16)
    for top in range(0, height, 64):  # strips that stay in the cache
        strip = planes[:, top : top + 64].clamp(0, 1).mul_(2**bits - 1).round_()
        for channel, plane in enumerate(strip.to(torch.uint8 if bits == 8 else torch.int32).numpy()):
            levels[top : top + 64, :, channel] = plane
    return levels


def _write_png(levels: np.ndarray, file: io.BytesIO) -> None:
    """PNG with 8 or 16 bits a channel: every row as differences to the row above it.

    Pillow has no 16 bits, and takes three times as long over 8 because it tries five filters on every row.
    """
    height, width, channels = levels.shape
    depth = 8 * levels.itemsize
    rows = levels.astype(levels.dtype.newbyteorder(">"), copy=False).view(np.uint8).reshape(height, -1)
    data = np.empty((height, rows.shape[1] + 1), np.uint8)
    data[:, 0] = 2  # the filter "up"
    data[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=data[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, depth, 2 if channels == 3 else 6, 0, 0, 0)
    file.write(b"\x89PNG\r\n\x1a\n")
    for kind, body in (
        (b"IHDR", header),
        (b"sRGB", b"\0"),
        (b"IDAT", _deflated(data.data.cast("B"))),
        (b"IEND", b""),
    ):
        file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))


def _deflated(data: memoryview) -> bytes:
    """A zlib stream, compressed in parts on as many threads as torch has: it is what takes longest.

    Parts that end in a full flush can be put one behind the other. Differences between the rows of a photograph repeat
    in runs, if at all: to look for nothing else takes half the time, and leaves fewer bytes.
    """
    starts = range(0, len(data), PART)

    def part(start: int) -> bytes:
        compressor = zlib.compressobj(2, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
        body = compressor.compress(data[start : start + PART])
        return body + compressor.flush(zlib.Z_FINISH if start == starts[-1] else zlib.Z_FULL_FLUSH)

    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        parts = list(threads.map(part, starts))
    return b"".join([b"\x78\x01", *parts, struct.pack(">I", zlib.adler32(data))])
