"""Ctrl-C or SIGTERM that ends training between two launches, so that what is saved is a whole state."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupt"]


class Interrupt:
    """While entered, the first SIGINT or SIGTERM sets `requested` and the second raises KeyboardInterrupt at once.

    In a thread that is not the main one, where Python does not deliver signals, it does nothing.

    Attributes
    ----------
    requested : int
        The number of the signal, 0 before it came.
    """

    def __init__(self) -> None:
        self.requested = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = {n: signal.signal(n, self._note) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt("interrupted twice; what was written before stands, the state since is lost")
        self.requested = number
