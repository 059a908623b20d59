"""The watchdog: a replay that stops is named by child; one that is merely long, idle or queued is not."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

from foxhunt_rt.driver import FoxhuntError, counts
from foxhunt_rt.graph import Slot
from foxhunt_rt.graph.watchdog import Watchdog

N = 64


def build(runtime, spin_ms=0.0, parallel=False, **options):
    """first → slow → last on x, and beside it, if wanted, "beside" on y."""
    x, y = runtime.zeros(N, np.float32, "x"), runtime.zeros(N, np.float32, "y")
    plan = runtime.plan("watched")
    with plan.child("first", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
    if parallel:
        with plan.child("beside", reads=[], writes=[y]) as c:
            c.launch("add_scalar", (1,), (N,), dict(x=y, value=1.0, n=N))
    with plan.child("slow", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
        c.launch("spin", (1,), (1,), dict(ns=Slot(0, "delay")))
    with plan.child("last", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
    step = plan.build(**options)
    step.set("slow", "spin", ns=int(spin_ms * 1e6))
    return step, x


def test_a_spinning_kernel_is_named_while_it_spins(runtime):
    step, x = build(runtime, parallel=True)
    told = threading.Event()
    with Watchdog(step, 0.15, lambda hang: told.set()) as dog:
        step.launch()
        runtime.synchronize()
        assert dog.hang is None and x.to_numpy()[0] == 3
        step.set("slow", "spin", ns=1_500_000_000)
        started = time.monotonic()
        waiter = threading.Thread(target=lambda: (step.launch(), runtime.synchronize()))
        waiter.start()
        assert told.wait(10)
        assert time.monotonic() - started < 1.4, "told while the kernel still spins"
        assert waiter.is_alive()
        waiter.join()
        hang = dog.hang
    assert hang.stopped_in == ("slow (add_scalar, spin)",)
    assert hang.not_begun == ("last",) and "first" in hang.done
    assert "stopped in child slow (add_scalar, spin); done: first" in str(hang)
    assert x.to_numpy()[0] == 6
    step.close()


def test_long_steps_that_move_and_an_idle_step_are_no_hang(runtime):
    step, _ = build(runtime, spin_ms=60)
    with Watchdog(step, 0.5) as dog:
        # 0.6 s in all, each far below the limit; steps queued at once would have to be below it together
        for _ in range(10):
            step.launch()
            runtime.synchronize()
        time.sleep(0.7)
        assert dog.hang is None
    step.close()


def test_the_default_is_a_line_of_the_log(runtime, caplog):
    step, _ = build(runtime, spin_ms=500)
    with caplog.at_level(logging.CRITICAL, "foxhunt_rt.watchdog"), Watchdog(step, 0.1):
        step.launch()
        runtime.synchronize()
    assert len(caplog.records) == 1 and "stopped in child slow" in caplog.text
    step.close()


def test_a_watched_launch_is_one_launch_and_the_step_is_as_before(runtime):
    step, x = build(runtime)
    own = step.executable
    with Watchdog(step, 5.0):
        before = counts["cuGraphLaunch"]
        for _ in range(3):
            step.launch()
        assert counts["cuGraphLaunch"] == before + 3
        assert step.executable is not own
        step.set("slow", "spin", ns=40_000_000)
    assert step.executable is own and x.to_numpy()[0] == 9
    runtime.synchronize()
    started = time.perf_counter()
    step.launch()
    runtime.synchronize()
    assert time.perf_counter() - started > 0.04, "what was set while it was watched holds afterwards"
    assert step.verify(2).bitwise_equal
    step.close()


def test_what_cannot_be_watched_is_refused(runtime, monkeypatch):
    step, _ = build(runtime, steps_per_launch=2)
    with pytest.raises(FoxhuntError, match="runs 2 steps a launch: watch a build with steps_per_launch=1"):
        Watchdog(step)
    step.close()
    monkeypatch.setenv("FOXHUNT_GRAPH", "off")
    step, _ = build(runtime)
    with pytest.raises(FoxhuntError, match="FOXHUNT_GRAPH=off"):
        Watchdog(step)
    step.close()
