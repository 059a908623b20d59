"""Counts every driver call of a block, whoever makes it where that can be told, and says what kind of call each is."""

from __future__ import annotations

import functools
from types import TracebackType

from foxhunt_rt.driver import loader
from foxhunt_rt.driver.calls import CallCounts, counts

#: Calls that launch, allocate and wait for nothing: which context is current, and whether a stream is done or capturing.
PLUMBING = frozenset({"cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuStreamQuery",
                      "cuEventQuery", "cuStreamIsCapturing", "cuGetErrorName", "cuGetErrorString"})  # fmt: skip
_WAITS = ("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize")
_TRANSFERS = ("cuMemcpy", "cuMemset")
_MEMORY = ("cuMemAlloc", "cuMemHostAlloc", "cuMemFree", "cuMemHostRegister", "cuMemHostUnregister", "cuMemCreate",
           "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolTrimTo",
           "cuArray", "cuMipmappedArray")  # fmt: skip
_LOADS = ("cuModuleLoad", "cuModuleUnload", "cuLibrary", "cuLink", "cuFuncSet", "cuFuncGetAttribute", "cuFuncLoad",
          "cuKernelSet", "cuKernelGetAttribute", "cuCtxCreate", "cuCtxDestroy", "cuCtxSet", "cuDevicePrimaryCtxRe",
          "cuGraphInstantiate", "cuGraphCreate", "cuGraphClone", "cuGraphAdd", "cuGraphConditionalHandle", "cuGraphDestroy",
          "cuGraphExecDestroy", "cuGraphExecUpdate", "cuGraphUpload", "cuStreamCreate", "cuStreamDestroy",
          "cuStreamBeginCapture", "cuEventCreate", "cuEventDestroy")  # fmt: skip


def synchronizes(call: str) -> bool:
    """Whether an entry point may wait for the device: the synchronize calls, and copies and fills that are not async."""
    return call in _WAITS or (call.startswith(_TRANSFERS) and not call.endswith("Async"))


def launches(call: str) -> bool:
    """Whether an entry point queues work: kernels, graphs, host functions, and copies and fills that are async."""
    return call.startswith(("cuLaunch", "cuGraphLaunch")) or (call.startswith(_TRANSFERS) and call.endswith("Async"))


def takes_memory(call: str) -> bool:
    """Whether an entry point takes or gives back memory."""
    return call.startswith(_MEMORY)


def loads(call: str) -> bool:
    """Whether an entry point loads, unloads, creates, destroys, or reads or sets an attribute or a limit."""
    return call.startswith(_LOADS) and call not in PLUMBING


@functools.cache
def _entry_points() -> tuple[str, ...]:
    """Every function of the driver API that cuda-bindings knows, and the one that they call under another name than it has."""
    api = loader.load()
    functions = [
        n for n in dir(api) if n.startswith("cu") and n[2:3].isupper() and not isinstance(getattr(api, n), type)
    ]
    return (*functions, "cuGraphInstantiateWithFlags")


class DriverCalls:
    """Counts the driver calls of a with block.

    Attributes
    ----------
    found : dict of str to int
        Calls by entry point, without version suffix; those that were not made are left out. Counted from outside, whichever
        library calls, by hostsim itself, and under FOXHUNT_TRACE by the forwarding libcuda in front of any driver; otherwise the
        calls of this package.
    ours : dict of str to int
        Those that went through this package; beside a count from outside, a difference is a call that somebody else made.

    Notes
    -----
    Synchronizes nothing and calls nothing of the driver.
    """

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self.ours: dict[str, int] = {}

    def __enter__(self) -> DriverCalls:
        self._ours, self._before = counts.copy(), _read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.found = _read() - self._before
        self.ours = counts - self._ours

    def text(self) -> str:
        """One line, the most frequent first."""
        return (
            ", ".join(f"{n:,} {name}" for name, n in sorted(self.found.items(), key=lambda i: (-i[1], i[0]))) or "none"
        )


def seen_from_outside() -> bool:
    """Whether calls that go past this package are counted too."""
    return loader.shim() is not None or loader.hostsim() is not None


def _read() -> CallCounts:
    shim, sim = loader.shim(), loader.hostsim()
    if shim is not None:
        return CallCounts(shim.counts())
    if sim is None:
        return counts.copy()
    return CallCounts({name: int(sim.fxHostsimCounter(name.encode())) for name in _entry_points()})


__all__ = [
    "PLUMBING",
    "DriverCalls",
    "launches",
    "loads",
    "seen_from_outside",
    "synchronizes",
    "takes_memory",
]
