"""Times of children on every step: who took how long, without a longer chain, and nothing that outlives the step."""

from __future__ import annotations

import gc
import logging
import math

import numpy as np
import pytest

from foxhunt_rt.driver import FoxhuntError, LifetimeError, counts
from foxhunt_rt.graph import Flag
from foxhunt_rt.graph.child_times import ChildTimes
from foxhunt_rt.graph.timing import StepTimer

N, MS = 256, 1_000_000


def build(runtime, k=1):
    """first (2 ms) -> second (4 ms); beside (1 ms), gated; the epilogue stamps begin and end as a step record does."""
    x, y = runtime.zeros(N, np.float32, "x"), runtime.zeros(N, np.float32, "y")
    flag = runtime.array(np.ones(1, np.uint32), "flag")
    plan = runtime.plan("timed")
    for name, ms in (("first", 2), ("second", 4)):
        with plan.child(name, reads=[], writes=[x]) as c:
            c.launch("spin", (1,), (1,), dict(ns=ms * MS))
            c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
    with plan.child("beside", reads=[], writes=[y], when=Flag(flag)) as c:
        c.launch("spin", (1,), (1,), dict(ns=MS))
    with plan.epilogue("tail", reads=[x], writes=[]) as c:
        c.launch("spin", (1,), (1,), dict(ns=MS))
    return plan.build(steps_per_launch=k), x


def span(times, n):
    """Begin and end of the n-th step, as near as the stamps know: what a record would hold."""
    row = times.ring.to_numpy()[n]
    return int(row[0]) - 3 * MS, int(row[:-1].max()) + MS


def test_each_child_has_its_own_time(runtime):
    step, x = build(runtime)
    times = ChildTimes(step)
    assert times.names == ["first", "second", "beside", "tail"]
    step.launch()
    runtime.synchronize()
    started, ended = span(times, 0)
    found = times.read(started, ended)
    assert found["first"] == pytest.approx(3000, abs=1)  # from the start that was made up above
    assert 4000 <= found["second"] < 40_000
    assert found["beside"] > 0 and found["tail"] >= 1000
    assert x.to_numpy()[0] == 2
    step.close()


def test_the_chain_is_no_longer_and_a_launch_is_one_call(runtime):
    step, _ = build(runtime)
    plain = step.composition.parent.longest_chain()
    nodes = len(step.composition.parent.nodes())
    ChildTimes(step)
    assert step.composition.parent.longest_chain() == plain
    assert len(step.composition.parent.nodes()) == nodes + 3
    with runtime.context.current():
        before = counts.copy()
        step.launch()
        assert counts - before == {"cuGraphLaunch": 1}
    assert step.verify(steps=2).bitwise_equal
    step.close()


def test_steps_of_one_launch_have_times_each(runtime):
    step, x = build(runtime, k=3)
    times = ChildTimes(step, capacity=8)
    step.launch()
    runtime.synchronize()
    assert times.counts.to_numpy().tolist() == [3, 3, 3, 0]
    ends = times.ring.to_numpy()[:3, 1]
    assert (np.diff(ends.astype(np.int64)) >= 6 * MS).all()
    assert x.to_numpy()[0] == 6
    step.close()


def test_what_was_overwritten_is_not_a_number(runtime):
    step, _ = build(runtime)
    times = ChildTimes(step, capacity=1)
    step.launch()
    runtime.synchronize()
    started, ended = span(times, 0)
    step.launch()
    runtime.synchronize()
    found = times.read(started, ended)
    assert math.isnan(found["first"]) and math.isnan(found["second"]) and math.isnan(found["tail"])
    step.close()


def test_the_log_has_the_children(runtime, caplog):
    step, _ = build(runtime)
    timer = StepTimer()
    timer.children = times = ChildTimes(step)
    timer.launch(step)
    runtime.synchronize()
    started, ended = span(times, 0)
    with caplog.at_level(logging.INFO, logger="foxhunt_rt.step"):
        timer.record(lambda: {"started_ns": started, "ended_ns": ended})
    assert len(caplog.records) == 2
    assert caplog.records[1].message.startswith("step      0  children first 3000.0  second ")
    assert list(timer.last_children) == times.names
    step.close()


def test_the_step_owns_what_it_stamps_into(runtime):
    step, x = build(runtime)
    times = ChildTimes(step)
    ring, modules = times.ring, len(runtime.modules)
    with pytest.raises(LifetimeError, match="used by 1 built graph"):
        ring.free()
    del times, ring
    gc.collect()
    for _ in range(3):
        step.launch()
    assert x.to_numpy()[0] == 6
    step.close()
    assert len(runtime.modules) < modules


def test_ungraphed_steps_are_refused(runtime, monkeypatch):
    monkeypatch.setenv("FOXHUNT_GRAPH", "off")
    step, _ = build(runtime)
    with pytest.raises(FoxhuntError, match="launches ungraphed, so nothing would be stamped"):
        ChildTimes(step)
    step.close()
