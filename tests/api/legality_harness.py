"""What a call does to the driver, seen by hostsim's trace of driver calls."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from foxhunt_rt import driver
from foxhunt_rt.driver import CaptureError, DriverCalls
from foxhunt_rt.driver.tracing import PLUMBING, loads, synchronizes, takes_memory
from foxhunt_rt.graph import Runtime


class Trace:
    """Driver calls of one call, without those that only ask which context is current."""

    def __init__(self, run: Callable[[], Any]) -> None:
        gc.disable()  # what it collected would count as freed by the call
        try:
            with DriverCalls() as calls:
                self.result = run()  # kept, so that it is not destroyed within the trace
        finally:
            gc.enable()
        self.calls = {name: n for name, n in calls.found.items() if name not in PLUMBING}

    @property
    def synchronizes(self) -> bool:
        return any(map(synchronizes, self.calls))

    @property
    def allocates(self) -> bool:
        return any(
            takes_memory(c) or (loads(c) and c != "cuFuncGetAttribute") for c in self.calls
        )  # asking takes nothing


def in_a_capture(rt: Runtime, run: Callable[[], Any]) -> str:
    """``"legal"``, ``"recorded"`` or ``"refused"``, or what went wrong. Afterwards the next capture must work."""
    nodes: int | None = None
    outcome = "legal"
    kept: Any = (untouched := object())
    try:
        with driver.capture(rt.stream) as recording:
            kept = run()
        nodes = len(recording.graph.nodes())
    except CaptureError as error:
        outcome = "refused" if kept is untouched else f"the capture is spoiled: {error}"
    assert not rt.stream.capturing
    with driver.capture(rt.stream) as following:
        pass
    assert following.graph.nodes() == []
    del kept
    return "recorded" if nodes else outcome
