"""Which thread captures which stream, so that what is not legal meanwhile is refused in words before the driver sees it.

The driver itself answers some of it (an allocation invalidates the capture), lets some of it escape (a launch on another stream
runs at once, and is missing in every replay), and says nothing of what a destructor frees at a bad moment. A capture is
thread-local: other threads may allocate, load and launch on streams of their own, and the capture does not notice.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from foxhunt_rt.driver.errors import CaptureError

if TYPE_CHECKING:
    from foxhunt_rt.driver.stream import Stream

#: Thread -> the streams it captures. Empty almost always, and hot paths look at that alone.
active: dict[int, list[Stream]] = {}
_deferred: list[tuple[object, Callable[[], object]]] = []  # with the context it belongs to


@contextlib.contextmanager
def noted(stream: Stream) -> Iterator[None]:
    """For a with block this thread captures ``stream``. After the last capture of all threads, what destructors left for this
    moment is done."""
    thread = threading.get_ident()
    active.setdefault(thread, []).append(stream)
    try:
        yield
    finally:
        streams = active.get(thread, [])  # none in a child of a fork
        if stream in streams:
            streams.remove(stream)
        if not streams:
            active.pop(thread, None)
        while _deferred and not active:
            _deferred.pop(0)[1]()


def defer(context: object, destroy: Callable[[], object]) -> None:
    """Calls ``destroy`` when no thread captures any more: it frees, or waits for a stream that may be capturing."""
    _deferred.append((context, destroy))


def take_deferred(context: object) -> list[Callable[[], object]]:
    """What was left for later of one context, which is about to close: to be called now, while it still can."""
    found = [destroy for owner, destroy in _deferred if owner is context]
    _deferred[:] = [entry for entry in _deferred if entry[0] is not context]
    return found


def refuse(what: str) -> None:
    """Raises CaptureError when this thread captures: ``what`` allocates, loads, frees or waits."""
    if active and threading.get_ident() in active:
        raise CaptureError(f"{what} is not legal inside a capture: do it before the capture, or after it")


def refuse_escape(what: str, stream: Stream) -> None:
    """Raises CaptureError when this thread captures, and ``stream`` is no part of it: the work would run now, and never again."""
    if active and threading.get_ident() in active and not stream.capturing:
        raise CaptureError(f"{what} goes to a stream that is not captured, where it would run now and be missing in every "
                           "replay: queue it on the captured stream, or after the capture")  # fmt: skip


def _forget_in_forked_child() -> None:
    active.clear()
    _deferred.clear()


os.register_at_fork(after_in_child=_forget_in_forked_child)
