"""The studio's server without a browser: who may ask, what stays closed, limits, and results as of the command line."""

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from eigengrad import diagnose
from eigengrad.lab.app import app
from eigengrad.lab.report import Finding, Outcome
from eigengrad.lab.studio import server as server_module
from eigengrad.lab.studio import sessions as sessions_module
from eigengrad.lab.studio.server import Studio
from eigengrad.lab.studio.sessions import plain_name
from eigengrad.lab.studio.tools import TOOLS


class Browser:
    """A client that keeps its cookie, as a browser does."""

    def __init__(self, studio: Studio, *, enter: bool = True) -> None:
        self.studio = studio
        self.cookie = None
        if enter:
            answer = self.ask("GET", f"/?token={studio.token}")
            assert answer.status == 303
            self.cookie = answer.headers["Set-Cookie"].split(";")[0]

    def ask(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.studio.port, timeout=60)
        sent = {} if method == "GET" else {"X-Eigengrad-Studio": "1"}
        if self.cookie:
            sent["Cookie"] = self.cookie
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in sent)
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        if body is not None and "Content-Length" not in sent:
            sent["Content-Length"] = str(len(body))
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.content = answer.read()
        connection.close()
        return answer

    def json(self, method, path, body=None, status=200, **headers):
        answer = self.ask(method, path, body, **headers)
        assert answer.status == status, answer.content
        return json.loads(answer.content)

    def upload(self, content, name="picture.png", kind="picture", status=200):
        query = urllib.parse.urlencode({"name": name, "kind": kind})
        return self.json("POST", f"/api/files?{query}", content, status)

    def wait(self, job, seconds=120):
        end = time.monotonic() + seconds
        while job["state"] in ("waiting", "running"):
            assert time.monotonic() < end
            time.sleep(0.05)
            job = self.json("GET", f"/api/jobs/{job['job']}")
        return job

    def picture(self, content, name="picture.png"):
        job = self.wait(self.upload(content, name))
        assert job["state"] == "done", job
        return job["result"]

    def run(self, tool, files, **options):
        return self.wait(self.json("POST", "/api/jobs", {"tool": tool, "files": files, "options": options}))


def png(height=40, width=60, seed=0):
    noise = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


