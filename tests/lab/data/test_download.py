"""Downloads from a real server on this machine, which breaks off, refuses, lies and changes its mind."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from eigengrad.lab.data import ARCHIVES, DownloadError, download, fetch
from eigengrad.lab.data import archives as archives_module

CONTENT = random.Random(0).randbytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content``; the attributes say how it misbehaves."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges = True  # knows them
        self.shift = 0  # sends a range that begins this much later than asked for
        self.length = True  # says how much comes
        self.stop_after: list[int] = []  # bytes after which the next answers break off
        self.status: list[int] = []  # of the next answers
        self.requests: list[str | None] = []  # the ranges that were asked for
        self.redirect: str | None = None  # the address that it sends everybody to
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/some/file.bin"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, content, start = self.server, self.server.content, 0
        asked = self.headers.get("Range")
        server.requests.append(asked)
        if server.redirect is not None:
            self.send_response(302)
            self.send_header("Location", server.redirect)
            self.end_headers()
            return
        if server.status and (status := server.status.pop(0)) != 200:
            self.send_error(status)
            return
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) + server.shift
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = server.stop_after.pop(0) if server.stop_after else None
        with suppress(ConnectionError):
            self.wfile.write(content[start:] if stop is None else content[start : start + stop])

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A key and a certificate for this machine that nobody has signed."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    file = tmp_path_factory.mktemp("certificate") / "both.pem"
    options = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-days", "2", *options, "-keyout", str(file), "-out", f"{file}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + Path(f"{file}.crt").read_bytes())
    return file


@pytest.fixture
def safe_server(certificate) -> Iterator[Server]:
    """The same over https."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = Server()
    server.scheme = "https"
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield server


