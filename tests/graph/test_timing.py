"""Timing: what is always on, the profile of a step, and its exports."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager

import numpy as np
import pytest

from foxhunt_rt.driver import FoxhuntError, counts
from foxhunt_rt.graph import Flag, timing
from foxhunt_rt.graph.timing import StepTimer
from foxhunt_rt.graph.trace import lanes

N = 4096
MS = 1_000_000


class Launch:
    """A step whose host time is known."""

    def __init__(self) -> None:
        self.launch_ns, self.count = 0, 0

    def launch(self, steps: int | None = None) -> None:
        self.count += 1
        self.launch_ns = 1000 * self.count


def stamps(started: int, ended: int):
    """What gives a record."""
    return lambda: {"started_ns": started, "ended_ns": ended}


# ---------------------------------------------------------------- always on
def test_a_record_is_joined_with_its_own_launch():
    timer, step = StepTimer(), Launch()
    for n in range(3):
        timer.launch(step, queue_ns=n * 7000)
    first, second = timer.record(stamps(10_000, 15_000)), timer.record(stamps(30_000, 36_500))
    assert (first.step, first.device_us, first.period_us, first.launch_us, first.queue_wait_us) == (
        0,
        5.0,
        0.0,
        1.0,
        0.0,
    )
    assert (second.device_us, second.period_us, second.launch_us, second.queue_wait_us) == (6.5, 20.0, 2.0, 7.0)
    for _ in range(2):
        timer.launch(step)
    assert [timer.record(stamps(1, 2)).launch_us for _ in range(3)] == [3.0, 4.0, 5.0]
    timer.reset()
    assert timer.last is None
    timer.launch(step)
    assert (timer.record(stamps(5, 6)).step, timer.last.launch_us, timer.last.period_us) == (0, 6.0, 0.0)


def test_the_log_has_five_lines_and_then_every_fiftieth(caplog):
    timer, step = StepTimer(), Launch()
    with caplog.at_level(logging.INFO, logger="foxhunt_rt.step"):
        found = []
        for n in range(151):
            timer.launch(step)
            found.append(timer.record(stamps(1000 * n + 1, 1000 * n + 501)))
    assert [int(r.message.split()[1]) for r in caplog.records] == [0, 1, 2, 3, 4, 50, 100, 150]
    assert [f.step for f in found if f is not None] == [0, 1, 2, 3, 4, 50, 100, 150]
    assert {f.period_us for f in found[1:] if f is not None} == {1.0}
    assert "device       0.5 us" in caplog.records[-1].message and "host wait" in caplog.records[-1].message


def test_host_wait_is_what_the_thread_did_not_run(monkeypatch):
    class Blocked(Launch):
        def launch(self, steps: int | None = None) -> None:
            self.launch_ns = 10 * MS

    ticks = iter([0, 2 * MS])
    monkeypatch.setattr(timing.time, "thread_time_ns", lambda: next(ticks))
    timer = StepTimer()
    timer.launch(Blocked())
    found = timer.record(stamps(0, 1))
    assert (found.launch_us, found.host_wait_us) == (10_000.0, 8_000.0)


def test_a_launch_leaves_its_host_time_and_no_driver_call(runtime, branches):
    with runtime.context.current():
        before = counts.copy()
        branches.launch()
        assert counts - before == {"cuGraphLaunch": 1}
    assert branches.launch_ns > 0


# ---------------------------------------------------------------- profile
@pytest.fixture
def branches(runtime):
    """A long child and a short one side by side, then one that joins them; the long one waits for 2 ms."""
    x, y = runtime.zeros(N, np.float32, "x"), runtime.zeros(N, np.float32, "y")
    total = runtime.zeros(1, np.float32, "total")
    plan = runtime.plan("branches")
    with plan.child("long", reads=[], writes=[x]) as c:
        c.launch("spin", (1,), (1,), dict(ns=2 * MS))
        c.launch("add_scalar", (N // 128,), (128,), dict(x=x, value=1.0, n=N))
    with plan.child("short", reads=[], writes=[y]) as c:
        c.memset(y, 3.0)
    with plan.child("join", reads=[x, y], writes=[total]) as c:
        c.launch("sum", (1,), (64,), dict(x=x, sum=total, n=N))
    step = plan.build()
    yield step
    step.close()


def test_a_profile_finds_the_time_where_it_is(branches):
    found = branches.profile(5)
    by_name = {c.name: c for c in found.children}
    assert list(by_name) == ["long", "short", "join"]
    long, join = by_name["long"], by_name["join"]
    assert 2000 <= long.median_us <= found.twin_us and long.median_us <= long.p90_us
    assert long.share > by_name["short"].share and long.share == pytest.approx(long.median_us / found.twin_us)
    assert join.start_us >= long.start_us + 2000  # the edge holds in the twin too
    assert (long.kernels, long.nodes, long.chain) == (2, 2, 2)
    assert (by_name["short"].kernels, by_name["short"].nodes) == (0, 1)
    assert long.ungraphed_us >= 2000 and found.step_us >= 2000 and found.launch_us > 0
    rows = {(row.child, row.launch): row for row in found.launches}
    assert set(rows) == {("long", "spin"), ("long", "add_scalar"), ("short", "memset"), ("join", "sum")}
    assert rows["long", "spin"].median_us >= 2000 > rows["long", "add_scalar"].median_us
    assert rows["long", "add_scalar"].threads == N and rows["long", "add_scalar"].touched_bytes == 4 * N
    assert rows["short", "memset"].touched_bytes == 4 * N


def test_a_profile_leaves_state_and_modules_as_they_were(runtime, branches):
    branches.launch()
    before, modules = branches.state.snapshot(), len(runtime.modules)
    branches.profile(2)
    assert branches.state.compare(before, branches.state.snapshot()) is None
    assert len(runtime.modules) == modules
    assert branches.verify().bitwise_equal


def test_a_profile_without_the_ungraphed_set_and_without_launches(runtime):
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("bare")
    with plan.child("a", reads=[], writes=[x]) as c:
        c.memset(x, 0)
    step = plan.build(ungraphed=False)
    found = step.profile(1, launches=False)
    assert found.launches == [] and found.children[0].ungraphed_us == 0.0
    with pytest.raises(FoxhuntError, match="at least one step"):
        step.profile(0)
    step.close()


def test_children_behind_an_if_node_are_timed_around_it(runtime):
    flag, x = runtime.array(np.ones(1, np.uint32), "flag"), runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("gated")
    for name in ("first", "second"):
        with plan.child(name, reads=[], writes=[x], when=Flag(flag)) as c:
            c.launch("spin", (1,), (1,), dict(ns=15 * MS))
            c.launch("add_scalar", (N // 128,), (128,), dict(x=x, value=1.0, n=N))
    step = plan.build(steps_per_launch=3)
    found = step.profile(3, launches=False)
    assert [c.name for c in found.children] == ["first + second"]
    assert found.children[0].median_us >= 30_000 and found.children[0].kernels == 4
    assert found.step_us < 75_000  # one step, not the three of a launch
    assert not x.to_numpy().any()
    flag.fill(0)
    assert step.profile(3, launches=False).children[0].median_us < 15_000
    step.close()


def test_ranges_stand_around_each_child(branches):
    seen: list[str] = []

    @contextmanager
    def ranges(name):
        seen.append(name)
        yield
        seen.append(f"/{name}")

    branches.profile(1, launches=False, ranges=ranges)
    assert seen == [x for name in ("long", "short", "join") for x in 3 * [name, f"/{name}"]]


# ---------------------------------------------------------------- exports
def test_json_and_text(branches):
    found = branches.profile(2)
    again = json.loads(json.dumps(found.to_dict()))
    assert [c["name"] for c in again["children"]] == ["long", "short", "join"]
    assert again["launches"][0]["grid"] == [1]
    text = found.text()
    assert "longest chain 3" in text and "long.spin" in text and "join.sum" in text


def test_the_trace_is_what_perfetto_reads(branches):
    """Trace Event Format: X events with ts and dur, M events that name every pid and tid; spans of a track do not overlap."""
    trace = json.loads(json.dumps(branches.profile(2).trace()))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    names = [e for e in trace["traceEvents"] if e["ph"] == "M"]
    assert {e["ph"] for e in trace["traceEvents"]} == {"X", "M"}
    assert {(e["pid"], e["tid"]) for e in spans} <= {(e["pid"], e["tid"]) for e in names if e["name"] == "thread_name"}
    assert {e["pid"] for e in spans} <= {e["pid"] for e in names if e["name"] == "process_name"}
    assert [e["name"] for e in spans if e["cat"] == "child"] == ["long", "short", "join"]
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in spans:
        assert e["ts"] >= 0 and e["dur"] >= 0
        tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for track in tracks.values():
        track.sort()
        assert all(b[0] >= a[1] - 0.01 for a, b in zip(track, track[1:], strict=False))
    child = next(e for e in spans if e["cat"] == "child" and e["name"] == "long")
    inside = sum(e["dur"] for e in spans if e["cat"] == "launch" and e["name"] in ("spin", "add_scalar"))
    assert inside == pytest.approx(child["dur"], abs=0.01)


def test_lanes_keep_overlapping_spans_apart():
    assert lanes([(0, 10), (1, 2), (2, 3), (5, 6), (10, 11)]) == [0, 1, 1, 1, 0]
    assert lanes([]) == []
