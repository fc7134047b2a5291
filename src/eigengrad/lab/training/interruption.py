"""Ctrl-C, and the termination a cluster sends: finish the step, save, and only then stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from typing_extensions import Self

__all__ = ["Interruption"]


class Interruption:
    """While it is entered, the first SIGINT or SIGTERM is noted; a second one stops at once.

    Attributes:
        signal: the signal that came, or ``None``.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals are not ours to handle
            self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)
