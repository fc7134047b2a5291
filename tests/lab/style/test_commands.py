"""``eigengrad color`` and ``eigengrad stylize`` as a user runs them: files in, files out, exit codes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from eigengrad.lab.commands.color import color
from eigengrad.lab.commands.stylize import stylize
from eigengrad.lab.style.images import Picture, read_picture, write_picture
from style_codecs import SMALL, photo, write

app = typer.Typer()
app.command()(color)
app.add_typer(stylize)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(result: Result) -> str:
    """Everything on the terminal, in one line."""
    return " ".join((result.stdout + result.stderr).split())


@pytest.fixture(autouse=True)
def threads_restored() -> Iterator[None]:
    """The commands set torch's threads for their process, which here is that of all tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two photographs, a broken one, two paintings, and weights."""
    for index, name in enumerate(("photos/a.png", "photos/b.png", "paintings/c.png", "paintings/d.png")):
        write_picture(photo(index, (40 + 4 * index, 56)), tmp_path / name)
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    write(tmp_path / "weights", SMALL)
    return tmp_path


class TestColor:
    def test_the_picture_does_not_depend_on_the_threads(self, folder: Path) -> None:
        write_picture(photo(5, (400, 700)), folder / "large.png")
        for threads in (1, 2, 3):
            out = folder / f"{threads}.png"
            result = run("color", folder / "large.png", folder / "paintings/c.png", "-o", out, "--threads", threads)
            assert result.exit_code == 0, said(result)
        assert (folder / "1.png").read_bytes() == (folder / "2.png").read_bytes() == (folder / "3.png").read_bytes()

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


