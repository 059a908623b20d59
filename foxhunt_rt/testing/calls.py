"""Counts every driver call of a block, whoever makes it where the driver in use can tell."""

from __future__ import annotations

import functools
from types import TracebackType

from foxhunt_rt import driver
from foxhunt_rt.driver import counts

#: Calls that launch, allocate and wait for nothing: which context is current, and whether a stream is done or capturing.
PLUMBING = frozenset({"cuCtxGetCurrent", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuStreamQuery",
                      "cuEventQuery", "cuStreamIsCapturing", "cuGetErrorName", "cuGetErrorString"})  # fmt: skip


@functools.cache
def entry_points() -> tuple[str, ...]:
    """Every function of the driver API that cuda-bindings knows, and the one that they call under another name than it has."""
    api = driver.load()
    functions = [
        n for n in dir(api) if n.startswith("cu") and n[2:3].isupper() and not isinstance(getattr(api, n), type)
    ]
    return (*functions, "cuGraphInstantiateWithFlags")


class DriverCalls:
    """Counts the driver calls of a with block, over all entry points.

    Attributes
    ----------
    found : dict of str to int
        Calls by entry point, without version suffix; those that were not made are left out.
    ours : dict of str to int
        Those that went through this package. Under hostsim ``found`` is counted by the driver itself, so a difference is a call
        that somebody else made; under NVIDIA's driver the two are one.

    Notes
    -----
    Synchronizes nothing and calls nothing of the driver.
    """

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self.ours: dict[str, int] = {}

    def __enter__(self) -> DriverCalls:
        self._names = entry_points()
        self._ours = dict(counts)
        self._before = self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        after = self._read()
        self.ours = {n: c - self._ours.get(n, 0) for n, c in counts.items() if c != self._ours.get(n, 0)}
        self.found = {n: c - self._before.get(n, 0) for n, c in after.items() if c != self._before.get(n, 0)}

    def _read(self) -> dict[str, int]:
        sim = driver.hostsim()
        if sim is None:
            return dict(counts)
        return {name: int(sim.fxHostsimCounter(name.encode())) for name in self._names}

    def text(self) -> str:
        """One line, the most frequent first."""
        return (
            ", ".join(f"{n:,} {name}" for name, n in sorted(self.found.items(), key=lambda i: (-i[1], i[0]))) or "none"
        )
