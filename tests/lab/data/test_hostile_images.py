"""Images of unknown origin in a data set: whatever they hold, they are decoded or refused by name."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib

import pytest
from PIL import Image

from eigengrad.lab.data import CorruptDataError
from eigengrad.lab.data.files import FolderFiles, ZipFiles
from eigengrad.lab.data.pictures import Pictures
from eigengrad.lab.style.images import PictureError, read_picture
from limits import limited_memory
from sample_files import png, write_zip


def test_a_jpeg_of_many_scans_is_not_decoded(tmp_path):
    """Each scan goes over all pixels: a megabyte with 300 of them took 17 s."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG", progressive=True, comment=b"\xff\xda" * 1000)
    whole = buffer.getvalue()
    scan = whole[whole.rindex(b"\xff\xda") : -2]
    path = tmp_path / "a.jpg"
    appended = b"\xff\xda\x00\x02" * 1000  # behind the image, where telephones keep a film
    for scans, fits in ((30, True), (100, False)):
        path.write_bytes(whole[:-2] + scan * scans + whole[-2:] + appended)
        for read, error in (
            (lambda: Pictures(FolderFiles(tmp_path), ["a.jpg"]).read(0), CorruptDataError),
            (lambda: read_picture(path), PictureError),
        ):
            with contextlib.nullcontext() if fits else pytest.raises(error, match="more than 50 scans"):
                read()


def test_a_jpeg_of_many_segments_is_not_opened(tmp_path):
    whole = io.BytesIO()
    Image.new("RGB", (8, 8)).save(whole, "JPEG")
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8" + b"\xff\xfe\x00\x02" * 20_000 + whole.getvalue()[2:])
    with pytest.raises(CorruptDataError, match="10,000 segments"):
        Pictures(FolderFiles(tmp_path), ["a.jpg"]).read(0)


def test_an_image_that_declares_too_many_pixels_is_not_decoded(tmp_path):
    image = bytearray(png())
    image[16:24] = struct.pack(">II", 12_000, 12_000)
    image[29:33] = struct.pack(">I", zlib.crc32(image[12:29]))
    write_zip(tmp_path / "a.zip", content=bytes(image))
    with limited_memory(200 << 20), pytest.raises(CorruptDataError, match=r"is not an image that can be read"):
        Pictures(ZipFiles(tmp_path / "a.zip"), ["train/ant/0.png"]).read(0)


def test_an_image_of_a_format_that_starts_a_program_is_not_opened(tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "EPS")
    write_zip(tmp_path / "a.zip", content=buffer.getvalue())
    with pytest.raises(CorruptDataError, match=r"no known format"):
        Pictures(ZipFiles(tmp_path / "a.zip"), ["train/ant/0.png"]).read(0)
