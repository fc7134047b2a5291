"""Pictures on disk: every kind that can come, damaged ones, and what must never be overwritten."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from torch import Tensor

from eigengrad.lab.style.images import Picture, PictureError, find_pictures, read_mask, read_picture, write_picture


@pytest.fixture
def levels() -> np.ndarray:
    """A small picture in which no two pixels are alike."""
    return np.random.default_rng(0).permutation(256)[: 5 * 7 * 3].reshape(5, 7, 3).astype(np.uint8)


def unit(levels: np.ndarray) -> Tensor:
    top = 255 if levels.dtype == np.uint8 else 65535
    return torch.from_numpy(levels.astype(np.float32) / top).movedim(-1, 0)


def save(path: Path, levels: np.ndarray, **options: object) -> Path:
    Image.fromarray(levels).save(path, **options)
    return path


def png_16(path: Path, levels: np.ndarray, kind: int, *, filter_type: int = 0, extra: bytes = b"") -> Path:
    """A PNG of 16 bits a channel as other programs write it: here with the filter "sub" or none, by hand."""
    height, width, channels = levels.shape
    rows = levels.astype(">u2").view(np.uint8).reshape(height, -1)
    if filter_type == 1:
        step = 2 * channels
        rows = np.concatenate([rows[:, :step], rows[:, step:] - rows[:, :-step]], axis=1)
    data = b"".join(bytes([filter_type]) + row.tobytes() for row in rows)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )
    return path


def linear_profile() -> bytes:
    """A colour profile with the primaries of sRGB and no gamma."""

    def fixed(*numbers: float) -> bytes:
        return b"".join(struct.pack(">i", round(number * 65536)) for number in numbers)

    def xyz(*numbers: float) -> bytes:
        return b"XYZ \0\0\0\0" + fixed(*numbers)

    text = b"linear"
    curve = b"curv\0\0\0\0" + struct.pack(">I", 0)
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(text) + 1) + text + bytes(80),
        b"wtpt": xyz(0.9642, 1.0, 0.8249),
        b"rXYZ": xyz(0.4360, 0.2225, 0.0139),
        b"gXYZ": xyz(0.3851, 0.7169, 0.0971),
        b"bXYZ": xyz(0.1431, 0.0606, 0.7141),
        b"rTRC": curve,
        b"gTRC": curve,
        b"bTRC": curve,
    }
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        data += bytes(-len(data) % 4)
        table += name + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(body), len(data))
        body += data
    size = struct.pack(">I", 128 + len(table) + len(body))
    header = size + bytes(4) + bytes([2, 0x40, 0, 0]) + b"mntrRGB XYZ " + bytes(12) + b"acsp" + bytes(28)
    return header + fixed(0.9642, 1.0, 0.8249) + bytes(128 - len(header) - 12) + table + body


class TestReading:
    def test_rgb_is_channels_first_from_0_to_1(self, tmp_path: Path, levels: np.ndarray) -> None:
        picture = read_picture(save(tmp_path / "a.png", levels))
        assert torch.equal(picture.pixels, unit(levels))
        assert picture.alpha is None
        assert picture.bits == 8

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation_is_undone_as_pillow_undoes_it(
        self, tmp_path: Path, levels: np.ndarray, orientation: int
    ) -> None:
        from PIL import ImageOps

        exif = Image.Exif()
        exif[0x0112] = orientation
        path = save(tmp_path / "a.png", levels, exif=exif)
        expected = np.asarray(ImageOps.exif_transpose(Image.open(path)))
        assert torch.equal(read_picture(path).pixels, unit(expected))

    def test_grey_has_three_equal_channels(self, tmp_path: Path, levels: np.ndarray) -> None:
        pixels = read_picture(save(tmp_path / "a.png", levels[..., 0])).pixels
        assert torch.equal(pixels, unit(levels[..., :1]).expand(3, -1, -1))

    @pytest.mark.parametrize("mode", ["RGBA", "LA"])
    def test_alpha_is_beside_the_pixels(self, tmp_path: Path, levels: np.ndarray, mode: str) -> None:
        image = Image.fromarray(levels).convert("RGBA")
        image.putalpha(Image.fromarray(levels[..., 1]))
        image.convert(mode).save(tmp_path / "a.png")
        picture = read_picture(tmp_path / "a.png")
        assert picture.alpha is not None
        assert torch.equal(picture.alpha, unit(levels[..., 1:2])[0])

    def test_palette_with_a_transparent_colour(self, tmp_path: Path) -> None:
        image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8)).convert("P")
        image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
        image.save(tmp_path / "a.png", transparency=1)
        picture = read_picture(tmp_path / "a.png")
        assert torch.equal(picture.pixels[:, 0, 0], torch.tensor([10, 20, 30]) / 255)
        assert picture.alpha is not None
        assert picture.alpha.tolist() == [[1, 0], [1, 0]]

    def test_bilevel(self, tmp_path: Path) -> None:
        Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1").save(tmp_path / "a.png")
        assert read_picture(tmp_path / "a.png").pixels[0].tolist() == [[0, 1]]

    def test_cmyk(self, tmp_path: Path) -> None:
        Image.new("CMYK", (4, 4), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
        red, green, blue = read_picture(tmp_path / "a.jpg").pixels.mean((1, 2)).tolist()
        assert red > 0.98
        assert green < 0.02
        assert blue < 0.02

    def test_a_colour_profile_is_applied(self, tmp_path: Path, levels: np.ndarray) -> None:
        path = save(tmp_path / "linear.png", levels, icc_profile=linear_profile())
        linear = unit(levels)
        expected = torch.where(linear < 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
        assert (read_picture(path).pixels - expected).abs().max() < 0.02
        assert (linear - expected).abs().max() > 0.2

    def test_profiles_that_change_nothing(self, tmp_path: Path, levels: np.ndarray) -> None:
        srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
        for name, profile in (("same.png", srgb), ("broken.png", b"no profile")):
            assert torch.equal(read_picture(save(tmp_path / name, levels, icc_profile=profile)).pixels, unit(levels))


class Test16Bits:
    @pytest.mark.parametrize("filter_type", [0, 1])
    @pytest.mark.parametrize(("kind", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)])
    def test_every_bit_is_read(self, tmp_path: Path, kind: int, channels: int, filter_type: int) -> None:
        levels = np.random.default_rng(1).integers(0, 65536, (6, 9, channels)).astype(np.uint16)
        picture = read_picture(png_16(tmp_path / "a.png", levels, kind, filter_type=filter_type))
        colours = levels[..., : 1 if channels < 3 else 3]
        assert picture.bits == 16
        assert torch.equal(picture.pixels, unit(colours).expand(3, -1, -1))
        if channels in (2, 4):
            assert picture.alpha is not None
            assert torch.equal(picture.alpha, unit(levels[..., -1:])[0])
        else:
            assert picture.alpha is None

    @pytest.mark.parametrize("alpha", [False, True])
    def test_every_bit_is_written(self, tmp_path: Path, alpha: bool) -> None:
        levels = np.random.default_rng(2).integers(0, 65536, (4, 5, 4)).astype(np.uint16)
        picture = Picture(unit(levels[..., :3]), unit(levels[..., 3:])[0] if alpha else None, bits=16)
        write_picture(picture, tmp_path / "a.png")
        again = read_picture(tmp_path / "a.png")
        assert torch.equal(again.pixels, picture.pixels)
        assert (again.alpha is None) == (picture.alpha is None)
        with Image.open(tmp_path / "a.png") as image:  # others can read it
            assert np.array_equal(np.asarray(image)[..., :3], levels[..., :3] >> 8)

    def test_a_transparent_colour(self, tmp_path: Path) -> None:
        levels = np.array([[[1, 2, 3], [1, 2, 4]]], np.uint16)
        key = struct.pack(">HHH", 1, 2, 3)
        extra = struct.pack(">I", 6) + b"tRNS" + key + struct.pack(">I", zlib.crc32(b"tRNS" + key))
        picture = read_picture(png_16(tmp_path / "a.png", levels, 2, extra=extra))
        assert picture.alpha is not None
        assert picture.alpha.tolist() == [[0, 1]]


class TestDamage:
    def test_truncated(self, tmp_path: Path) -> None:
        data = io.BytesIO()
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8)).save(data, "JPEG")
        for name, share in (("half.jpg", 2), ("head.jpg", 20)):
            (tmp_path / name).write_bytes(data.getvalue()[: len(data.getvalue()) // share])
            with pytest.raises(PictureError, match=rf"{name}: this"):
                read_picture(tmp_path / name)

    def test_a_16_bit_png_with_a_hole(self, tmp_path: Path) -> None:
        path = png_16(tmp_path / "hole.png", np.random.default_rng(0).integers(0, 65536, (32, 32, 3)), 2)
        data = bytearray(path.read_bytes())
        data[200:220] = bytes(20)
        path.write_bytes(data)
        with pytest.raises(PictureError, match=r"hole\.png: this image is damaged"):
            read_picture(path)

    def test_no_image_at_all(self, tmp_path: Path) -> None:
        (tmp_path / "text.jpg").write_text("hello")
        (tmp_path / "empty.png").touch()
        for name in ("text.jpg", "empty.png"):
            with pytest.raises(PictureError, match=f"{name}: this is no image, or a damaged one"):
                read_picture(tmp_path / name)

    def test_missing_and_folder(self, tmp_path: Path) -> None:
        with pytest.raises(PictureError, match=r"gone\.png: there is no such file"):
            read_picture(tmp_path / "gone.png")
        with pytest.raises(PictureError, match="this is a folder"):
            read_picture(tmp_path)

    def test_floating_point(self, tmp_path: Path) -> None:
        Image.fromarray(np.ones((2, 2), np.float32)).save(tmp_path / "a.tif")
        with pytest.raises(PictureError, match=r"a\.tif: .*floating-point"):
            read_picture(tmp_path / "a.tif")


class TestWriting:
    @pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif"])
    def test_lossless_formats_come_back(self, tmp_path: Path, levels: np.ndarray, suffix: str) -> None:
        write_picture(Picture(unit(levels)), tmp_path / f"a{suffix}")
        assert torch.equal(read_picture(tmp_path / f"a{suffix}").pixels, unit(levels))

    @pytest.mark.parametrize("suffix", [".png", ".webp", ".tiff"])
    def test_alpha_comes_back(self, tmp_path: Path, levels: np.ndarray, suffix: str) -> None:
        write_picture(Picture(unit(levels), torch.full((5, 7), 128 / 255)), tmp_path / f"a{suffix}")
        alpha = read_picture(tmp_path / f"a{suffix}").alpha
        assert alpha is not None
        assert torch.equal(alpha, torch.full((5, 7), 128 / 255))

    def test_alpha_is_not_dropped(self, tmp_path: Path, levels: np.ndarray) -> None:
        with pytest.raises(PictureError, match=r"a\.jpg: jpg has no transparency.*\.png"):
            write_picture(Picture(unit(levels), torch.ones(5, 7)), tmp_path / "a.jpg")
        assert not list(tmp_path.iterdir())

    def test_inputs_are_not_overwritten(self, tmp_path: Path, levels: np.ndarray) -> None:
        path = save(tmp_path / "a.png", levels)
        before = path.read_bytes()
        (tmp_path / "link.png").symlink_to(path)
        for output in (path, tmp_path / "x" / ".." / "a.png", tmp_path / "link.png"):
            (tmp_path / "x").mkdir(exist_ok=True)
            with pytest.raises(PictureError, match="this is an input"):
                write_picture(Picture(unit(levels)), output, inputs=[path])
        assert path.read_bytes() == before

    def test_unknown_ending(self, tmp_path: Path, levels: np.ndarray) -> None:
        with pytest.raises(PictureError, match=r"a\.xyz: cannot tell the format; use one of the endings \.png"):
            write_picture(Picture(unit(levels)), tmp_path / "a.xyz")

    def test_not_a_number_is_not_written(self, tmp_path: Path) -> None:
        with pytest.raises(PictureError, match="NaN"):
            write_picture(Picture(torch.full((3, 2, 2), torch.nan)), tmp_path / "a.png")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_no_permission(self, tmp_path: Path, levels: np.ndarray) -> None:
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(PictureError, match=r"cannot write .*a\.png: Permission denied"):
                write_picture(Picture(unit(levels)), tmp_path / "a.png")
        finally:
            tmp_path.chmod(0o700)

    def test_a_file_where_a_folder_should_be(self, tmp_path: Path, levels: np.ndarray) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(PictureError, match=r"cannot create the folder .*file: "):
            write_picture(Picture(unit(levels)), tmp_path / "file" / "a.png")

    def test_permissions_are_the_users(self, tmp_path: Path, levels: np.ndarray) -> None:
        write_picture(Picture(unit(levels)), tmp_path / "new" / "a.png")
        (tmp_path / "plain").touch()
        assert (tmp_path / "new" / "a.png").stat().st_mode == (tmp_path / "plain").stat().st_mode
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.png"]


class TestMasks:
    def test_scaled_to_the_picture(self, tmp_path: Path) -> None:
        mask = np.zeros((20, 30), np.uint8)
        mask[:, :15] = 255
        read = read_mask(save(tmp_path / "m.png", mask), (40, 60))
        assert read.shape == (40, 60)
        assert read[:, :28].min() == 1
        assert read[:, 32:].max() == 0

    def test_other_proportions_are_refused(self, tmp_path: Path) -> None:
        path = save(tmp_path / "m.png", np.zeros((20, 30), np.uint8))
        with pytest.raises(PictureError, match=r"m\.png: .*proportions of its picture, 40×40; got 30×20"):
            read_mask(path, (40, 40))


def test_scaling_keeps_proportions_and_range(levels: np.ndarray) -> None:
    picture = Picture(unit(levels), torch.ones(5, 7)).scaled(70)
    assert picture.size == (50, 70)
    assert picture.alpha is not None
    assert picture.alpha.shape == (50, 70)
    assert float(picture.pixels.min()) >= 0
    assert float(picture.pixels.max()) <= 1


def test_transparency_that_nothing_uses_is_none(tmp_path: Path) -> None:
    for mode in ("RGBA", "LA"):
        Image.new(mode, (4, 3), (9,) * (len(mode) - 1) + (255,)).save(tmp_path / "opaque.png")
        assert read_picture(tmp_path / "opaque.png").alpha is None
    write_picture(read_picture(tmp_path / "opaque.png"), tmp_path / "out.jpg")  # which has no room for any


def test_lab_has_no_transparency(tmp_path: Path) -> None:
    Image.new("LAB", (4, 3), (120, 128, 100)).save(tmp_path / "lab.tif")
    assert read_picture(tmp_path / "lab.tif").alpha is None


def test_a_picture_that_the_format_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"out\.jpg: jpg cannot hold this picture"):
        write_picture(Picture(torch.zeros(3, 1, 70_000)), tmp_path / "out.jpg")
    assert not list(tmp_path.iterdir())


def test_a_long_name_is_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 250}.png"
    write_picture(Picture(torch.zeros(3, 2, 2)), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_find_pictures_in_order(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "notes.txt", "c.webp", "paper.pdf", "._a.png", ".hidden.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "d.png").mkdir()
    assert [path.name for path in find_pictures(tmp_path)] == ["a.png", "b.JPG", "c.webp"]
