"""``eigengrad color`` as a user runs them: files in, files out, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from eigengrad.lab.commands.color import color
from eigengrad.lab.style.images import Picture, read_picture, write_picture
from lab.style_codecs import SMALL, photo, write

app = typer.Typer()
app.callback()(lambda: None)
app.command()(color)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(result: Result) -> str:
    """Everything on the terminal, in one line."""
    return " ".join((result.stdout + result.stderr).split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two photographs, a broken one, two paintings, and weights."""
    for index, name in enumerate(("photos/a.png", "photos/b.png", "paintings/c.png", "paintings/d.png")):
        write_picture(photo(index, (40 + 4 * index, 56)), tmp_path / name)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    write(tmp_path / "weights", SMALL)
    return tmp_path


class TestColor:
    def test_a_picture(self, folder: Path) -> None:
        result = run("color", folder / "photos/a.png", folder / "paintings/c.png", "-o", folder / "new/out.png")
        assert result.exit_code == 0, said(result)
        made, palette = read_picture(folder / "new/out.png"), read_picture(folder / "paintings/c.png")
        assert made.size == (40, 56)
        assert (made.pixels.mean((1, 2)) - palette.pixels.mean((1, 2))).abs().max() < 0.02

    def test_options(self, folder: Path) -> None:
        mask = torch.zeros(3, 40, 56)
        mask[:, :20] = 1
        write_picture(Picture(mask), folder / "mask.png")
        content = folder / "photos/a.png"
        result = run(
            "color", content, folder / "paintings/c.png", "-o", folder / "out.png",
            "--space", "lab", "--strength", 0.5, "--mask", folder / "mask.png",
        )  # fmt: skip
        assert result.exit_code == 0, said(result)
        before, after = read_picture(content).pixels, read_picture(folder / "out.png").pixels
        assert torch.equal(before[:, 20:], after[:, 20:])
        assert not torch.equal(before[:, :20], after[:, :20])

    def test_a_folder_with_a_broken_picture(self, folder: Path) -> None:
        result = run("color", folder / "photos", folder / "paintings/c.png", "-o", folder / "out")
        assert result.exit_code == 1
        assert "broken.jpg: this" in said(result)
        assert "1 of 3 pictures could not be done" in said(result)
        assert sorted(path.name for path in (folder / "out").iterdir()) == ["a.png", "b.png"]

    def test_pictures_of_one_name_do_not_overwrite_each_other(self, folder: Path) -> None:
        Image.open(folder / "photos/a.png").save(folder / "photos/a.bmp")
        run("color", folder / "photos", folder / "paintings/c.png", "-o", folder / "out")
        assert sorted(path.name for path in (folder / "out").iterdir()) == ["a.bmp.png", "a.png.png", "b.png"]

    def test_misuse(self, folder: Path) -> None:
        content, palette = folder / "photos/a.png", folder / "paintings/c.png"
        before = content.read_bytes()
        for arguments, message in (
            ((content, palette, "-o", content), "this is an input"),
            ((content, palette, "-o", palette), "this is an input"),
            ((folder / "photos", palette, "-o", folder / "photos"), "this is an input"),
            ((content, folder / "photos/broken.jpg", "-o", folder / "o.png"), "broken.jpg: this"),
            ((folder / "gone.png", palette, "-o", folder / "o.png"), "gone.png: there is no such file"),
            ((content, palette, "-o", folder / "o.xyz"), "cannot tell the format"),
            ((content, palette, "-o", folder / "o.png", "--space", "hsv"), "expected one of 'lab', 'rgb'"),
            ((folder / "weights", palette, "-o", folder / "o"), "there are no pictures in this folder"),
        ):
            result = run("color", *arguments)
            assert result.exit_code in (1, 2), arguments
            assert message in said(result)
        assert content.read_bytes() == before
        assert not (folder / "o.png").exists()
