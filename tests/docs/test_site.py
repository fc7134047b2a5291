"""The documentation in a real browser: it loads, renders, finds, leads somewhere, and can be read.

Slow. The site is built once, and served on the loopback interface. Without Chromium or playwright all but the checks of
the files are skipped.
"""

import functools
import html.parser
import http.server
import itertools
import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest
import torch

import eigengrad as eg
import public_names

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WIDTHS = {"desktop": 1280, "phone": 390}
LOOKED_AT = [
    "index.html",
    "get_started.html",
    "nan.html",
    "migration.html",
    "recipes.html",
    "faq.html",
    "close_eigenvalues.html",
    "gradients.html",
    "speed.html",
    "experiments.html",
    "command_line.html",
    "tutorials/pose.html",
    "tutorials/style_transfer.html",
    "reference/index.html",
    "reference/eigh.html",
    "reference/nn.DecorrelatedBatchNorm2d.html",
]
SEARCHES = {
    "NaN": "nan.html",
    "nan": "nan.html",
    "pinv": "reference/pinv.html",
    "Kabsch": "reference/kabsch.html",
    "nuclear norm": "reference/nuclear_norm.html",
    "CUDA": "gpu.html",
    "eigvalsh": "reference/eigvalsh.html",
    "failed to converge": "nan.html",
    "matrix_sqrt": "reference/matrix_sqrt.html",
    "lightning": "recipes.html",
    "whitening": "whitening",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class _Page(html.parser.HTMLParser):
    """The links, the anchors and the images of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.images = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id"))
        if tag in ("a", "link") and found.get("href"):
            self.links.append(found["href"])
        if tag in ("img", "script", "source") and found.get("src"):
            self.links.append(found["src"])
        if tag == "img":
            self.images.append(found)


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): _Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_public_name_has_a_page_in_the_site(pages):
    for name in public_names.public_names():
        assert f"reference/{name}.html" in pages


def test_links_hold(pages, site):
    for name, page in pages.items():
        if name == "404.html":  # its links are absolute, from wherever it is shown
            continue
        for link in page.links:
            target, anchor = urldefrag(urljoin(f"/{name}", link))
            if urlparse(link).scheme:
                assert link.startswith("https://"), link
                continue
            path = unquote(target).lstrip("/") or "index.html"
            assert (site / path).is_file(), f"{name}: {link}"
            if anchor and path in pages:
                assert unquote(anchor) in pages[path].anchors, f"{name}: {link}"


def test_every_image_has_an_alternative_text(pages):
    images = [(name, image) for name, page in pages.items() for image in page.images]
    assert len(images) > 30
    for name, image in images:
        assert len(image.get("alt", "").split()) >= 2, f"{name}: {image.get('src')}"


def test_no_markup_is_left_over(site):
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert 'class="arithmatex"' not in text, path
        assert ":func:" not in text, path
        assert ":class:" not in text, path
        assert "cdn." not in text, path
        assert "unpkg.com" not in text, path
        assert "fonts.googleapis" not in text, path


@pytest.fixture(scope="module")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class _Visitor:
    """A tab that notes what goes wrong, and what was loaded."""

    def __init__(self, context):
        self.tab, self.errors, self.bytes, self.elsewhere = context.new_page(), [], 0, []
        self.tab.on(
            "console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text)
        )
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("response", self._note)

    def _note(self, response):
        if not response.url.startswith(("http://127.0.0.1", "data:", "blob:", "file:")):
            self.elsewhere.append(response.url)
        elif response.url.startswith("http"):
            if response.status >= 400:
                self.errors.append(f"{response.status} {response.url}")
            self.bytes += int(response.headers.get("content-length", 0))


@pytest.fixture
def visit(browser, address):
    contexts = []

    def open_page(name, width="desktop", scheme="light", **options):
        size = {"width": WIDTHS[width], "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, has_touch=width == "phone", **options))
        visitor = _Visitor(contexts[-1])
        visitor.tab.goto(name if name.startswith("file:") else address + name, wait_until="networkidle")
        return visitor

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_pages_load_without_an_error_and_fit_their_width(pages, browser, address, width):
    context = browser.new_context(viewport={"width": WIDTHS[width], "height": 900})
    visitor = _Visitor(context)
    for name in sorted(pages):
        visitor.tab.goto(address + name, wait_until="load")
        wide = visitor.tab.evaluate("document.documentElement.scrollWidth")
        assert wide <= WIDTHS[width] + 1, f"{name} is {wide} wide"
        assert not visitor.errors, f"{name}: {visitor.errors}"
        assert not visitor.elsewhere, f"{name}: {visitor.elsewhere}"
    context.close()


def test_code_fits_beside_the_navigation(visit, pages):
    code = "[...document.querySelectorAll('pre > code')].filter(e => e.scrollWidth > e.clientWidth + 1)"
    first = ["index.html", "get_started.html", "nan.html", "migration.html", "recipes.html", "gradients.html"]
    for name in [*first, *(name for name in sorted(pages) if name.startswith("tutorials/"))]:
        assert visit(name).tab.evaluate(f"{code}.map(e => e.innerText)") == [], name


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name", ["gradients.html", "matrix_functions.html", "reference/eigh.html", "tutorials/pose.html"]
)
def test_mathematics_renders_in_its_font(visit, name, width):
    tab = visit(name, width).tab
    boxes = tab.evaluate(
        "[...document.querySelectorAll('math')].map(m => m.getBoundingClientRect()).map(b => [b.width, b.height])"
    )
    assert len(boxes) >= 2
    assert all(w > 4 and h > 6 for w, h in boxes)
    assert tab.evaluate("[...document.fonts].some(f => f.family.includes('Latin Modern') && f.status === 'loaded')")
    fractions = tab.evaluate(
        "[...document.querySelectorAll('mfrac')].map(f => [f.firstElementChild, f.lastElementChild]"
        ".map(e => e.getBoundingClientRect().top))"
    )
    assert all(above < below for above, below in fractions)
    assert "\\frac" not in tab.inner_text("article")


@pytest.mark.parametrize("words", SEARCHES)
def test_search_finds_the_words_people_type(visit, words):
    visitor = visit("index.html")
    visitor.tab.click("[data-md-component=search-query]")
    visitor.tab.type("[data-md-component=search-query]", words)
    visitor.tab.wait_for_selector(".md-search-result__link")
    visitor.tab.wait_for_timeout(500)
    links = visitor.tab.eval_on_selector_all(
        "article .md-search-result__link, .md-search-result__link", "links => links.map(link => link.href)"
    )
    assert any(SEARCHES[words] in link for link in links[:6]), links[:6]
    assert not visitor.errors


def test_search_works_in_pages_opened_as_files(site, visit):
    visitor = visit((site / "index.html").as_uri())
    visitor.tab.click("[data-md-component=search-query]")
    visitor.tab.type("[data-md-component=search-query]", "kabsch")
    visitor.tab.wait_for_selector(".md-search-result__link")
    visitor.tab.click(".md-search-result__link")
    visitor.tab.wait_for_load_state()
    assert visitor.tab.url.startswith("file:")
    assert "kabsch" in visitor.tab.inner_text("article").lower()
    assert not visitor.elsewhere


def test_home_is_light(visit):
    visitor = visit("index.html")
    visitor.tab.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    visitor.tab.wait_for_load_state("networkidle")
    assert visitor.tab.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert 100_000 < visitor.bytes < 1_000_000


# Colours of text against what is painted behind it, by the formula of WCAG 2. Text over pictures is left out.
CONTRAST = """
() => {
  const parse = (text) => {
    const c = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    c.fillStyle = text; c.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = c.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = (c) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const cache = new Map();
  const color = (text) => { if (!cache.has(text)) cache.set(text, parse(text)); return cache.get(text); };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.textContent.trim() || element.closest("script, style, noscript, template, svg, [hidden]")) continue;
    if (!element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    const layers = [];
    let opacity = 1;
    for (let e = element; e; e = e.parentElement) {
      const style = getComputedStyle(e);
      opacity *= Number(style.opacity);
      layers.push(color(style.backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    let ground = [255, 255, 255, 1];
    for (const layer of layers.reverse()) ground = over(layer, ground);
    const text = color(getComputedStyle(element).color).slice();
    text[3] *= opacity;
    const [a, b] = [luminance(over(text, ground)), luminance(ground)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const words = node.textContent.trim().slice(0, 40);
    if (ratio < 4.5) bad.push([ratio.toFixed(2), element.tagName, element.className, words]);
  }
  return bad;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_text_has_contrast(visit, width, scheme):
    for name in LOOKED_AT:
        tab = visit(name, width, scheme).tab
        assert tab.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
        assert tab.evaluate(CONTRAST) == [], name


def test_the_measure_of_contrast_sees_pale_text(visit):
    tab = visit("index.html").tab
    tab.evaluate("document.querySelector('h1').style.color = '#999'")
    assert [found[1] for found in tab.evaluate(CONTRAST)] == ["H1"]


SPECTRA = [
    [1, 1.4, 3],
    [1, 1, 3],
    [1, 1 + 1e-6, 3],
    [2, 2, 2],
    [0, 0, 0],
    [-1, 0.5, 2],
    [1e-20, 1e-20, 1],
    [0, 1e-9, 5, 5],
]
RULES = {
    "exact": (eg.Exact(), {}),
    "saturate": (eg.Saturate(), {}),
    "saturate wide": (eg.Saturate(rtol=1e-2), {"rtol": 1e-2}),
    "mask": (eg.Mask(), {}),
    "mask wide": (eg.Mask(rtol=1e-3), {"rtol": 1e-3}),
    "lorentzian": (eg.Lorentzian(), {}),
    "truncate": (eg.Truncate(), {}),
    "taylor": (eg.Taylor(), {}),
    "taylor absolute": (eg.Taylor(degree=3, eps=0.01), {"degree": 3, "eps": 0.01}),
    "clip": (eg.Clip(), {}),
}


def test_the_figure_computes_what_the_library_computes(visit):
    tab = visit("close_eigenvalues.html").tab
    call = "([n, L, i, j, options]) => String(eigengradRules[n](L, i, j, options))"
    for name, (rule, options) in RULES.items():
        for spectrum in SPECTRA:
            expected = rule.reciprocal(torch.tensor(spectrum, dtype=torch.float64))
            for i, j in itertools.combinations(range(len(spectrum)), 2):
                found = tab.evaluate(call, [name.split()[0], spectrum, i, j, options])
                number = float(found.replace("Infinity", "inf"))
                assert math.isclose(number, expected[i, j].item(), rel_tol=1e-12), (name, spectrum, i, j)


def _shown(tab):
    rows = tab.eval_on_selector_all(
        "#close-eigenvalues tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {title.split(":")[0]: value for title, value, _ in rows}


@pytest.mark.parametrize("width", WIDTHS)
def test_eigenvalues_are_dragged_together(visit, width):
    visitor = visit("close_eigenvalues.html", width)
    tab = visitor.tab
    assert _shown(tab)["Exact"] == "2.5"
    tab.locator(".handle.high").scroll_into_view_if_needed()
    low, high = (tab.locator(f".handle.{name} circle:not(.touch)").bounding_box() for name in ("low", "high"))
    tab.mouse.move(high["x"] + high["width"] / 2, high["y"] + high["height"] / 2)
    tab.mouse.down()
    tab.mouse.move(low["x"] - 30, low["y"] + 5, steps=5)
    tab.mouse.up()
    shown = _shown(tab)
    assert (shown["Exact"], shown["Saturate"], shown["Clip"], shown["Mask"]) == ("∞", "5e4", "100", "0")
    tab.focus(".handle.high")
    tab.keyboard.press("ArrowRight")
    assert _shown(tab)["Exact"] == "20"
    assert tab.get_attribute(".handle.high", "aria-valuenow") == "1.05000"
    tab.click("button[name=tie]")
    assert _shown(tab)["Taylor"] == "10"
    tab.click("button[name=reset]")
    assert _shown(tab)["Exact"] == "2.5"
    assert not visitor.errors


def test_pages_have_what_a_reader_expects(visit):
    tab = visit("gradients.html").tab
    assert eg.__version__ in tab.inner_text(".md-header")
    assert tab.locator(".md-footer__link--prev").count() == 1
    assert tab.locator(".md-footer__link--next").count() == 1
    card = tab.get_attribute("meta[property='og:image']", "content")
    assert card.endswith("images/social_card.png")
    tab.click("label[title='Dark mode']")
    assert tab.evaluate("document.body.dataset.mdColorScheme") == "slate"


def test_the_menu_of_a_phone_opens(visit):
    tab = visit("index.html", "phone").tab
    tab.click("label[for=__drawer].md-header__button")
    tab.wait_for_selector(".md-nav--primary >> text=Tutorials", state="visible")
