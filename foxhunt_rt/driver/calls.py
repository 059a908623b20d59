"""The one place where a driver status is looked at.

Three layers, one rule each: ``cuda.bindings.driver`` is the raw driver; `call` turns a status into an exception;
the objects of this package own what they create. Nothing above this layer sees a CUresult.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foxhunt_rt.driver import loader
from foxhunt_rt.driver.errors import DriverError, IllegalInCapture, MissingEntryPoint, OutOfMemory


class CallCounts(dict[str, int]):
    """Calls by entry point, 0 for one that was never made; a difference has those made since.

    Not a Counter, whose item assignment goes through Python (it defines ``__delitem__``) and costs 0.2 us of each launch.
    """

    def __missing__(self, name: str) -> int:
        return 0

    def copy(self) -> CallCounts:
        return CallCounts(self)

    def __sub__(self, before: Mapping[str, int]) -> dict[str, int]:
        return {name: n - before.get(name, 0) for name, n in self.items() if n != before.get(name, 0)}


#: Driver calls made through this package since the process began.
counts = CallCounts()


def call(function: Callable[..., tuple[Any, ...]], *args: Any) -> Any:
    """Calls an entry point of ``cuda.bindings.driver`` and returns what follows the status.

    Returns
    -------
    None, the single result, or the tuple of results.

    Raises
    ------
    DriverError
        For every status but CUDA_SUCCESS; `OutOfMemory` for CUDA_ERROR_OUT_OF_MEMORY, `IllegalInCapture` for what a capture
        forbids.
    MissingEntryPoint
        The driver does not have the entry point.
    """
    name = function.__name__
    counts[name] += 1
    try:
        result = function(*args)
    except RuntimeError as error:  # cuda-bindings', for an entry point that cuGetProcAddress did not give
        raise MissingEntryPoint(f"{name}: {error} in this driver: update it (docs/support.md)") from None
    if result[0]:
        raise error_for(int(result[0]), name)
    if len(result) == 2:
        return result[1]
    return result[1:] if len(result) > 2 else None


def error_for(code: int, call_name: str) -> DriverError:
    """The exception for a status, with the driver's own name and text."""
    cu = loader.load()
    try:
        status = cu.CUresult(code)
        name = cu.cuGetErrorName(status)[1].decode()
        text = cu.cuGetErrorString(status)[1].decode()
    except ValueError:  # a code newer than these bindings
        name, text = "unknown", "a status that these cuda-bindings do not know"
    where: dict[str, str] = {}
    sim = loader.hostsim()
    if sim is not None:
        report = sim.fxHostsimLastReport()
        if report:
            where["report"] = report.decode(errors="replace")
    kind: type[DriverError] = OutOfMemory if name == "CUDA_ERROR_OUT_OF_MEMORY" else DriverError
    if "STREAM_CAPTURE" in name or name == "CUDA_ERROR_CAPTURED_EVENT":
        kind = IllegalInCapture
    return kind(code, name, text, call_name, where)
