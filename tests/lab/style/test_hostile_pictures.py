"""Pictures of unknown origin: whatever they hold, colour and style transfer read them or refuse them by name."""

from __future__ import annotations

import os
import struct
import zlib

import pytest
from PIL import Image

from eigengrad.lab.style.images import PictureError, read_picture
from limits import limited_memory, time_limit
from sample_files import png


def test_a_picture_of_a_format_that_starts_a_program_is_not_opened(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    with pytest.raises(PictureError, match=r"this is no image"):
        read_picture(tmp_path / "a.png")


def test_a_picture_that_declares_many_pixels_in_a_few_bytes_is_not_decoded(tmp_path):
    image = bytearray(png())
    image[16:24] = struct.pack(">II", 9_000, 9_000)
    image[29:33] = struct.pack(">I", zlib.crc32(image[12:29]))
    (tmp_path / "a.png").write_bytes(image)
    with limited_memory(200 << 20), pytest.raises(PictureError, match=r"declares 9000 × 9000 pixels in \d+ bytes"):
        read_picture(tmp_path / "a.png")


def test_a_picture_that_is_empty_and_large_is_read(tmp_path):
    Image.new("1", (6000, 6000), 1).save(tmp_path / "a.png", optimize=True)
    assert read_picture(tmp_path / "a.png").pixels.min() == 1


def test_a_chunk_that_declares_gigabytes_takes_no_memory(tmp_path):
    """Python allocates what is asked for before it reads a file."""
    content = bytearray(png())
    content[33:37] = struct.pack(">I", 0x7FFFFFFF)  # the length of the chunk after the header
    (tmp_path / "a.png").write_bytes(content)
    with limited_memory(200 << 20):
        assert read_picture(tmp_path / "a.png").size == (8, 8)


def test_a_pipe_in_the_place_of_a_picture_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with time_limit(5), pytest.raises(PictureError, match=r"is not a regular file"):
        read_picture(tmp_path / "a.png")
