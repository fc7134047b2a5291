"""The studio in a real browser: upload, slide, download, compare with the command line; keyboard, phone, contrast."""

import io
import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from eigengrad import diagnose
from eigengrad.lab.app import app
from eigengrad.lab.studio.server import Studio

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; apt-get install chromium"),
]
SECONDS = 120_000  # milliseconds: a busy machine takes its time


@pytest.fixture(autouse=True)
def threads_restored():
    """The commands set torch's threads for their process, which here is that of all tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def studio(tmp_path):
    made = Studio(results=tmp_path / "results", threads=1)
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield made
    made.shutdown()
    made.close()


@pytest.fixture
def visit(chromium, studio):
    """A function that opens the studio in a new browser window; in the end, no window may have complained."""
    windows, complaints = [], []

    def open_page(width=1280, height=900, scheme="light"):
        size = {"width": width, "height": height}
        window = chromium.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
        windows.append(window)
        page = window.new_page()
        page.set_default_timeout(SECONDS)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None)
        own = (f"http://127.0.0.1:{studio.port}", "blob:", "data:")
        page.on("request", lambda r: None if r.url.startswith(own) else complaints.append(r.url))
        page.goto(studio.address)
        page.get_by_role("tab", name="Colour").wait_for()
        return page

    yield open_page
    for window in windows:
        window.close()
    assert complaints == []


def photo(path: Path, height=120, width=160, seed=0):
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(path)
    return path


def command_line(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments), "--threads", "1"])
    assert done.exit_code == 0, done.output


def choose(panel, number, *paths):
    """Put files into a place, and wait until all are shown."""
    place = panel.locator("section:has(> .drop)").nth(number)
    before = place.locator(".thumb").count()
    place.locator("input[type=file]").set_input_files([str(path) for path in paths])
    multiple = place.locator("input[multiple]").count()
    place.locator(".thumb").nth(before + len(paths) - 1 if multiple else 0).wait_for()


def downloaded(page, panel):
    with page.expect_download() as download:
        panel.get_by_role("link", name="Download full size").click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_colour_upload_slide_download(visit, tmp_path):
    page, content, palette = visit(), photo(tmp_path / "photo.png", seed=1), photo(tmp_path / "palette.jpg", seed=2)
    panel = page.locator("#panel-color")
    button = panel.get_by_role("button", name="Make the picture")
    assert button.is_disabled()
    choose(panel, 0, content)
    choose(panel, 1, palette)
    panel.get_by_label("Strength").fill("0.7")
    panel.get_by_label("Colour space").select_option("lab")
    assert (
        panel.locator(".code code").inner_text()
        == "eigengrad color photo.png palette.jpg -o out.png --strength 0.7 --space lab"
    )
    button.click()
    slider = panel.get_by_label("Before on the left, after on the right")
    slider.wait_for()
    assert "50%" in panel.locator("img.after").evaluate("image => image.style.clipPath")
    slider.focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    assert "40%" in panel.locator("img.after").evaluate("image => image.style.clipPath")
    box = panel.locator(".compare").bounding_box()
    page.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
    assert float(slider.input_value()) == pytest.approx(90, abs=1)
    name, made = downloaded(page, panel)
    assert name == "photo-colour.png"
    command_line("color", content, palette, "-o", tmp_path / "out.png", "--strength", 0.7, "--space", "lab")
    assert made == (tmp_path / "out.png").read_bytes()


def test_a_mask_is_drawn_with_the_brush(visit, studio, tmp_path):
    page, content, palette = visit(), photo(tmp_path / "photo.png", seed=1), photo(tmp_path / "palette.png", seed=2)
    panel = page.locator("#panel-color")
    choose(panel, 0, content)
    choose(panel, 1, palette)
    panel.get_by_role("button", name="Paint a mask").click()
    box = panel.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.5 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.5 * box["height"], steps=10)
    page.mouse.up()
    panel.get_by_role("button", name="Make the picture").click()
    panel.get_by_label("Before on the left, after on the right").wait_for()
    made = downloaded(page, panel)[1]
    stored = [file for session in studio.sessions._sessions.values() for file in session._files.values()]
    (mask,) = [file.path.read_bytes() for file in stored if (file.name, file.path.name) == ("mask.png", "upload")]
    (tmp_path / "mask.png").write_bytes(mask)
    drawn = np.asarray(Image.open(io.BytesIO(mask)).convert("L"))
    assert drawn.shape == (120, 160)
    assert drawn[60, 40:120].min() == 255
    assert drawn[:30].max() == drawn[90:].max() == 0
    command_line("color", content, palette, "-o", tmp_path / "out.png", "--mask", tmp_path / "mask.png")
    assert made == (tmp_path / "out.png").read_bytes()
    before, after = (np.asarray(Image.open(source).convert("RGB")) for source in (content, io.BytesIO(made)))
    assert (before[:30] == after[:30]).all()
    assert (before[60, 50:110] != after[60, 50:110]).any()


def test_style_with_two_styles_shows_progress_and_can_be_cancelled(visit, tmp_path):
    page = visit()
    content, styles = photo(tmp_path / "photo.png", seed=1), [photo(tmp_path / f"s{i}.png", seed=i) for i in (2, 3)]
    large = photo(tmp_path / "large.png", 1600, 1600, seed=1)
    page.get_by_role("tab", name="Style").click()
    panel = page.locator("#panel-stylize")
    choose(panel, 0, large)
    choose(panel, 1, *styles)
    panel.get_by_role("button", name="Make the picture").click()
    panel.get_by_text("painting, ").wait_for()
    panel.get_by_role("button", name="Cancel").click()
    panel.get_by_text("Cancelled.").wait_for()
    choose(panel, 0, content)
    panel.get_by_text("photo.png, 160×120").wait_for()
    panel.get_by_label("Stroke size").fill("0.25")
    panel.get_by_label("Fast").check()
    panel.get_by_role("button", name="Make the picture").click()
    panel.get_by_label("Before on the left, after on the right").wait_for()
    made = downloaded(page, panel)[1]
    command_line("stylize", content, *styles, "-o", tmp_path / "out.png", "--style-size", 0.25, "--fast")
    assert made == (tmp_path / "out.png").read_bytes()


DROP = """([place, bytes]) => {
  const files = new DataTransfer();
  files.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
  place.dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));
}"""


def test_a_picture_can_be_dropped(visit, tmp_path):
    page, content = visit(), photo(tmp_path / "photo.png")
    panel = page.locator("#panel-color")
    page.evaluate(DROP, [panel.locator(".drop").first.element_handle(), list(content.read_bytes())])
    panel.get_by_text("dropped.png, 160×120").wait_for()


def test_a_corrupt_file_is_explained_where_it_was_dropped(visit, tmp_path):
    page = visit()
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    panel = page.locator("#panel-color")
    panel.locator("input[type=file]").first.set_input_files(tmp_path / "broken.jpg")
    alert = panel.get_by_role("alert")
    alert.wait_for()
    assert alert.inner_text().startswith("broken.jpg: this")
    assert panel.locator(".thumb").count() == 0


def test_the_doctor_shows_what_the_terminal_shows(visit, tmp_path):
    page, A = visit(), torch.diag(torch.tensor([1.0, 1.0, 4.0]))
    torch.save(A, tmp_path / "matrix.pt")
    page.get_by_role("tab", name="Doctor").click()
    panel = page.locator("#panel-doctor")
    panel.locator("input[type=file]").set_input_files(tmp_path / "matrix.pt")
    panel.locator("table").wait_for()
    assert panel.locator(".badge").first.inner_text() == "tied"
    panel.get_by_text("As text, as the terminal shows it").click()
    assert panel.locator("pre").inner_text() == str(diagnose(A))
    rows = panel.locator("tbody tr").all_inner_texts()
    terminal = [line.split() for line in str(diagnose(A)).splitlines() if line.startswith("  saturate ")]
    assert rows[0].split()[2:] == terminal[0][2:]  # the same shares, in per cent
    assert panel.locator(".advice code").first.inner_text() == "W = eg.matrix_inv_sqrt(A)"


def test_runs_are_live(visit, studio):
    folder = studio.results / "runs" / "digits-taylor"
    folder.mkdir(parents=True)

    def write(*losses):
        (folder / "curves.json").write_text(
            json.dumps({"epoch": len(losses), "epochs": 9, "curves": {"train_loss": losses}})
        )

    write(2.0, 1.5)
    page = visit()
    page.get_by_role("tab", name="Runs").click()
    line = page.locator("#panel-runs svg path")
    line.wait_for(state="attached")
    assert line.get_attribute("d").count("L") == 1
    write(2.0, 1.5, 1.0, 0.5)
    end = time.monotonic() + 30
    while line.get_attribute("d").count("L") != 3:
        assert time.monotonic() < end
        page.wait_for_timeout(100)
    page.get_by_text("The report: every table").click()
    page.frame_locator("iframe").get_by_text("Nothing has been run yet").wait_for()


def test_two_windows_at_once(visit, tmp_path):
    pages, pictures = [visit(), visit()], [photo(tmp_path / f"{i}.png", seed=i) for i in range(3)]
    for page, content in zip(pages, pictures, strict=False):
        choose(page.locator("#panel-color"), 0, content)
        choose(page.locator("#panel-color"), 1, pictures[2])
    for page in pages:
        page.locator("#panel-color").get_by_role("button", name="Make the picture").click()
    for page, content in zip(pages, pictures, strict=False):
        page.get_by_label("Before on the left, after on the right").wait_for()
        made = downloaded(page, page.locator("#panel-color"))[1]
        command_line("color", content, pictures[2], "-o", tmp_path / "out.png")
        assert made == (tmp_path / "out.png").read_bytes()


def test_the_keyboard_reaches_every_tool(visit):
    page = visit()
    page.get_by_role("tab", name="Colour").focus()
    for name in ("Style", "Doctor", "Runs", "Colour"):
        page.keyboard.press("ArrowRight")
        assert page.locator(":focus").inner_text() == name
        assert page.get_by_role("tabpanel").count() == 1
    page.keyboard.press("End")
    assert page.locator(":focus").inner_text() == "Runs"


#: Texts below 4.5:1 (3:1 if large) against the nearest ground, images without alternative text, fields without label.
SHORTCOMINGS = """() => {
  const channel = (v) => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return {r, g, b, a}; };
  const luminance = ({r, g, b}) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (node) => {
    const colour = node ? parse(getComputedStyle(node).backgroundColor) : {r: 255, g: 255, b: 255, a: 1};
    return colour.a > 0.5 ? colour : ground(node.parentElement);
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    if (!node.offsetParent || node.closest("svg, :disabled")) continue;
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())) continue;
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const [dark, light] = [luminance(parse(style.color)), luminance(ground(node))].sort((x, y) => x - y);
    const ratio = (light + 0.05) / (dark + 0.05), large = size >= 24 || (size >= 18.6 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(`${node.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  for (const image of document.images) if (!image.hasAttribute("alt")) found.push(`no alt: ${image.src}`);
  for (const field of document.querySelectorAll("input, select")) {
    if (field.offsetParent && !field.labels?.length && !field.ariaLabel) found.push(`no label: ${field.outerHTML}`);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_text_can_be_read_and_nothing_is_wider_than_the_window(visit, tmp_path, scheme, width):
    page = visit(width=width, height=844, scheme=scheme)
    panel = page.locator("#panel-color")
    choose(panel, 0, photo(tmp_path / "photo.png"))
    choose(panel, 1, photo(tmp_path / "palette.png", seed=1))
    panel.get_by_role("button", name="Make the picture").click()
    panel.get_by_label("Before on the left, after on the right").wait_for()
    torch.save(torch.diag(torch.tensor([1.0, 1.0, 4.0])), tmp_path / "matrix.pt")
    for name in ("Colour", "Style", "Doctor", "Runs"):
        page.get_by_role("tab", name=name).click()
        if name == "Doctor":
            page.locator("#panel-doctor input[type=file]").set_input_files(tmp_path / "matrix.pt")
            page.locator("#panel-doctor table").wait_for()
        page.wait_for_timeout(300)
        assert page.evaluate(SHORTCOMINGS) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_theme_is_switched_and_kept(visit):
    page = visit()
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "light"
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(theme) == "dark"
    page.reload()
    page.get_by_role("tab", name="Colour").wait_for()
    assert page.evaluate(theme) == "dark"


def test_a_large_picture_is_shown_small_and_downloaded_large(visit, tmp_path):
    page, large = visit(), photo(tmp_path / "large.jpg", 3000, 4000, seed=1)
    panel = page.locator("#panel-color")
    choose(panel, 0, large)
    choose(panel, 1, photo(tmp_path / "palette.png", seed=2))
    panel.get_by_role("button", name="Make the picture").click()
    panel.get_by_label("Before on the left, after on the right").wait_for()
    assert panel.locator("img.after").evaluate("image => image.naturalWidth") == 1400
    assert Image.open(io.BytesIO(downloaded(page, panel)[1])).size == (4000, 3000)