class TestStylize:
    def test_a_picture(self, folder: Path) -> None:
        result = run(
            "stylize", folder / "photos/a.png", folder / "paintings/c.png", "-o", folder / "out.png",
            "--weights", folder / "weights", "--strength", 0.6, "--levels", "3,2,1",
        )  # fmt: skip
        assert result.exit_code == 0, said(result)
        assert read_picture(folder / "out.png").size == (40, 56)

    def test_apply_may_be_said_and_options_may_come_first(self, folder: Path) -> None:
        files = (folder / "photos/a.png", folder / "paintings/c.png", "--weights", folder / "weights")
        assert run("stylize", *files, "-o", folder / "1.png").exit_code == 0
        assert run("stylize", "apply", *files, "-o", folder / "2.png").exit_code == 0
        assert run("stylize", "-o", folder / "3.png", *files).exit_code == 0
        assert len({(folder / f"{i}.png").read_bytes() for i in (1, 2, 3)}) == 1

    def test_alone_or_in_a_folder_is_the_same(self, folder: Path) -> None:
        weights = ("--weights", folder / "weights")
        result = run("stylize", folder / "photos", folder / "paintings/c.png", "-o", folder / "out", *weights)
        assert result.exit_code == 1
        assert "broken.jpg: this" in said(result)
        run("stylize", folder / "photos/b.png", folder / "paintings/c.png", "-o", folder / "b.png", *weights)
        assert (folder / "b.png").read_bytes() == (folder / "out/b.png").read_bytes()

    def test_styles_are_blended_or_apart(self, folder: Path) -> None:
        content, styles = folder / "photos/a.png", [folder / "paintings/c.png", folder / "paintings/d.png"]
        weights = ("--weights", folder / "weights")
        assert run("stylize", content, *styles, "-o", folder / "blend.png", "--blend", "3,1", *weights).exit_code == 0
        assert run("stylize", content, *styles, "-o", folder / "each", "--each", *weights).exit_code == 0
        assert sorted(path.name for path in (folder / "each").iterdir()) == ["a-c.png", "a-d.png"]
        (folder / "more").mkdir()
        again = Path(shutil.copy(styles[1], folder / "more" / "c.png"))  # of the same name as another
        assert run("stylize", content, styles[0], again, "-o", folder / "two", "--each", *weights).exit_code == 0
        assert sorted(path.name for path in (folder / "two").iterdir()) == ["a-1-c.png.png", "a-2-c.png.png"]
        alone = run("stylize", content, styles[0], "-o", folder / "alone.png", *weights)
        assert alone.exit_code == 0
        assert (folder / "alone.png").read_bytes() == (folder / "each/a-c.png").read_bytes()

    def test_masks(self, folder: Path) -> None:
        left = torch.zeros(3, 40, 56)
        left[:, :, :28] = 1
        write_picture(Picture(left), folder / "left.png")
        write_picture(Picture(1 - left), folder / "right.png")
        content, styles = folder / "photos/a.png", (folder / "paintings/c.png", folder / "paintings/d.png")
        rest = ("-o", folder / "out.png", "--weights", folder / "weights")
        assert run("stylize", content, *styles, "--mask", folder / "left.png", *rest).exit_code == 2
        masks = ("--mask", folder / "left.png", "--mask", folder / "right.png")
        assert run("stylize", content, *styles, *masks, *rest).exit_code == 0

    def test_a_style_folder_with_a_broken_picture(self, folder: Path) -> None:
        shutil.copy(folder / "photos/broken.jpg", folder / "paintings/broken.jpg")
        weights = ("--weights", folder / "weights")
        result = run("stylize", folder / "photos/a.png", folder / "paintings", "-o", folder / "out.png", *weights)
        assert result.exit_code == 1
        assert "paintings/broken.jpg: this" in said(result)
        (folder / "paintings/broken.jpg").unlink()
        expected = run("stylize", folder / "photos/a.png", folder / "paintings", "-o", folder / "two.png", *weights)
        assert expected.exit_code == 0
        assert (folder / "out.png").read_bytes() == (folder / "two.png").read_bytes()

    def test_sizes(self, folder: Path) -> None:
        result = run(
            "stylize", folder / "photos/a.png", folder / "paintings/c.png", "-o", folder / "out.png",
            "--weights", folder / "weights", "--size", 112, "--style-size", 0.4, "--fast", "--tile", 64,
        )  # fmt: skip
        assert result.exit_code == 0, said(result)
        assert read_picture(folder / "out.png").size == (80, 112)

    def test_misuse(self, folder: Path) -> None:
        content, style = folder / "photos/a.png", folder / "paintings/c.png"
        out, weights = ("-o", folder / "out.png"), ("--weights", folder / "weights")
        Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(folder / "tiny.png")
        for arguments, code, message in (
            ((content, style, *out, *weights, "--levels", "4,1"), 2, "has no level 4; it has 1, 2, 3"),
            ((content, style, *out, *weights, "--levels", "deep"), 2, "--levels: expected numbers with commas"),
            ((content, style, *out, *weights, "--blend", "1,2"), 2, "a positive number for each of the 1 styles"),
            ((content, style, *out, *weights, "--groups", 7), 2, "groups: must divide the"),
            ((content, style, *out, "--weights", folder / "photos"), 2, "unknown weights"),
            ((content, style, *out, "--weights", folder / "gone"), 2, "expected a folder of weights"),
            ((folder / "tiny.png", style, *out, *weights), 1, "tiny.png: a picture of 5×5 pixels is too small"),
            ((content, folder / "photos/broken.jpg", *out, *weights), 1, "broken.jpg: this"),
            ((content, style, "-o", style, *weights), 1, "this is an input"),
        ):
            result = run("stylize", *arguments)
            assert result.exit_code == code, (arguments, said(result))
            assert message in said(result)
        assert not (folder / "out.png").exists()

    def test_help(self) -> None:
        assert "train-codec" in said(run("stylize", "--help"))
        assert "--strength" in said(run("stylize", "apply", "--help"))


