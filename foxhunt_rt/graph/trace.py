"""Chrome trace JSON of a profile: opens in Perfetto (ui.perfetto.dev) and in chrome://tracing.

The format is Google's "Trace Event Format": complete events (``ph`` X) with start and duration in microseconds, and metadata
events (``ph`` M) that name processes and threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foxhunt_rt.graph.profile import Profile

CHILDREN, LAUNCHES = 1, 2


def lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """A track for each span (start, end), so that none overlaps another of its track: parallel branches side by side."""
    ends: list[float] = []
    found = [0] * len(spans)
    for i in sorted(range(len(spans)), key=lambda i: spans[i]):
        start, end = spans[i]
        lane = next((k for k, free in enumerate(ends) if free <= start), len(ends))
        if lane == len(ends):
            ends.append(end)
        ends[lane] = end
        found[i] = lane
    return found


def render(profile: Profile) -> dict[str, Any]:
    """The trace: one median step with a span a child, and the launches of each child one after the other.

    Launches are timed apart (`Profile.launches`), so their spans show how a child's time divides, scaled to the child.
    """
    children = list(profile.parts())
    spans = [(c.start_us, c.start_us + c.median_us) for c in children]
    tracks = lanes(spans)
    events: list[dict[str, Any]] = [_name("process_name", CHILDREN, 0, f"{profile.plan} on {profile.device}"),
                                    _name("process_name", LAUNCHES, 0, "launches, each child scaled to its time")]  # fmt: skip
    for lane in sorted(set(tracks)):
        events += [_name("thread_name", pid, lane, f"branch {lane}") for pid in (CHILDREN, LAUNCHES)]
    for child, (start, end), lane in zip(children, spans, tracks, strict=True):
        events.append(_span(child.name, "child", start, end - start, CHILDREN, lane,
                            {"p90_us": child.p90_us, "share": child.share, "chain": child.chain,
                             "kernels": child.kernels}))  # fmt: skip
        own = [row for row in profile.launches if row.child in child.name.split(" + ")]
        total = sum(row.median_us for row in own)
        at = start
        for row in own:
            length = (end - start) * row.median_us / total if total else 0.0
            events.append(_span(row.launch, "launch", at, length, LAUNCHES, lane,
                                {"alone_us": row.median_us, "grid": row.grid, "block": row.block}))  # fmt: skip
            at += length
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"device": profile.device, "driver": profile.driver},
    }


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _span(
    name: str, category: str, start: float, length: float, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": category, "ts": round(start, 3), "dur": round(length, 3), "pid": pid,
            "tid": tid, "args": args}  # fmt: skip
