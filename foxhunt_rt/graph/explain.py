"""Why is my step slow? Names the known causes (known failure K1) from a profile and from what a loop does to the driver.

Three sources: the profile of the step; the driver calls of the user's loop, counted (`DriverCalls`: from outside under hostsim
and FOXHUNT_TRACE, else those of this package); and a delay queued before the loop, which tells whether anything in it waits for
the device, whoever made the call.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from foxhunt_rt.driver import DriverCalls
from foxhunt_rt.driver.tracing import launches, loads, seen_from_outside, synchronizes, takes_memory
from foxhunt_rt.graph.profile import Profile
from foxhunt_rt.graph.runtime import Runtime

GRAPH_LAUNCH = "cuGraphLaunch"

#: A launch of at most this many threads that touches this many bytes for each of them walks memory in series.
FEW_THREADS, MANY_BYTES = 32, 4096
#: On a GPU: a launch that is longer than this and moves fewer bytes a microsecond keeps nearly all of the device idle.
LONG_US, SLOW_BYTES_PER_US = 20.0, 500.0
#: Of its maximum, below which a clock is low.
LOW_CLOCK = 0.85


class ClockReading(Protocol):
    """What NVML says of the clock under load; `foxhunt_rt.telemetry.nvml.GpuState` is one."""

    @property
    def sm_mhz(self) -> int: ...
    @property
    def sm_max_mhz(self) -> int: ...
    @property
    def throttled(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Finding:
    """One cause: its name, where it is, what shows it, and how to mend it."""

    cause: str
    where: str
    evidence: str
    mend: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.where}: {self.evidence}; {self.mend}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return dataclasses.asdict(self)


def waits_for_device(runtime: Runtime, loop: Callable[[], object], delay_ms: float = 5.0, tries: int = 3) -> float:
    """How much of a delay queued on the device before one turn of a loop comes back as host time of that turn: about 1 when
    something in it waits for the device, about 0 when nothing does.

    The smallest of a few tries counts, so that an interruption of this process is not taken for a wait. Queues work in front of
    the loop on the runtime's stream; work of the loop on other streams that depends on nothing there is not seen. Under hostsim
    work is queued only in its deferred mode. Synchronizes.
    """
    user = runtime.ungraphed("explain")
    plain: list[float] = []
    delayed: list[float] = []
    for _ in range(tries):
        for delay, samples in ((0.0, plain), (delay_ms, delayed)):
            runtime.synchronize()
            if delay:
                user.launch("spin", (1,), (1,), dict(ns=int(delay * 1e6)))
            started = time.perf_counter()
            loop()
            samples.append((time.perf_counter() - started) * 1e3)
    runtime.synchronize()
    return (min(delayed) - statistics.median(plain)) / delay_ms


def explain(runtime: Runtime, profile: Profile, loop: Callable[[], object] | None = None, *, turns: int = 20,
            launches_per_turn: int = 1, clocks: Sequence[ClockReading] = ()) -> list[Finding]:  # fmt: skip
    """The known causes of a slow step that are present.

    In a capture: refused, when the loop launches. Synchronizes: yes. Allocates: may, on a GPU: a kernel that delays.

    Parameters
    ----------
    runtime : Runtime
    profile : Profile
        From `StepGraph.profile`, with its launches.
    loop : callable, optional
        One turn of the training loop, such as ``learner.step``. Called some twenty times. Without it only the step is looked at.
    turns : int
        Turns whose driver calls are counted.
    launches_per_turn : int
        Graph launches that a turn is meant to make.
    clocks : sequence of ClockReading
        Read under load; any that is throttled is named.
    """
    found = of_launches(profile, on_gpu=runtime.driver_kind == "cuda")
    if loop is not None:
        loop()
        runtime.synchronize()
        with DriverCalls() as calls:
            for _ in range(turns):
                loop()
        found += of_calls(calls.found, turns, launches_per_turn)
        if not seen_from_outside() and not any(f.cause == "hidden synchronization" for f in found):
            share = waits_for_device(runtime, loop)
            if share > 0.5:
                found.append(_hidden_wait(share))
        runtime.synchronize()
    return found + of_clocks(clocks)


def _hidden_wait(share: float) -> Finding:
    return Finding("hidden synchronization", "the loop", f"{share:.0%} of a delay queued before it came back as host time: "
                   "something in it waits for the device, in a library that is not ours",
                   "look for item(), print or a copy to the host of a device value")  # fmt: skip


def of_calls(calls: dict[str, int], turns: int, launches_per_turn: int = 1) -> list[Finding]:
    """Findings from the driver calls of so many turns of a loop."""
    found = []
    waiting = _said(calls, synchronizes, turns)
    if waiting:
        found.append(Finding("hidden synchronization", "the loop", f"{waiting} a step",
                             "read results from mapped records a step later, or every so many steps"))  # fmt: skip
    outside = _said(calls, lambda call: launches(call) and call != GRAPH_LAUNCH, turns)
    graphs = calls.get(GRAPH_LAUNCH, 0)
    if graphs > launches_per_turn * turns:
        outside = ", ".join([*([outside] if outside else []), f"{graphs / turns:g} {GRAPH_LAUNCH}"])
    if outside:
        found.append(Finding("launches outside the parent", "the loop", f"{outside} a step, at about 5 us of the host each",
                             "make them a child of the plan"))  # fmt: skip
    allocating = _said(calls, takes_memory, turns)
    if allocating:
        found.append(Finding("allocation per step", "the loop", f"{allocating} a step",
                             "allocate before the loop: a free waits for the device"))  # fmt: skip
    loading = _said(calls, loads, turns)
    if loading:
        found.append(Finding("loading or setting per step", "the loop", f"{loading} a step",
                             "load modules, set attributes and build graphs before the loop"))  # fmt: skip
    return found


def _said(calls: dict[str, int], kind: Callable[[str], bool], turns: int) -> str:
    return ", ".join(f"{n / turns:g} {name}" for name, n in calls.items() if kind(name))


def of_launches(profile: Profile, on_gpu: bool) -> list[Finding]:
    """Findings from the launches of a profile: few threads for much memory, a rate that only one thread has, local memory."""
    found = []
    for row in profile.launches:
        where = f"{row.child}.{row.launch}"
        rate = row.touched_bytes / row.median_us if row.median_us else 0.0
        few = 0 < row.threads <= FEW_THREADS and row.touched_bytes >= MANY_BYTES * row.threads
        slow = on_gpu and row.threads > 0 and row.median_us > LONG_US and rate < SLOW_BYTES_PER_US
        if few or slow:
            found.append(Finding("serial reduction", where, f"{row.median_us:,.1f} us for {row.touched_bytes:,} bytes with "
                                 f"{row.threads} threads ({rate:,.0f} bytes a us)",
                                 "share the work out among more threads and blocks"))  # fmt: skip
        if row.local_bytes:
            found.append(Finding("local-memory spill", where, f"{row.local_bytes:,} bytes of local memory a thread: spilled "
                                 "registers, or arrays with computed indices", "use fewer registers or smaller tiles; see "
                                 "ptxas -v"))  # fmt: skip
    return found


def of_clocks(clocks: Sequence[ClockReading]) -> list[Finding]:
    """A finding when any reading under load was throttled or low."""
    reasons = sorted({reason for c in clocks for reason in c.throttled})
    lowest = min(clocks, key=lambda c: c.sm_mhz / max(c.sm_max_mhz, 1), default=None)
    if lowest is None or not (reasons or lowest.sm_mhz < LOW_CLOCK * lowest.sm_max_mhz):
        return []
    return [Finding("throttled clock", "the device", f"{lowest.sm_mhz} of {lowest.sm_max_mhz} MHz under load"
                    + (f", {', '.join(reasons)}" if reasons else ""),
                    "check cooling, the power limit and application clocks with nvidia-smi -q -d CLOCK,PERFORMANCE")]  # fmt: skip


__all__ = [
    "ClockReading",
    "Finding",
    "explain",
    "of_calls",
    "of_clocks",
    "of_launches",
    "waits_for_device",
]
