"""``eigengrad studio``: colour, style, the doctor and the runs, on a page in the browser."""

from __future__ import annotations

import contextlib
import errno
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from .terminal import FAILED, complain, explained, say
from .threads import Threads

__all__ = ["studio"]


def studio(
    results: Annotated[Path, typer.Option(metavar="DIR", help="Folder whose report and runs are shown.")] = Path(
        "results"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 8137,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Other machines reach all but the default.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    threads: Threads = None,
) -> None:
    """Open the studio: a page in the browser for people who would rather look.

    Colour and style transfer with a before-and-after slider and a mask that you draw; the doctor for saved matrices;
    the report and the live curves of a results folder. The page is served by this machine alone, loads nothing from
    elsewhere and sends nothing there. Pictures are the same as from `eigengrad color` and `eigengrad stylize`, byte
    for byte. Uploads are deleted when the studio ends: Ctrl-C.

    **Examples**

    ```
    eigengrad studio
    eigengrad studio --results results --port 8200 --no-browser
    ```
    """
    with explained():
        from ..studio.server import Studio

        try:
            server = Studio(host, port, results, threads)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            complain(f"--port: {port} is in use, perhaps by another studio; choose another, or 0 for any that is free")
            raise typer.Exit(FAILED) from None
        if host not in ("127.0.0.1", "localhost", "::1"):
            complain(f"the studio listens at {host}: whoever reaches it and has the address below can use it")
        say(f"The studio: {server.address}\nCtrl-C ends it.")
        if browser:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("closed")
        finally:
            server.close()
