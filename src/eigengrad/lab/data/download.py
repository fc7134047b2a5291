"""Downloads that can be interrupted, continued and trusted."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

__all__ = ["DownloadError", "download"]

_BLOCK = 1 << 18
_AGENT = "eigengrad"
#: Bytes of a file of which the size is not known beforehand.
_LIMIT = 1 << 30
#: A number in a header.
_NUMBER = "[0-9]{1,18}"


class DownloadError(OSError):
    """A file could not be downloaded, or what came is not the file that was expected."""


class _BrokenTransferError(Exception):
    """The connection ended early; what has come is in the partial file."""


def download(
    url: str,
    path: Path | str,
    *,
    sha256: str,
    limit: int = _LIMIT,
    progress: bool = True,
    attempts: int = 5,
    timeout: float = 30.0,
) -> Path:
    """Download a file, check it, and only then give it its name.

    What has come is kept in ``path`` + ".part": after an interruption the next call asks the server for the rest, and
    starts again where the server cannot continue. A file that is there already is checked and not downloaded.

    Args:
        url: http or https. A redirection from https to anything else is refused.
        path: where to put the file; its folder is made if it does not exist.
        sha256: the checksum, as 64 hexadecimal digits.
        limit: bytes that the file may have at most; a server that sends more is not listened to any longer.
        progress: show a bar.
        attempts: how often to try in a row without a single byte coming; the pause between doubles, from half a second.
        timeout: seconds without an answer that count as a broken connection.

    Returns:
        ``path``.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"download: url must start with http:// or https://; got {url!r}")
    if not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"download: sha256 must have 64 hexadecimal digits; got {sha256!r}")
    expected = sha256.lower()
    path = Path(path)
    if path.exists():
        _require_regular(path)
        found = _digest(path)
        if found != expected:
            raise DownloadError(
                f"{path}: is there already, but its sha256 is {found}; expected {expected}. "
                "Delete it to download it again."
            )
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    if os.path.lexists(part):
        _require_regular(part)
    with _Bar(path.name) if progress else nullcontext() as bar:
        continued = part.exists() and part.stat().st_size > 0
        _transfer(url, part, limit, attempts, timeout, bar)
        if continued and _digest(part) != expected:
            # The beginning may be of another version of the file, or of another file.
            part.unlink()
            _transfer(url, part, limit, attempts, timeout, bar)
    found = _digest(part)
    if found != expected:
        size = part.stat().st_size
        part.unlink()
        raise DownloadError(
            f"{url}: sent {size:,} bytes whose sha256 is {found}; expected {expected}. "
            "Nothing was kept; the file at this address may have changed."
        )
    os.replace(part, path)
    return path


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Redirections that keep the connection at least as safe as it was."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """The request to the new address.

        Raises:
            DownloadError: if it is not https although the old one was, or neither http nor https.
        """
        allowed = ("https",) if req.type == "https" else ("https", "http")
        if urllib.parse.urlsplit(newurl).scheme.lower() not in allowed:
            raise DownloadError(
                f"{req.full_url}: the server redirects to {newurl[:200]}, which is refused; expected {allowed[0]}://"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


#: Certificates are verified, as Python does by default; proxies are those of the environment.
_OPENER = urllib.request.build_opener(_Redirections)


class _Bar(AbstractContextManager["_Bar"]):
    """A bar with bytes, speed and the time that is left."""

    def __init__(self, name: str) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn())
        self._task = self._progress.add_task(name, total=None)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, done: int, total: int | None) -> None:
        self._progress.update(self._task, completed=done, total=total)


def _transfer(url: str, part: Path, limit: int, attempts: int, timeout: float, bar: _Bar | None) -> None:
    """Fill the partial file, however often the connection breaks, as long as something comes."""
    failures = most = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        most = max(most, before)
        try:
            _receive(url, part, before, limit, timeout, bar)
            return
        except _BrokenTransferError as error:
            have = part.stat().st_size if part.exists() else 0
            # A server that does not know ranges begins anew each time: only more than ever is progress.
            failures = 0 if have > most else failures + 1
            if failures >= attempts:
                kept = f"{have:,} bytes are kept in {part}; " if have else ""
                raise DownloadError(f"{url}: {error}, {failures} times in a row. {kept}call again to go on.") from error
            if failures:
                time.sleep(0.5 * 2 ** (failures - 1))


def _receive(url: str, part: Path, have: int, limit: int, timeout: float, bar: _Bar | None) -> None:
    """One request, for what comes after the first ``have`` bytes."""
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with _OPENER.open(urllib.request.Request(url, headers=headers), timeout=timeout) as answer:
            start = _start(answer, have)
            length = answer.headers.get("Content-Length", "")
            # One that is no number says nothing; the checksum will tell if all has come.
            total = start + int(length) if re.fullmatch(_NUMBER, length) else None
            if total is not None and total > limit:
                raise _too_large(url, limit)
            done = _store(answer, part, start, limit, total, bar)
            if done > limit:
                part.unlink()
                raise _too_large(url, limit)
    except DownloadError:
        raise
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # there is nothing after what we have: the checksum will tell if that is right
            return
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _BrokenTransferError(f"the server answered {error.code} {error.reason}") from error
        raise DownloadError(f"{url}: the server answered {error.code} {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise _BrokenTransferError(f"the connection broke ({getattr(error, 'reason', error)})") from error
    if total is not None and done < total:
        raise _BrokenTransferError(f"the connection ended after {done:,} of {total:,} bytes")


def _start(answer: Any, have: int) -> int:
    """Where in the file the answer begins: a server that does not know ranges sends the whole file."""
    if answer.status != 206:
        return 0
    sent = answer.headers.get("Content-Range", "")
    match = re.fullmatch(rf"bytes ({_NUMBER})-{_NUMBER}/(?:{_NUMBER}|\*)", sent)
    if match is None or int(match[1]) > have:
        raise _BrokenTransferError(f"the server sent a range that was not asked for ({sent!r})")
    return int(match[1])


def _too_large(url: str, limit: int) -> DownloadError:
    return DownloadError(f"{url}: sends more than {limit:,} bytes, which is not the file that was expected")


def _require_regular(path: Path) -> None:
    """Refuse to read from a pipe, or to write through a link."""
    if path.name.endswith(".part") and path.is_symlink():
        raise DownloadError(f"{path}: is a link; expected a file, or nothing. Delete it to download.")
    if not path.is_file():
        raise DownloadError(f"{path}: is there already, but is not a regular file. Delete it to download.")


def _store(answer: Any, part: Path, start: int, limit: int, total: int | None, bar: _Bar | None) -> int:
    """Write the answer at its place, as far as the limit; the length of the file afterwards, or one above the limit."""
    done = start
    with _named(part):
        # Without a buffer, so that what a full disk refuses is not tried again, and complained of, in closing.
        file = part.open("r+b" if start else "wb", buffering=0)
    with file:
        if start:
            with _named(part):
                file.seek(start)
                file.truncate()
        while block := answer.read1(_BLOCK):
            if done + len(block) > limit:
                return limit + 1
            written = 0
            with _named(part):
                while written < len(block):
                    written += file.write(block[written:])
            done += len(block)
            if bar is not None:
                bar.show(done, total)
    return done


@contextmanager
def _named(part: Path) -> Iterator[None]:
    """Tells trouble with the disk from trouble with the connection, which is of the same type."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error})"
        raise DownloadError(f"{part}: {problem}. Make room on the disk, or choose another folder.") from error


def _digest(path: Path) -> str:
    """The SHA-256 of a file. (``hashlib.file_digest`` came with Python 3.11.)"""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