def serve(**options):
    studio = Studio(threads=1, **options)
    threading.Thread(target=studio.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return studio


@pytest.fixture(autouse=True)
def threads_restored():
    """The commands set torch's threads for their process, which here is that of all tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def studio(results):
    made = serve(results=results)
    yield made
    made.shutdown()
    made.close()
    assert not made.folder.exists()


@pytest.fixture(scope="module")
def browser(studio):
    return Browser(studio)


# Who may ask ----------------------------------------------------------------------------------------------------------


def test_it_listens_at_loopback_alone(studio):
    assert studio.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("path", ["/api/studio", "/api/runs", "/report", "/api/jobs/abc", "/api/files/abc"])
def test_nothing_is_told_without_the_token(studio, path):
    stranger = Browser(studio, enter=False)
    assert stranger.ask("GET", path).status == 403
    stranger.cookie = f"{studio.cookie}=made-up"
    assert stranger.ask("GET", path).status == 403
    assert stranger.ask("GET", "/?token=wrong").status == 403
    assert b"terminal" in stranger.ask("GET", "/").content


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST:{port}", 200),
        ("[::1]:{port}", 200),
        ("evil.example:{port}", 421),
        ("127.0.0.1.evil.example:{port}", 421),
        ("localhost.evil.example:{port}", 421),
        ("127.0.0.1", 421),
        ("127.0.0.1:1", 421),
        ("192.168.1.5:{port}", 421),
        ("evil.example@127.0.0.1:{port}", 421),
        ("", 421),
        (None, 421),
    ],
)
def test_the_host_header_must_be_ours(studio, browser, host, status):
    name = None if host is None else host.format(port=studio.port)
    assert browser.ask("GET", "/api/studio", Host=name).status == status


def test_a_studio_for_other_machines_is_reached_by_address_and_not_by_any_name():
    studio = Studio.__new__(Studio)
    studio.host, studio.port = "0.0.0.0", 8137
    assert studio.knows_host("192.168.1.5:8137")
    assert studio.knows_host("[fe80::1]:8137")
    assert not studio.knows_host("evil.example:8137")
    studio.host = "workstation"
    assert studio.knows_host("workstation:8137")
    assert not studio.knows_host("other:8137")


def test_pages_of_other_sites_cannot_change_anything(studio, browser):
    """They can send requests with the cookie, but neither this header nor our origin."""
    assert browser.ask("POST", "/api/jobs", {}, X_Eigengrad_Studio=None).status == 403
    assert browser.ask("POST", "/api/files?name=a", b"a", X_Eigengrad_Studio=None).status == 403
    assert browser.ask("DELETE", "/api/files/a", X_Eigengrad_Studio=None).status == 403
    assert browser.ask("POST", "/api/jobs", {}, Origin="http://evil.example").status == 403
    assert browser.ask("POST", "/api/jobs", {}, Origin="null").status == 403
    assert browser.ask("OPTIONS", "/api/jobs").status == 501
    own = f"http://127.0.0.1:{studio.port}"
    assert browser.ask("POST", "/api/jobs", {}, Origin=own).status == 400


def test_every_answer_says_what_a_browser_must_not_do(browser):
    for path in ("/", "/static/app.js", "/api/studio", "/report", "/nothing"):
        headers = browser.ask("GET", path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


def test_the_page_loads_nothing_from_elsewhere(browser):
    page = browser.ask("GET", "/").content.decode()
    for name in ("app", "api", "controls", "pictures", "doctor", "runs", "chart", "dom"):
        script = browser.ask("GET", f"/static/{name}.js")
        assert script.headers["Content-Type"].startswith("text/javascript")
        page += script.content.decode()
    page += browser.ask("GET", "/static/studio.css").content.decode()
    assert [line for line in page.splitlines() if "://" in line] == ['const SVG = "http://www.w3.org/2000/svg";']
    assert "innerHTML" not in page


# No file outside ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/static//etc/passwd",
        "/static/app.js%00.css",
        "/static/app.js/../../server.py",
        "/../../../../etc/passwd",
        "//etc/passwd",
        "/api/files/../../../../etc/passwd",
        "/api/files/..%2f..%2f..%2fetc%2fpasswd",
        "/api/files/%2fetc%2fpasswd",
        "/api/runs/../../etc/passwd",
        "/report/../../etc/passwd",
        "/api/jobs/../files",
        "/static/",
        "/static/index.html",
        "/favicon.ico",
    ],
)
def test_paths_lead_nowhere(browser, path):
    answer = browser.ask("GET", path)
    assert answer.status == 404
    assert json.loads(answer.content) == {"error": "There is nothing here."}


def test_a_file_name_is_never_a_path(studio, browser):
    sent = browser.picture(png(), "../../../../tmp/evil name.png")
    assert sent["name"] == "evil name.png"
    (place,) = [path for path in studio.folder.rglob("upload") if path.read_bytes() == png()]
    assert studio.folder in place.resolve().parents
    browser.json("DELETE", f"/api/files/{sent['file']}")
    assert not place.exists()


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a/b\\c.png", "c.png"), ("", "file"), ("a\r\nX: y", "aX: y"), ('"; x="', "; x="), ("ü" * 100, "ü" * 80)],
)
def test_plain_name(name, shown):
    assert plain_name(name) == shown


def test_names_cannot_forge_headers(browser):
    sent = browser.picture(png(), 'a"\r\nSet-Cookie: x=y\r\n\r\nö.png')
    answer = browser.ask("GET", f"/api/files/{sent['file']}")
    assert answer.headers["Set-Cookie"] is None
    assert answer.headers["Content-Disposition"].startswith("attachment; filename=")
    assert answer.headers["Content-Type"] == "application/octet-stream"


def test_files_and_jobs_belong_to_their_session(studio, browser):
    """Two users at once: neither sees, uses, cancels or deletes what the other has."""
    other = Browser(studio)
    assert other.cookie != browser.cookie
    sent = browser.upload(png())
    result = browser.wait(sent)["result"]
    assert browser.ask("GET", f"/api/files/{result['preview']}").status == 200
    assert other.ask("GET", f"/api/files/{result['preview']}").status == 404
    assert other.ask("GET", f"/api/files/{result['file']}").status == 404
    assert other.ask("DELETE", f"/api/files/{result['file']}").status == 404
    assert other.ask("GET", f"/api/jobs/{sent['job']}").status == 404
    assert other.ask("DELETE", f"/api/jobs/{sent['job']}").status == 404
    files = {"content": [result["file"]], "palette": [result["file"]]}
    assert other.ask("POST", "/api/jobs", {"tool": "color", "files": files, "options": {}}).status == 404


def test_links_in_the_results_are_not_followed(results, browser, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "result.json").write_text(json.dumps({"curves": {"train_loss": [42.0]}, "failure": None}))
    (results / "runs").mkdir(exist_ok=True)
    (results / "runs" / "link").symlink_to(secret)
    (results / "runs" / "inside").mkdir()
    (results / "runs" / "inside" / "result.json").symlink_to(secret / "result.json")
    assert browser.json("GET", "/api/runs")["runs"] == []


# Too large, corrupt, too much -----------------------------------------------------------------------------------------


def test_uploads_have_a_limit(browser, monkeypatch):
    monkeypatch.setattr(sessions_module, "LARGEST_UPLOAD", 1000)
    refused = browser.upload(b"x" * 1001, status=413)
    assert "the studio takes up to" in refused["error"]
    # What is only announced is refused as well, without waiting for it.
    answer = browser.ask("POST", "/api/files?name=a", b"", Content_Length=str(10**14))
    assert answer.status == 413


def test_sessions_have_a_limit(studio, monkeypatch):
    newcomer = Browser(studio)
    newcomer.upload(b"x" * 600, kind="matrix")
    monkeypatch.setattr(sessions_module, "LARGEST_SESSION", 1000)
    assert "too many files" in newcomer.upload(b"x" * 600, kind="matrix", status=413)["error"]


def test_the_session_that_was_not_used_for_longest_ends(monkeypatch):
    studio = serve()
    try:
        monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 2)
        first, second = Browser(studio), Browser(studio)
        first.upload(b"abc", kind="matrix")
        third = Browser(studio)
        assert [b.ask("GET", "/api/studio").status for b in (first, second, third)] == [200, 403, 200]
    finally:
        studio.shutdown()
        studio.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nothing", "photo.png: this is no image, or a damaged one"),
        (png()[:200], "photo.png: this image is damaged"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 100, "photo.png: this is"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "photo.png: this is no image"),
    ],
)
def test_corrupt_pictures_are_named_and_explained(studio, browser, content, message):
    job = browser.wait(browser.upload(content, "photo.png"))
    assert job["state"] == "failed"
    assert job["text"].startswith(message)
    assert str(studio.folder) not in job["text"]


def test_pictures_of_too_many_pixels_are_refused_by_their_header(browser):
    wide = b"P6 9000 9000 255\n" + b"\0" * 100
    job = browser.wait(browser.upload(wide, "wide.ppm"))
    assert (job["state"], "9000×9000 pixels; the studio takes up to 64 million" in job["text"]) == ("failed", True)


def test_an_empty_file_is_refused(browser):
    assert "empty" in browser.upload(b"", status=400)["error"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "no JSON"),
        (b"[" * 5000, "no JSON"),
        (b"[]", "must be an object"),
        ({"tool": "rm"}, "expected one of color, stylize, doctor"),
        ({"tool": ["color"]}, "expected one of color"),
        ({"tool": "color", "files": [], "options": {}}, "expected objects"),
        ({"tool": "color", "files": {"content": "abc"}, "options": {}}, "expected a list of keys"),
        ({"tool": "color", "files": {}, "options": {}}, "Photograph: got 0 files; expected 1"),
        ({"tool": "color", "files": {"output": []}, "options": {}}, "has no output"),
        ({"tool": "doctor", "files": {"matrix": []}, "options": {"eval": "1"}}, "has no eval"),
    ],
)
def test_requests_that_make_no_sense_are_explained(browser, body, message):
    assert message in browser.json("POST", "/api/jobs", body, status=400)["error"]


def test_large_requests_are_refused(browser):
    assert browser.ask("POST", "/api/jobs", b" " * 100_000).status == 413


def test_chunked_requests_are_refused(browser):
    answer = browser.ask("POST", "/api/files?name=a", b"", Transfer_Encoding="chunked", Content_Length=None)
    assert answer.status == 411


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("strength", 2.0, "Strength: got 2.0; expected a number from 0 to 1.5"),
        ("strength", "1", "Strength: got '1'"),
        ("strength", True, "Strength: got True"),
        ("space", "xyz", "Colour space: got 'xyz'; expected rgb or lab"),
    ],
)
def test_options_are_checked(browser, option, value, message):
    sent = browser.picture(png())
    body = {
        "tool": "color",
        "files": {"content": [sent["file"]], "palette": [sent["file"]]},
        "options": {option: value},
    }
    assert message in browser.json("POST", "/api/jobs", body, status=400)["error"]


def test_many_connections_do_not_end_the_server(studio, browser, monkeypatch):
    held = [socket.create_connection(("127.0.0.1", studio.port)) for _ in range(server_module.MOST_CONNECTIONS + 10)]
    for connection in held:
        connection.close()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            assert browser.ask("GET", "/api/studio").status == 200
            return
        except (ConnectionError, http.client.HTTPException):
            time.sleep(0.1)
    pytest.fail("the server does not answer any more")


# The tools ------------------------------------------------------------------------------------------------------------


def command_line(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output


def test_color_makes_the_picture_of_the_command_line_byte_for_byte(browser, tmp_path):
    for name, seed in (("photo", 1), ("palette", 2), ("mask", 3)):
        (tmp_path / f"{name}.png").write_bytes(png(48, 64, seed))
    keys = {
        name: browser.picture(path.read_bytes(), path.name)["file"]
        for name in ("photo", "palette", "mask")
        for path in [tmp_path / f"{name}.png"]
    }
    files = {"content": [keys["photo"]], "palette": [keys["palette"]], "mask": [keys["mask"]]}
    job = browser.run("color", files, strength=0.7, space="lab")
    assert job["state"] == "done", job
    made = browser.ask("GET", f"/api/files/{job['result']['file']}?download=1")
    assert 'filename="photo-colour.png"' in made.headers["Content-Disposition"]
    out = tmp_path / "out.png"
    options = ("--strength", 0.7, "--space", "lab", "--mask", tmp_path / "mask.png", "--threads", 1)
    command_line("color", tmp_path / "photo.png", tmp_path / "palette.png", "-o", out, *options)
    assert made.content == out.read_bytes()
    preview = browser.ask("GET", f"/api/files/{job['result']['preview']}")
    assert preview.headers["Content-Type"] == "image/jpeg"
    assert Image.open(io.BytesIO(preview.content)).size == (64, 48)


def test_stylize_makes_the_picture_of_the_command_line_byte_for_byte(browser, tmp_path):
    for name, seed in (("photo", 1), ("one", 2), ("two", 3)):
        (tmp_path / f"{name}.png").write_bytes(png(64, 80, seed))
    keys = [browser.picture((tmp_path / f"{name}.png").read_bytes())["file"] for name in ("photo", "one", "two")]
    job = browser.run("stylize", {"content": keys[:1], "styles": keys[1:]}, strength=0.5, style_size=0.25, fast=True)
    assert job["state"] == "done", job
    made = browser.ask("GET", f"/api/files/{job['result']['file']}").content
    out = tmp_path / "out.png"
    inputs = [tmp_path / f"{name}.png" for name in ("photo", "one", "two")]
    command_line("stylize", *inputs, "-o", out, "--strength", 0.5, "--style-size", 0.25, "--fast", "--threads", 1)
    assert made == out.read_bytes()


def test_the_doctor_says_what_the_terminal_says(browser):
    A = torch.diag(torch.tensor([1.0, 1.0, 4.0]))
    buffer = io.BytesIO()
    torch.save(A, buffer)
    sent = browser.upload(buffer.getvalue(), "matrix.pt", "matrix")
    job = browser.run("doctor", {"matrix": [sent["file"]]})
    assert job["state"] == "done", job
    assert job["result"]["text"] == str(diagnose(A))
    assert job["result"]["diagnosis"] == json.loads(json.dumps(diagnose(A).to_dict()))
    job = browser.run("doctor", {"matrix": [sent["file"]]}, key="weight")
    assert (job["state"], job["text"]) == (
        "failed",
        "matrix.pt: no matrix is called 'weight'; there are: (the whole) (3, 3)",
    )


def stylise(browser, side):
    """Start a task on a picture of so many pixels a side, and wait until it is at work."""
    photo, style = (browser.picture(png(height, height, 1))["file"] for height in (side, 64))
    body = {"tool": "stylize", "files": {"content": [photo], "styles": [style]}, "options": {}}
    job, end = browser.json("POST", "/api/jobs", body), time.monotonic() + 60
    while job["share"] == 0:
        assert job["state"] in ("waiting", "running")
        assert time.monotonic() < end
        time.sleep(0.02)
        job = browser.json("GET", f"/api/jobs/{job['job']}")
    return job


def test_a_task_can_be_cancelled_and_the_next_one_runs(browser):
    running, small = stylise(browser, 1200), browser.picture(png())["file"]
    body = {"tool": "color", "files": {"content": [small], "palette": [small]}, "options": {}}
    waiting = browser.json("POST", "/api/jobs", body)
    assert (waiting["state"], waiting["ahead"]) == ("waiting", 1)
    assert browser.json("DELETE", f"/api/jobs/{running['job']}")["state"] == "cancelled"
    assert browser.wait(waiting)["state"] == "done"
    assert browser.json("GET", f"/api/jobs/{running['job']}")["state"] == "cancelled"


def test_a_worker_that_dies_is_a_failed_task_and_not_the_end(studio, browser):
    job = stylise(browser, 1200)
    studio.lanes["work"]._worker._process.kill()
    job = browser.wait(job)
    assert job["state"] == "failed"
    assert "not enough memory" in job["text"]
    small = browser.picture(png())["file"]
    assert browser.run("color", {"content": [small], "palette": [small]})["state"] == "done"


def test_two_users_at_once_get_their_own_pictures(studio):
    made = {}

    def use(seed):
        user = Browser(studio)
        photo, palette = (user.picture(png(48, 64, s))["file"] for s in (seed, 99))
        job = user.run("color", {"content": [photo], "palette": [palette]})
        made[seed] = user.ask("GET", f"/api/files/{job['result']['file']}").content

    users = [threading.Thread(target=use, args=(seed,)) for seed in (1, 2, 3)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert len(set(made.values())) == 3
    together = made[1]
    use(1)
    assert made[1] == together


def test_a_session_can_only_have_so_many_tasks(studio, monkeypatch):
    monkeypatch.setattr("eigengrad.lab.studio.jobs.MOST_WAITING", 1)
    user = Browser(studio)
    sent = user.picture(png(900, 900, 1))["file"]
    body = {"tool": "stylize", "files": {"content": [sent], "styles": [sent]}, "options": {}}
    first = user.json("POST", "/api/jobs", body)
    assert "waiting already" in user.json("POST", "/api/jobs", body, status=413)["error"]
    user.json("DELETE", f"/api/jobs/{first['job']}")


def test_every_tool_has_the_flags_of_its_command():
    for tool in TOOLS.values():
        shown = CliRunner().invoke(app, [tool.name, "--help"], env={"COLUMNS": "200"}).output
        for option in tool.options:
            assert option.flag in shown


# Runs -----------------------------------------------------------------------------------------------------------------


def test_runs_and_report_of_the_results_folder(tmp_path):
    studio = serve(results=tmp_path)
    try:
        user = Browser(studio)
        assert user.json("GET", "/api/runs") == {"runs": []}
        assert b"Nothing has been run yet" in user.ask("GET", "/report").content
        for name, file, content in (
            (
                "done",
                "result.json",
                {"failure": None, "curves": {"test_error": [0.5, 0.25], "train_loss": [1.0, None]}},
            ),
            ("failed", "result.json", {"failure": {"message": "NaN at step 3"}, "curves": {}}),
            ("going", "curves.json", {"epoch": 2, "epochs": 9, "curves": {"train_loss": [2.0, 1.0]}}),
            ("damaged", "result.json", [1, 2]),
            ("odd", "result.json", {"curves": {"a": "b", "c": [{}, "x", True, 1e400]}, "failure": 3}),
        ):
            (tmp_path / "runs" / name).mkdir(parents=True)
            (tmp_path / "runs" / name / file).write_text(json.dumps(content))
        runs = {run["name"]: run for run in user.json("GET", "/api/runs")["runs"]}
        assert runs["done"]["curves"] == {"test_error": [50.0, 25.0], "train_loss": [1.0, None]}
        assert runs["done"]["state"] == "done"
        assert (runs["failed"]["state"], runs["failed"]["text"]) == ("failed", "NaN at step 3")
        assert (runs["going"]["state"], runs["going"]["epoch"], runs["going"]["epochs"]) == ("interrupted", 2, 9)
        assert runs["odd"]["curves"] == {"c": [None] * 4}
        assert "damaged" not in runs
        finding = Finding("<script>alert(1)</script>", "confirmed", "5 %")
        Outcome("table4", "Table 4", "smoke", {}, "", findings=(finding,)).write(tmp_path / "table4" / "smoke")
        report = user.ask("GET", "/report")
        assert b"&lt;script&gt;alert" in report.content
        assert b"<script" not in report.content
        assert "script-src" not in report.headers["Content-Security-Policy"]
    finally:
        studio.shutdown()
        studio.close()


def test_a_run_at_work_has_its_curves_so_far(tmp_path):
    from eigengrad.lab.studio.runs import list_runs
    from eigengrad.lab.training import Config, train

    seen = []

    class Watch:
        def step(self, snapshot): ...
        def message(self, text): ...
        def close(self): ...

        def epoch(self, epoch, epochs, values):
            seen.extend(list_runs(tmp_path))

    train(Config(epochs=3, subset=100), tmp_path / "runs" / "one", progress=Watch())
    assert [(run["state"], run["epoch"], len(run["curves"].get("train_loss", []))) for run in seen] == [
        ("running", 0, 0),
        ("running", 1, 1),
        ("running", 2, 2),
    ]
    (run,) = list_runs(tmp_path)
    assert (run["state"], len(run["curves"]["test_error"])) == ("done", 3)
    assert not (tmp_path / "runs" / "one" / "curves.json").exists()


# The command ----------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_explained(studio):
    done = CliRunner().invoke(app, ["studio", "--port", str(studio.port), "--no-browser"])
    assert done.exit_code == 1
    assert f"--port: {studio.port} is in use" in done.output


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    command = [sys.executable, "-m", "eigengrad.lab.cli", "studio", "--port", "0", "--no-browser", "--threads", "1"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        address = running.stdout.readline().removeprefix("The studio: ").strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address.partition("?")[0] + "static/app.js", timeout=30) as answer:
            assert answer.status == 200
        assert len(list(tmp_path.iterdir())) == 1
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=60) == 0
        assert not list(tmp_path.iterdir())  # what was uploaded is gone
    finally:
        running.kill()
        running.wait()
