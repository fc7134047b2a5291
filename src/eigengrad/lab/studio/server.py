"""The server of the studio: who may ask what, and what is answered.

Nothing in a request becomes a path. Pages and scripts are looked up among those of the package, uploads and results by
keys that cannot be guessed among those of the session, and runs by listing the results folder.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import secrets
import shutil
import socket
import tempfile
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from .jobs import Job, JobQueue
from .runs import list_runs
from .sessions import LARGEST_UPLOAD, LimitError, Session, Sessions, StoredFile
from .tools import MOST_PIXELS, TOOLS, require_inputs
from .worker import Worker

__all__ = ["Studio"]

#: Connections at a time.
MOST_CONNECTIONS = 64
#: Bytes of a request that is not an upload.
LARGEST_REQUEST = 1 << 16
#: Bytes of a refused upload that are read, so that a browser gets to see the refusal.
_DRAINED = 8 << 20
#: Requests that change something must have this header, which pages of other sites cannot send.
GUARD = "X-Eigengrad-Studio"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
}
#: The page may load what this server has, and nothing else.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The report has its style inside and its pictures as data; it has no scripts.
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
_CLOSED = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>eigengrad studio</title></head><body>
<h1>eigengrad studio</h1><p>Open the address that <code>eigengrad studio</code> shows in the terminal: it has a token in
it, by which the studio knows you.</p></body></html>"""


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Studio(ThreadingHTTPServer):
    """The studio, listening. ``serve_forever`` serves it, ``close`` ends it.

    Args:
        host: address to listen at; other machines reach all but loopback addresses.
        port: 0 for any that is free.
        results: folder whose report and runs are shown.
        threads: CPU threads for the tools; None leaves it to torch.

    Raises:
        OSError: if the address is in use, or not of this machine.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, results: Path | None = None, threads: int | None = None
    ) -> None:
        self.results = Path("results") if results is None else results
        self.token = secrets.token_urlsafe(16)
        self.host = host
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.port: int = self.server_address[1]
        self.folder = Path(tempfile.mkdtemp(prefix="eigengrad-studio-"))
        self.sessions = Sessions(self.folder)
        # Looking at an upload does not wait for the picture that somebody is having painted.
        self.lanes = {"inspect": JobQueue(Worker(1)), "work": JobQueue(Worker(threads))}
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"http://{host}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Name of the cookie: browsers do not tell the ports of a host apart."""
        return f"eigengrad-studio-{self.port}"

    def knows_host(self, header: str | None) -> bool:
        """Whether a Host header names this server.

        A page of another site can make its own name point to 127.0.0.1 and then read what we answer (DNS rebinding).
        It cannot do so with an address, or with the name localhost.
        """
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@]+)(?::(\d{1,5}))?", header or "")
        if match is None or int(match[2] or 80) != self.port:
            return False
        name = match[1].strip("[]").lower()
        if name in ("localhost", self.host.lower()):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not _is_loopback(self.host)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, unless there are many."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that broke: browsers close those that they no longer need."""

    def close(self) -> None:
        """End the workers, and remove the files of all sessions."""
        self.server_close()
        for lane in self.lanes.values():
            lane.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class _Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: Studio
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "eigengrad", ""
    timeout = 30  # seconds without a byte

    def do_GET(self) -> None:
        """Answer a request to see something."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Answer a request to do something."""
        self._answer(self._post)

    def do_DELETE(self) -> None:
        """Answer a request to remove or cancel something."""
        self._answer(self._delete)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name of the base class)
        """Write no log: the terminal belongs to the one who started the studio."""

    # Who asks -------------------------------------------------------------------------------------------------------

    def _answer(self, act: Callable[[str, dict[str, str]], None]) -> None:
        self._unread = self._length()
        try:
            if not self.server.knows_host(self.headers.get("Host")):
                raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, "The Host header names another server.")
            if self.headers.get("Transfer-Encoding"):
                raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "Expected a Content-Length.")
            if len(self.path) > 2000:
                raise RefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, "The address is too long.")
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query, max_num_fields=20))
            if self.command != "GET":
                self._require_own_page()
            act(url.path, query)
        except RefusedError as error:
            self._refuse(error.status, str(error))
        except LimitError as error:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error))
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _length(self) -> int:
        length = self.headers.get("Content-Length") or "0"
        return int(length) if re.fullmatch("[0-9]{1,15}", length) else 0

    def _require_own_page(self) -> None:
        """Refuse what a page of another site sends: it can, but not with a header that is not among the simple ones."""
        origin = self.headers.get("Origin")
        if self.headers.get(GUARD) is None or (origin and origin != f"http://{self.headers.get('Host')}"):
            raise RefusedError(HTTPStatus.FORBIDDEN, "The request does not come from the page of the studio.")

    def _session(self) -> Session:
        """The session of the browser.

        Raises:
            RefusedError: if it has not come with the token.
        """
        session = None
        with contextlib.suppress(CookieError):
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
            session = None if found is None else self.server.sessions.find(found.value)
        if session is None:
            raise RefusedError(HTTPStatus.FORBIDDEN, "Open the address that the terminal shows, with its token.")
        return session

    # What is asked --------------------------------------------------------------------------------------------------

    def _get(self, path: str, query: dict[str, str]) -> None:
        if path == "/" and "token" in query:
            self._enter(query["token"])
            return
        if path == "/":
            try:
                self._session()
            except RefusedError:
                self._send(_CLOSED.encode(), _TYPES[".html"], status=HTTPStatus.FORBIDDEN)
                return
            self._static("index.html")
        elif match := re.fullmatch(r"/static/([a-z_]{1,40}\.(?:js|css|svg))", path):
            self._static(match[1])
        elif path == "/api/studio":
            self._session()
            self._json(self._about())
        elif path == "/api/runs":
            self._session()
            self._json({"runs": list_runs(self.server.results)})
        elif path == "/report":
            self._session()
            self._report()
        elif match := re.fullmatch(r"/api/jobs/([\w-]{1,40})", path):
            self._json(self._job_state(*self._job(match[1])))
        elif match := re.fullmatch(r"/api/files/([\w-]{1,40})", path):
            self._file(match[1], download="download" in query)
        else:
            raise RefusedError(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _post(self, path: str, query: dict[str, str]) -> None:
        session = self._session()
        if path == "/api/files":
            if self.headers.get("Content-Length") is None:
                raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "Expected a Content-Length.")
            length = self._length()
            if not length:
                raise ValueError("The file is empty")
            stored = session.receive(self.rfile, length, query.get("name", "file"))
            self._unread = 0
            kind = query.get("kind", "picture")
            if kind == "matrix":
                self._json({"file": stored.key, "name": stored.name})
            else:
                self._add(session, self._inspection(session, stored), "inspect", file=stored.key, name=stored.name)
        elif path == "/api/jobs":
            self._add(session, self._task(session, self._request()), "work")
        else:
            raise RefusedError(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _delete(self, path: str, query: dict[str, str]) -> None:
        if match := re.fullmatch(r"/api/jobs/([\w-]{1,40})", path):
            lane, job = self._job(match[1])
            lane.cancel(job)
            self._json(self._job_state(lane, job))
        elif match := re.fullmatch(r"/api/files/([\w-]{1,40})", path):
            if not self._session().remove(match[1]):
                raise RefusedError(HTTPStatus.NOT_FOUND, "There is no such file of yours.")
            self._json({})
        else:
            raise RefusedError(HTTPStatus.NOT_FOUND, "There is nothing here.")

    def _enter(self, token: str) -> None:
        """Give a browser that knows the token a session, and take the token out of its address."""
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise RefusedError(HTTPStatus.FORBIDDEN, "This is not the token of the studio that is running.")
        try:
            session = self._session()
        except RefusedError:
            session = self.server.sessions.new()
        cookie = f"{self.server.cookie}={session.key}; Path=/; HttpOnly; SameSite=Lax"
        self._send(b"", "text/plain", status=HTTPStatus.SEE_OTHER, headers={"Location": "/", "Set-Cookie": cookie})

    def _about(self) -> dict[str, Any]:
        from ... import __version__

        return {
            "version": __version__,
            "tools": [tool.to_dict() for tool in TOOLS.values()],
            "largest_upload": LARGEST_UPLOAD,
            "most_pixels": MOST_PIXELS,
            "results": str(self.server.results),
        }

    def _inspection(self, session: Session, stored: StoredFile) -> Job:
        folder = stored.path.parent

        def finish(found: dict[str, Any]) -> dict[str, Any]:
            preview = _known(session, folder, found.pop("preview"), stored.name)
            return {**found, "file": stored.key, "name": stored.name, "preview": preview.key}

        names = {str(stored.path): stored.name}
        task = {"tool": "inspect", "file": str(stored.path), "folder": str(folder), "names": names}
        return Job(session.key, task, finish)

    def _task(self, session: Session, request: dict[str, Any]) -> Job:
        """The job that a request describes: a tool, keys of files by slot, and options."""
        name, files_, options = (request.get(part) for part in ("tool", "files", "options"))
        if not isinstance(name, str) or name not in TOOLS:
            raise ValueError(f"tool: got {str(name)[:40]!r}; expected one of {', '.join(TOOLS)}")
        if not isinstance(files_, dict) or not isinstance(options, dict):
            raise ValueError("files and options: expected objects")
        tool, found = TOOLS[name], dict[str, list[StoredFile]]()
        for slot, keys in files_.items():
            if not isinstance(keys, list):
                raise ValueError(f"files: {slot[:40]}: expected a list of keys")
            stored = [session.find(key) if isinstance(key, str) else None for key in keys]
            if None in stored:
                raise RefusedError(
                    HTTPStatus.NOT_FOUND, f"{slot[:40]}: there is no such file of yours; choose it again."
                )
            found[slot] = [file for file in stored if file is not None]
        chosen = require_inputs(tool, found, options)
        folder = session.new_folder()

        def finish(result: dict[str, Any]) -> dict[str, Any]:
            if "file" in result:
                first = found[tool.slots[0].name][0]
                made = _known(session, folder, result["file"], f"{Path(first.name).stem}-{tool.title.lower()}.png")
                preview = _known(session, folder, result["preview"], "preview")
                result = {**result, "file": made.key, "name": made.name, "preview": preview.key}
            return result

        task = {
            "tool": name,
            "files": {slot: [str(file.path) for file in stored] for slot, stored in found.items()},
            "options": chosen,
            "folder": str(folder),
            "names": {str(file.path): file.name for stored in found.values() for file in stored},
        }
        return Job(session.key, task, finish)

    def _add(self, session: Session, job: Job, lane: str, **more: Any) -> None:
        self.server.lanes[lane].add(job)
        self._json({**self._job_state(self.server.lanes[lane], job), **more})

    def _job(self, key: str) -> tuple[JobQueue, Job]:
        session = self._session()
        for lane in self.server.lanes.values():
            job = lane.find(key, session.key)
            if job is not None:
                return lane, job
        raise RefusedError(HTTPStatus.NOT_FOUND, "There is no such task of yours.")

    def _job_state(self, lane: JobQueue, job: Job) -> dict[str, Any]:
        return {
            "job": job.key,
            "state": job.state,
            "share": round(job.share, 4),
            "text": job.text,
            "ahead": lane.ahead(job) if job.state == "waiting" else 0,
            "seconds": round(job.seconds, 1),
            "result": job.result if job.state == "done" else None,
        }

    # What is sent ---------------------------------------------------------------------------------------------------

    def _static(self, name: str) -> None:
        """Send a file of the package, from a folder that has no others in it."""
        found = files(__package__) / "static" / name
        if not found.is_file():
            raise RefusedError(HTTPStatus.NOT_FOUND, "There is nothing here.")
        self._send(found.read_bytes(), _TYPES[Path(name).suffix])

    def _report(self) -> None:
        """Send the report of the results folder, as it would be written now."""
        from ..experiments import DECIDING, ORDER
        from ..report import render_page

        page = render_page(self.server.results, ["compare", *ORDER], DECIDING)
        self._send(page.encode(errors="replace"), _TYPES[".html"], policy=_REPORT_POLICY)

    def _file(self, key: str, *, download: bool) -> None:
        stored = self._session().find(key)
        if stored is None or not stored.path.is_file():
            raise RefusedError(HTTPStatus.NOT_FOUND, "There is no such file of yours.")
        headers = {"Cache-Control": "private, max-age=3600"}
        if download or not stored.media_type.startswith("image/"):
            ascii_name = re.sub(r"[^\w. -]", "_", stored.name, flags=re.ASCII)
            full = urllib.parse.quote(stored.name, safe="")
            headers["Content-Disposition"] = f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{full}"
        with stored.path.open("rb") as file:
            size = stored.path.stat().st_size
            self._head(HTTPStatus.OK, stored.media_type, size, headers, _POLICY)
            shutil.copyfileobj(file, self.wfile, 1 << 18)

    def _request(self) -> dict[str, Any]:
        """The JSON object of a request."""
        length = self._length()
        if length > LARGEST_REQUEST:
            raise LimitError(f"The request has {length:,} bytes; expected at most {LARGEST_REQUEST:,}")
        body = self.rfile.read(length)
        self._unread = 0
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError("The request is no JSON") from None
        if not isinstance(content, dict):
            raise ValueError("The request must be an object")
        return content

    def _json(self, content: dict[str, Any]) -> None:
        self._send(json.dumps(content, allow_nan=False).encode(), "application/json")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        while 0 < self._unread <= _DRAINED:
            block = self.rfile.read(min(1 << 18, self._unread))
            self._unread = self._unread - len(block) if block else 0
        self.close_connection = True
        body = json.dumps({"error": message}).encode()
        self._send(body, "application/json", status=status, headers={"Connection": "close"})

    def _send(
        self,
        body: bytes,
        media_type: str,
        *,
        status: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
        policy: str = _POLICY,
    ) -> None:
        self._head(status, media_type, len(body), {"Cache-Control": "no-store", **(headers or {})}, policy)
        self.wfile.write(body)

    def _head(self, status: HTTPStatus, media_type: str, length: int, headers: dict[str, str], policy: str) -> None:
        self.send_response(status)
        fixed = {
            "Content-Type": media_type,
            "Content-Length": str(length),
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _known(session: Session, folder: Path, name: str, shown: str) -> StoredFile:
    """A file that a worker has made, as one of the session."""
    path = folder / Path(name).name
    return session.add(path, shown, _TYPES.get(path.suffix, "application/octet-stream"))
