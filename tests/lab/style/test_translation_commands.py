"""``eigengrad translate``, on real files."""

import re
import shutil

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from eigengrad.lab.app import app
from eigengrad.lab.style.images import read_picture
from eigengrad.lab.style.translation.apply import load_painter
from eigengrad.lab.style.translation.domains import DRAWN
from eigengrad.lab.tensors import save_tensors
from eigengrad.lab.training import Config, Result

RUNNER = CliRunner()
TINY = (
    *("--image-size", "64", "--width", "4", "--group-size", "8", "--critic-width", "4", "--blocks", "1"),
    *("--style-reductions", "1", "--iterations", "2", "--evaluate-every", "2", "--decay-from", "0"),
    *("--decay-every", "2", "--batch-size", "1", "--threads", "1"),
)


def call(*arguments):
    outcome = RUNNER.invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit), outcome.exception
    return outcome.exit_code, outcome.output


def draw(folder, kind, count, size=(72, 64)):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = DRAWN[kind](72, torch.rand(8, generator=torch.Generator().manual_seed(number)))
        image = Image.fromarray(pixels.mul(255).byte().permute(1, 2, 0).numpy()).resize(size)
        image.save(folder / f"{kind}{number}.png")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two folders of pictures, and a run that was trained on them."""
    root = tmp_path_factory.mktemp("files")
    photos, paintings = draw(root / "photos", "hills", 4), draw(root / "paintings", "strokes", 4, (64, 90))
    folders = ("--domain-a", photos, "--domain-b", paintings, "--out", root / "run")
    code, text = call("translate", "train", *folders, "--wct", "exact", *TINY)
    assert code == 0, text
    assert "2 steps in" in text
    return root


def test_help_teaches(files):
    for command in ("train", "apply"):
        code, text = call("translate", command, "--help")
        assert code == 0
        assert text.count(f"eigengrad translate {command}") >= 2


def test_training_writes_a_result_and_is_not_repeated(files):
    path = files / "run" / "result.json"
    config = load_painter(files / "run").config
    assert Result.load(path, type(config)).steps == 2
    assert (config.wct, config.domain_a, config.domain_b) == ("exact", "photos", "paintings")
    before = path.stat().st_mtime_ns
    same = ("--domain-a", files / "photos", "--domain-b", files / "paintings", "--out", files / "run", *TINY)
    code, text = call("translate", "train", *same, "--wct", "exact")
    assert (code, path.stat().st_mtime_ns) == (0, before), text
    code, text = call("translate", "train", *same, "--wct", "svd")
    assert code == 2
    assert "wct is 'exact' there and 'svd' here" in text


def test_folders_of_the_same_names_with_other_pictures_are_another_run(files, tmp_path):
    draw(tmp_path / "photos", "hills", 3)
    draw(tmp_path / "paintings", "strokes", 4, (64, 90))
    other = ("--domain-a", tmp_path / "photos", "--domain-b", tmp_path / "paintings", "--out", files / "run", *TINY)
    code, text = call("translate", "train", *other, "--wct", "exact")
    assert code == 2
    assert "data_digest is" in text


def test_a_dry_run_writes_nothing(files, tmp_path):
    code, text = call(
        *("translate", "train", "--domain-a", files / "photos", "--domain-b", files / "paintings"),
        *("--out", tmp_path / "run", "--dry-run", *TINY),
    )
    assert code == 0
    assert "estimated time" in text
    assert not (tmp_path / "run").exists()


def test_training_names_what_is_wrong(files, tmp_path):
    code, text = call("translate", "train", "--domain-a", tmp_path / "none", "--domain-b", files / "paintings")
    assert code == 2
    assert "--domain-a" in text
    assert "is not a folder" in text
    given = ("translate", "train", "--domain-a", files / "photos", "--domain-b", files / "paintings")
    code, text = call(*given, "--wct", "zca")
    assert code == 2
    assert "'zca'; expected one of" in text
    code, text = call(*given, "--image-size", "50")
    assert code == 2
    assert "multiple of 4" in text


def test_training_names_a_broken_picture_and_goes_on(files, tmp_path):
    photos = draw(tmp_path / "photos", "hills", 3)
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    code, text = call(
        *("translate", "train", "--domain-a", photos, "--domain-b", files / "paintings"),
        *("--out", tmp_path / "run", "--wct", "gd", *TINY),
    )
    assert code == 0, text
    assert "broken.jpg" in text
    assert (tmp_path / "run" / "last.pt").exists()


def test_apply_paints_a_folder_and_names_what_it_cannot_read(files, tmp_path):
    photos = draw(tmp_path / "photos", "hills", 2, (100, 75))
    (photos / "broken.png").write_bytes(b"no picture")
    style = files / "paintings" / "strokes0.png"
    code, text = call(
        "translate", "apply", photos, "--checkpoint", files / "run", "--style", style, "-o", tmp_path / "out"
    )
    assert code == 1
    assert "broken.png" in text
    assert "1 of 3 pictures" in text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["hills0.png", "hills1.png"]
    assert read_picture(tmp_path / "out" / "hills0.png").size == (64, 85)


def test_styles_are_taken_in_turn_and_a_broken_one_is_left_out(files, tmp_path):
    styles = draw(tmp_path / "styles", "strokes", 2)
    (styles / "broken.jpg").write_bytes(b"")
    out = tmp_path / "out"
    code, text = call(
        "translate", "apply", files / "photos", "--checkpoint", files / "run", "--style", styles, "-o", out
    )
    assert code == 1
    assert "left out" in text
    assert "broken.jpg" in text
    assert len(list(out.iterdir())) == 4
    assert "hills0.png as strokes0.png" in text
    assert "hills1.png as strokes1.png" in text
    assert "hills2.png as strokes0.png" in text


@pytest.mark.parametrize("size", [(65, 91), (200, 64), (64, 64), (33, 47)])
def test_pictures_of_any_size_keep_their_proportions(files, tmp_path, size):
    Image.new("RGB", size, (90, 140, 60)).save(tmp_path / "photo.jpg")
    code, text = call(
        *("translate", "apply", tmp_path / "photo.jpg", "--checkpoint", files / "run"),
        *("--style", files / "paintings" / "strokes0.png", "-o", tmp_path / "out.png", "--size", "50"),
    )
    assert code == 0, text
    height, width = read_picture(tmp_path / "out.png").size
    assert min(height, width) == 50
    assert max(height, width) == pytest.approx(50 * max(size) / min(size), abs=1)


def test_the_way_back_and_another_style_are_other_pictures(files, tmp_path):
    photo, out = files / "photos" / "hills0.png", tmp_path / "out"
    made = {}
    for name, more in {
        "forth": ("--style", files / "paintings" / "strokes0.png"),
        "other": ("--style", files / "paintings" / "strokes1.png"),
        "back": ("--style", files / "photos" / "hills1.png", "--to", "a"),
    }.items():
        code, text = call("translate", "apply", photo, "--checkpoint", files / "run", "-o", out / f"{name}.png", *more)
        assert code == 0, text
        made[name] = read_picture(out / f"{name}.png").pixels
    assert (made["forth"] - made["other"]).abs().max() > 0
    assert (made["forth"] - made["back"]).abs().max() > 0.01


def test_apply_names_what_is_wrong(files, tmp_path):
    photo, style = files / "photos" / "hills0.png", files / "paintings" / "strokes0.png"
    given = ("translate", "apply", photo, "--style", style, "-o", tmp_path / "out.png", "--checkpoint")
    (tmp_path / "empty").mkdir()
    code, text = call(*given, tmp_path / "empty")
    assert (code, "has no last.pt or best.pt" in text) == (2, True), text
    code, text = call(*given, tmp_path / "nowhere")
    assert (code, "does not exist" in text) == (2, True), text
    (tmp_path / "damaged.pt").write_bytes(b"PK damaged")
    code, text = call(*given, tmp_path / "damaged.pt")
    assert (code, "damaged or of another kind of run" in text) == (2, True), text
    save_tensors(tmp_path / "other.pt", {"settings": Config().to_dict(), "modules": {"model": {}}})
    code, text = call(*given, tmp_path / "other.pt")
    assert (code, "damaged or of another kind of run" in text) == (2, True), text
    code, text = call(*given, files / "run", "--size", "8")
    assert (code, "at least 16 pixels; got 8" in text) == (2, True), text
    code, text = call(*given, files / "run", "--to", "c")
    assert (code, "'c'; expected one of 'a', 'b'" in text) == (2, True), text
    code, text = call(*given[:-3], "-o", photo, "--checkpoint", files / "run")
    assert code != 0
    assert "overwritten" in text
    assert not (tmp_path / "out.png").exists()


def test_apply_overwrites_no_picture_of_the_style(files, tmp_path):
    """Not one whose turn it is not, either."""
    photos, styles = draw(tmp_path / "photos", "hills", 2), tmp_path / "styles"
    draw(styles, "strokes", 1)
    for path in photos.iterdir():
        shutil.copy(path, styles)
    before = {path: path.read_bytes() for path in styles.iterdir()}
    code, text = call("translate", "apply", photos, "--checkpoint", files / "run", "--style", styles, "-o", styles)
    assert (code, "this is an input" in text) == (1, True), text
    assert {path: path.read_bytes() for path in styles.iterdir()} == before


def test_other_pictures_to_test_with_are_another_run(tmp_path):
    folders = []
    for which, kind in (("a", "hills"), ("b", "strokes")):
        folders += [f"--domain-{which}", draw(tmp_path / "train" / kind, kind, 3)]
        draw(tmp_path / "test" / kind, kind, 2)
    plan = ("translate", "train", *folders, *TINY, "--dry-run")
    first, again = call(*plan), call(*plan)
    assert runs(first[1]) == runs(again[1])
    draw(tmp_path / "test" / "hills", "hills", 3)
    assert runs(call(*plan)[1]) != runs(first[1])


def runs(text):
    return re.findall(r"results/runs/\S+", text)