@pytest.fixture
def trusted(certificate, monkeypatch) -> None:
    """The certificate is among those that this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "new folder" / "file.bin"


def partial(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def begun(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    partial(path).write_bytes(content)


def assert_complete(path: Path) -> None:
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("checksum", [SHA256, SHA256.upper()])
def test_a_file_comes_whole(checksum, server, path):
    assert download(server.url, path, progress=False, sha256=checksum) == path
    assert_complete(path)
    assert server.requests == [None]


def test_a_file_that_is_there_is_not_downloaded_again(server, path):
    download(server.url, path, sha256=SHA256, progress=False)
    download(server.url, str(path), sha256=SHA256, progress=False)
    assert len(server.requests) == 1


def test_a_file_that_is_there_and_wrong_is_left_alone_and_named(server, path):
    path.parent.mkdir()
    path.write_bytes(b"mine")
    with pytest.raises(DownloadError, match=r"file\.bin: is there already, but its sha256 is .*Delete it"):
        download(server.url, path, sha256=SHA256, progress=False)
    assert path.read_bytes() == b"mine"
    assert server.requests == []


def test_what_has_come_is_continued(server, path):
    begun(path, CONTENT[:1_234_567])
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests == ["bytes=1234567-"]
    assert_complete(path)


def test_a_connection_that_breaks_is_taken_up_again(server, path):
    server.stop_after = [1_000_000, 700_000, 0, 1]
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests == [None, "bytes=1000000-", "bytes=1700000-", "bytes=1700000-", "bytes=1700001-"]
    assert_complete(path)


def test_a_server_that_does_not_know_ranges_starts_again(server, path):
    server.ranges = False
    begun(path, b"x" * 1_000_000)
    download(server.url, path, sha256=SHA256, progress=False)
    assert_complete(path)


def test_a_server_that_does_not_know_ranges_and_breaks_off_once(server, path):
    server.ranges, server.stop_after = False, [2_000_000]
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests == [None, "bytes=2000000-"]
    assert_complete(path)


def test_a_server_that_begins_anew_and_breaks_off_again_and_again_is_given_up(server, path):
    server.ranges, server.stop_after = False, [600_000, 1_200_000] * 20
    with pytest.raises(DownloadError, match="times in a row"):
        download(server.url, path, sha256=SHA256, progress=False, attempts=2)
    assert len(server.requests) <= 5


def test_a_server_that_does_not_say_the_length(server, path):
    server.length = False
    download(server.url, path, sha256=SHA256, progress=False)
    assert_complete(path)


def test_a_beginning_that_was_complete_needs_its_name_only(server, path):
    begun(path, CONTENT)
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests == [f"bytes={len(CONTENT)}-"]
    assert_complete(path)


@pytest.mark.parametrize("beginning", [b"other" * 1000, CONTENT + b"more", bytes(len(CONTENT))])
def test_a_beginning_of_something_else_is_thrown_away(beginning, server, path):
    begun(path, beginning)
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests == [f"bytes={len(beginning)}-", None]
    assert_complete(path)


def test_an_empty_beginning(server, path):
    begun(path, b"")
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests == [None]
    assert_complete(path)


def test_an_empty_file(server, path):
    server.content = b""
    download(server.url, path, sha256=hashlib.sha256(b"").hexdigest(), progress=False)
    assert path.read_bytes() == b""


def test_a_wrong_checksum_keeps_nothing(server, path):
    with pytest.raises(
        DownloadError, match=rf"sent 3,000,000 bytes whose sha256 is {SHA256}; expected 0000.*may have changed"
    ):
        download(server.url, path, sha256="0" * 64, progress=False)
    assert list(path.parent.iterdir()) == []


def test_a_file_that_changes_between_two_parts_is_noticed_and_fetched_anew(server, path):
    """The first part is of an old version: joined they would be nonsense."""
    begun(path, random.Random(1).randbytes(500_000))
    download(server.url, path, sha256=SHA256, progress=False)
    assert_complete(path)


def test_trouble_that_passes_is_waited_for(server, path):
    server.status = [503, 429, 200]
    download(server.url, path, sha256=SHA256, progress=False)
    assert len(server.requests) == 3
    assert_complete(path)


@pytest.mark.parametrize("status", [404, 403])
def test_a_refusal_is_final(status, server, path):
    server.status = [status] * 9
    with pytest.raises(DownloadError, match=rf"file\.bin: the server answered {status}"):
        download(server.url, path, sha256=SHA256, progress=False)
    assert len(server.requests) == 1
    assert not path.exists()


def test_giving_up_keeps_what_has_come_and_the_next_call_goes_on(server, path):
    server.stop_after = [900_000, 0, 0]
    with pytest.raises(
        DownloadError, match=r"ended after 900,000 of 3,000,000 bytes, 2 times in a row\. 900,000 bytes are kept"
    ):
        download(server.url, path, sha256=SHA256, progress=False, attempts=2)
    assert not path.exists()
    assert partial(path).read_bytes() == CONTENT[:900_000]
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests[-1] == "bytes=900000-"
    assert_complete(path)


def test_a_range_that_was_not_asked_for_is_not_written(server, path):
    begun(path, CONTENT[:1000])
    server.shift = 10
    with pytest.raises(DownloadError, match=r"a range that was not asked for \('bytes 1010-2999999/3000000'\)"):
        download(server.url, path, sha256=SHA256, progress=False, attempts=1)
    assert partial(path).read_bytes() == CONTENT[:1000]


def test_a_range_that_begins_earlier_is_put_in_its_place(server, path):
    begun(path, CONTENT[:1000])
    server.shift = -100
    download(server.url, path, sha256=SHA256, progress=False)
    assert_complete(path)


def test_nobody_there(path):
    with pytest.raises(DownloadError, match=r"http://127\.0\.0\.1:9/x: the connection broke \(.*refused.*call again"):
        download("http://127.0.0.1:9/x", path, sha256=SHA256, progress=False, attempts=1)


def test_a_server_that_never_answers(path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(DownloadError, match=r"the connection broke \(.*timed out"):
            download(url, path, sha256=SHA256, progress=False, attempts=1, timeout=0.2)


def test_a_killed_process_leaves_what_the_next_one_continues(server, path, tmp_path):
    """A real process, killed while the server holds back the rest."""
    gate = threading.Event()
    original = Handler.do_GET

    class Slow(Handler):
        def do_GET(self) -> None:
            if self.headers.get("Range"):
                original(self)
                return
            self.server.requests.append(None)
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:1_500_000])
            self.wfile.flush()
            gate.wait(30)

    server.RequestHandlerClass = Slow
    code = f"from eigengrad.lab.data import download; download({server.url!r}, {str(path)!r}, sha256={SHA256!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    while process.poll() is None and not (partial(path).exists() and partial(path).stat().st_size == 1_500_000):
        time.sleep(0.02)
    process.kill()
    process.wait()
    gate.set()
    assert not path.exists()
    download(server.url, path, sha256=SHA256, progress=False)
    assert server.requests == [None, "bytes=1500000-"]
    assert_complete(path)


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"file"):
        download(server.url, tmp_path / "file" / "x.bin", sha256=SHA256, progress=False)


def test_a_full_disk_is_named(server, path, monkeypatch):
    """/dev/full refuses every byte, as a full disk does."""
    original = Path.open

    def full(self, *arguments, **options):
        return original(Path("/dev/full") if self == partial(path) else self, *arguments, **options)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(
        DownloadError, match=r"file\.bin\.part: cannot be written \(No space left on device\)\. Make room"
    ):
        download(server.url, path, sha256=SHA256, progress=False)
    assert not path.exists()


@pytest.mark.parametrize("says_length", [True, False])
def test_a_server_that_sends_more_than_the_file_may_have_is_stopped(says_length, server, path):
    server.length = says_length
    with pytest.raises(DownloadError, match=r"file\.bin: sends more than 1,000,000 bytes"):
        download(server.url, path, sha256=SHA256, limit=1_000_000, progress=False)
    assert list(path.parent.iterdir()) == []
    assert len(server.requests) == 1


def test_a_file_of_just_as_many_bytes_as_it_may_have(server, path):
    download(server.url, path, sha256=SHA256, limit=len(CONTENT), progress=False)
    assert_complete(path)


def test_fetch_takes_no_more_than_the_archive_has(server, tmp_path, monkeypatch):
    local = archives_module.Archive(server.url, SHA256, len(CONTENT) - 1)
    monkeypatch.setitem(archives_module.ARCHIVES, "cifar10", local)
    with pytest.raises(DownloadError, match=r"sends more than 2,999,999 bytes"):
        fetch("cifar10", tmp_path, progress=False)


@pytest.mark.parametrize("length", ["many", "-5", "3e6", "²", "9" * 5000])
def test_a_length_that_is_no_number_says_nothing(length, server, path, monkeypatch):
    original = Handler.send_header
    monkeypatch.setattr(
        Handler,
        "send_header",
        lambda self, name, value: original(self, name, length if name == "Content-Length" else value),
    )
    server.stop_after = []
    download(server.url, path, sha256=SHA256, progress=False, attempts=1)
    assert_complete(path)


def test_a_length_beyond_the_limit_is_refused_before_anything_is_written(server, path, monkeypatch):
    original = Handler.send_header
    monkeypatch.setattr(
        Handler,
        "send_header",
        lambda self, name, value: original(self, name, "9" * 15 if name == "Content-Length" else value),
    )
    with pytest.raises(DownloadError, match=r"sends more than 1,073,741,824 bytes"):
        download(server.url, path, sha256=SHA256, progress=False)
    assert list(path.parent.iterdir()) == []


def test_what_lies_in_the_place_of_the_file_must_be_a_file(server, path, tmp_path):
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(DownloadError, match=r"file\.bin: is there already, but is not a regular file"):
        download(server.url, path, sha256=SHA256, progress=False)
    path.unlink()
    os.mkfifo(partial(path))
    with pytest.raises(DownloadError, match=r"file\.bin\.part: is there already, but is not a regular file"):
        download(server.url, path, sha256=SHA256, progress=False)
    partial(path).unlink()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    partial(path).symlink_to(victim)
    with pytest.raises(DownloadError, match=r"file\.bin\.part: is a link"):
        download(server.url, path, sha256=SHA256, progress=False)
    assert victim.read_text() == "mine"


# Encryption and redirections.


def test_a_file_comes_over_https(safe_server, trusted, path):
    download(safe_server.url, path, sha256=SHA256, progress=False)
    assert_complete(path)


def test_a_server_whose_certificate_is_not_trusted_is_not_asked(safe_server, path):
    with pytest.raises(DownloadError, match=r"https://.*certificate verify failed"):
        download(safe_server.url, path, sha256=SHA256, progress=False, attempts=1)
    assert safe_server.requests == []
    assert list(path.parent.iterdir()) == []


def test_a_redirection_from_https_to_http_is_refused_before_anything_is_asked_for(safe_server, trusted, server, path):
    safe_server.redirect = server.url
    with pytest.raises(DownloadError, match=rf"{safe_server.url}: the server redirects to {server.url}, .*refused"):
        download(safe_server.url, path, sha256=SHA256, progress=False)
    assert len(safe_server.requests) == 1
    assert server.requests == []
    assert list(path.parent.iterdir()) == []


def test_a_redirection_from_http_to_https_is_followed(safe_server, trusted, server, path):
    server.redirect = safe_server.url
    download(server.url, path, sha256=SHA256, progress=False)
    assert_complete(path)


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/x", "file:///etc/passwd", "gopher://127.0.0.1/x"])
def test_a_redirection_to_another_protocol_is_refused(address, server, path):
    server.redirect = address
    with pytest.raises(DownloadError, match=r"refused|redirection error|not allowed"):
        download(server.url, path, sha256=SHA256, progress=False)
    assert len(server.requests) == 1


def test_progress_is_shown(server, path, capsys):
    download(server.url, path, sha256=SHA256)
    output = capsys.readouterr().out
    assert "file.bin" in output
    assert "3.0/3.0 MB" in output


@pytest.mark.parametrize(
    ("url", "checksum", "message"),
    [
        ("file:///etc/passwd", SHA256, r"url must start with http:// or https://; got 'file:///etc/passwd'"),
        ("http://x/y", "00ff", r"sha256 must have 64 hexadecimal digits; got '00ff'"),
        ("http://x/y", SHA256[:-1] + "x", r"sha256 must have 64 hexadecimal digits"),
    ],
)
def test_bad_values_are_named(url, checksum, message, path):
    with pytest.raises(ValueError, match=message):
        download(url, path, sha256=checksum)


# The public archives.


def test_the_public_archives():
    assert {name: archive.sha256 for name, archive in ARCHIVES.items()} == {
        "cifar10": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        "cifar100": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        "tiny_imagenet": "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
    }
    assert all(archive.url.startswith("https://") for archive in ARCHIVES.values())
    assert [archive.file for archive in ARCHIVES.values()] == [
        "cifar-10-python.tar.gz",
        "cifar-100-python.tar.gz",
        "tiny-imagenet-200.zip",
    ]


def test_fetch_puts_an_archive_where_load_looks(server, tmp_path, monkeypatch):
    local = archives_module.Archive(server.url.replace("file.bin", "cifar-10-python.tar.gz"), SHA256, len(CONTENT))
    monkeypatch.setitem(archives_module.ARCHIVES, "cifar10", local)
    assert fetch("cifar10", tmp_path / "data", progress=False) == tmp_path / "data/cifar-10-python.tar.gz"
    assert (tmp_path / "data/cifar-10-python.tar.gz").read_bytes() == CONTENT


def test_fetch_of_an_unknown_name(tmp_path):
    with pytest.raises(
        ValueError, match=r"name: got 'imagenet'; expected one of 'cifar10', 'cifar100', 'tiny_imagenet'"
    ):
        fetch("imagenet", tmp_path)