class TestNothingIsLost:
    def test_the_picture_does_not_depend_on_the_threads(self, folder: Path) -> None:
        write_picture(photo(5, (96, 128)), folder / "large.png")
        for threads in (1, 3):
            paths = folder / "large.png", folder / "paintings/c.png", "-o", folder / f"{threads}.png"
            result = run("stylize", *paths, "--threads", threads, "--tile", 64)
            assert result.exit_code == 0, said(result)
        assert (folder / "1.png").read_bytes() == (folder / "3.png").read_bytes()

    def test_each_with_the_name_of_a_file_is_refused(self, folder: Path) -> None:
        result = run("stylize", folder / "photos/a.png", folder / "paintings", "-o", folder / "out.png", "--each")
        assert result.exit_code == 2
        assert f"--each: makes several pictures, so -o must be a folder; got {folder / 'out.png'}" in said(result)
        assert not (folder / "out.png").exists()

    def test_names_of_contents_and_styles_that_run_into_each_other(self, folder: Path) -> None:
        for name in ("sc/a.png", "sc/a-b.png", "ss/c.png", "ss/b-c.png"):
            write_picture(photo(len(name), (40, 48)), folder / name)
        options = ("--each", "--fast", "--weights", folder / "weights", "--levels", "1")
        result = run("stylize", folder / "sc", folder / "ss", "-o", folder / "so", *options)
        assert result.exit_code == 0, said(result)
        assert len(list((folder / "so").iterdir())) == 4

    @pytest.mark.parametrize("command", ["color", "stylize"])
    def test_what_cannot_be_written_is_refused_before_the_work(
        self, folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def work(*_: object, **__: object) -> None:
            raise AssertionError("began to work")

        monkeypatch.setattr("eigengrad.lab.style.color.transfer_colors", work)
        monkeypatch.setattr("eigengrad.lab.style.stylize.stylize", work)
        painting = folder / "paintings/c.png"
        before = painting.read_bytes()
        result = run(command, folder / "photos/a.png", painting, "-o", painting)
        assert (result.exit_code, "this is an input" in said(result)) == (1, True), said(result)
        assert painting.read_bytes() == before
        glass = photo(0, (40, 48))
        write_picture(Picture(glass.pixels, torch.full((40, 48), 0.5)), folder / "glass.png")
        result = run(command, folder / "glass.png", painting, "-o", folder / "out.jpg")
        assert (result.exit_code, "has no transparency" in said(result)) == (1, True), said(result)

    def test_weights_that_have_changed_on_the_disk(self, folder: Path) -> None:
        path = next((folder / "weights").glob("*.pth"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x41
        for damaged in (bytes(content), b""):
            path.write_bytes(damaged)
            where = ("--weights", folder / "weights", "--levels", "1,2,3")
            result = run("stylize", folder / "photos/a.png", folder / "paintings/c.png", "-o", folder / "o.png", *where)
            assert result.exit_code == 2, said(result)
            assert "damaged" in said(result)

    def test_a_blend_of_enormous_numbers_is_that_of_their_proportions(self, folder: Path) -> None:
        made = []
        for blend in ("1,1", "1e308,1e308"):
            styles = (folder / "paintings/c.png", folder / "paintings/d.png")
            options = ("--blend", blend, "--fast", "--weights", folder / "weights", "--levels", "1")
            result = run("stylize", folder / "photos/a.png", *styles, "-o", folder / "o.png", *options)
            assert result.exit_code == 0, said(result)
            made.append((folder / "o.png").read_bytes())
        assert made[0] == made[1]


class TestShippedCodec:
    def test_without_weights_on_a_fresh_machine(self, folder: Path) -> None:
        """A process of its own that may not use the network."""
        program = (
            "import socket, sys\n"
            "def refuse(*_): raise SystemExit('network')\n"
            "socket.socket.connect = refuse\n"
            "from eigengrad.lab.commands.stylize import stylize\n"
            "stylize()\n"
        )
        command = [sys.executable, "-c", program, "photos/a.png", "paintings/c.png", "-o", "out.png"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert read_picture(folder / "out.png").size == (40, 56)

    @pytest.mark.slow
    def test_training_makes_a_codec(self, tmp_path: Path) -> None:
        result = run("stylize", "train-codec", "-o", tmp_path / "codec")
        assert result.exit_code == 0, said(result)
        write_picture(photo(0), tmp_path / "a.png")
        write_picture(photo(1), tmp_path / "b.png")
        made = run(
            "stylize", tmp_path / "a.png", tmp_path / "b.png", "-o", tmp_path / "o.png", "--weights", tmp_path / "codec"
        )
        assert made.exit_code == 0, said(made)
