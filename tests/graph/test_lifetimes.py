"""What a built graph holds lives as long as the graph and no longer: replays outlive every user reference, and building and
launching again and again takes no more memory than doing it once, on the device, in the driver, and in Python."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import driver
from foxhunt_rt.driver import FoxhuntError, LifetimeError, counts
from foxhunt_rt.graph import Flag, Runtime, StepGraph

N = 256
LIVE = [b"live." + name for name in (b"allocations", b"modules", b"streams", b"events", b"graphs", b"graph_execs")]


def build(rt: Runtime, x: Any, word: Any, *, steps_per_launch: int = 1) -> StepGraph:
    """Two children, one of them gated; every kind of thing a graph owns."""
    plan = rt.plan("again")
    with plan.child("a", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
        c.memset(x[: N // 2], 3)
    with plan.child("b", reads=[], writes=[x], when=Flag(word)) as c:
        c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
    return plan.build(steps_per_launch=steps_per_launch)


def held(rt: Runtime) -> dict[str, Any]:
    """What this process and the driver hold, after a collection."""
    gc.collect()
    rt.synchronize()
    sim = driver.hostsim()
    found: dict[str, Any] = {
        "modules of the pool": len(rt.modules), "rows of the ledger": len(rt.ledger.entries()), "plans": len(rt._plans),
        "bytes allocated": sum(size for _, size in driver.live_allocations()), "free device bytes": rt.context.memory_info()[0],
        "finalizers": len(rt.context._owned), "objects": len(gc.get_objects()),
    }  # fmt: skip
    if sim is not None:
        found |= {name.decode(): sim.fxHostsimCounter(name) for name in LIVE}
    return found


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def assert_flat(rt: Runtime, again: Callable[[], None], times: int, *, warm: int = 3, slack: int = 8) -> None:
    """After ``warm`` rounds (caches, the first use of things), ``times`` more leave every count where it was: Python objects but
    for ``slack``, resident memory but for 8 MB, and the counts of the driver without any."""
    for _ in range(warm):
        again()
        held(rt)  # which fills caches of its own
    before, resident = held(rt), resident_bytes()
    for _ in range(times):
        again()
    after = held(rt)
    grown = after.pop("objects") - before.pop("objects")
    assert after == before
    assert grown <= slack, f"{grown} objects more after {times} rounds: {kinds()}"
    assert resident_bytes() - resident < 8 << 20


def kinds() -> list[tuple[str, int]]:
    return Counter(type(o).__name__ for o in gc.get_objects()).most_common(12)


@pytest.fixture
def x(runtime: Runtime) -> Any:
    return runtime.zeros(N, np.float32, "x")


@pytest.fixture
def word(runtime: Runtime) -> Any:
    return runtime.array(np.ones(1, np.uint32), "word")


def once(rt: Runtime, x: Any, word: Any, end: str, steps_per_launch: int) -> None:
    step = build(rt, x, word, steps_per_launch=steps_per_launch)
    step.launch()
    step.run_children()
    step.run_ungraphed()
    if end == "closed":
        step.close()


@pytest.mark.parametrize("steps_per_launch", [1, 3])
@pytest.mark.parametrize("end", ["closed", "collected"])
def test_rebuilding_takes_nothing(runtime: Runtime, x: Any, word: Any, end: str, steps_per_launch: int) -> None:
    assert_flat(runtime, lambda: once(runtime, x, word, end, steps_per_launch), 12)
    x.free()  # nobody uses it any more


@pytest.mark.slow
@pytest.mark.parametrize("end", ["closed", "collected"])
def test_two_hundred_rebuilds_take_nothing(runtime: Runtime, x: Any, word: Any, end: str) -> None:
    assert_flat(runtime, lambda: once(runtime, x, word, end, 1), 200)


def launches(runtime: Runtime, x: Any, word: Any, count: int) -> None:
    step = build(runtime, x, word)

    def some() -> None:
        for _ in range(count // 10):
            step.launch()

    assert_flat(runtime, some, 10, warm=1)
    step.close()


def test_launching_takes_nothing(runtime: Runtime, x: Any, word: Any) -> None:
    launches(runtime, x, word, 500)


@pytest.mark.slow
def test_ten_thousand_launches_take_nothing(runtime: Runtime, x: Any, word: Any) -> None:
    launches(runtime, x, word, 10_000)


def test_a_build_that_fails_takes_nothing(runtime: Runtime, x: Any, word: Any) -> None:
    class Breaks:
        def issue(self, context: Any, stream: Any, functions: Any) -> None:
            raise FoxhuntError("in the middle")

    def fails() -> None:
        plan = runtime.plan("fails")
        with plan.child("a", reads=[], writes=[x]) as c:
            c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
        plan.children[0].ops.append(Breaks())  # type: ignore[arg-type]
        with pytest.raises(FoxhuntError, match="in the middle"):
            plan.build()

    assert_flat(runtime, fails, 10)


def test_a_replay_outlives_every_reference_to_what_it_uses(runtime: Runtime) -> None:
    def make() -> tuple[StepGraph, Any]:
        x, y = runtime.array(np.arange(N, dtype=np.float32), "x"), runtime.zeros(N, np.float32, "y")
        total = runtime.zeros(1, np.float32, "total")
        plan = runtime.plan("outlives")
        with plan.child("copy", reads=[x], writes=[y]) as c:
            c.copy(y, x)
            c.launch("add_scalar", (1,), (N,), dict(x=y, value=2.0, n=N))
        with plan.child("total", reads=[y], writes=[total]) as c:
            c.launch("sum", (1,), (128,), dict(x=y, sum=total, n=N))
        return plan.build(), total

    step, total = make()
    checksum = N * (N - 1) / 2 + 2 * N
    for _ in range(3):
        gc.collect()
        rubble = [runtime.array(np.full(N, -1, np.float32), "rubble") for _ in range(20)]  # takes whatever was freed
        step.launch()
        assert total.to_numpy()[0] == checksum
        del rubble
    step.close()


def test_a_dropped_graph_waits_for_its_launches(runtime: Runtime, x: Any, word: Any) -> None:
    step = build(runtime, x, word)
    x.fill(0)
    for _ in range(5):
        step.launch()
    before = counts["cuGraphLaunch"]
    del step
    gc.collect()
    assert counts["cuGraphLaunch"] == before
    assert x.to_numpy().tolist() == [x.to_numpy()[0]] * (N // 2) + [10.0] * (N // 2)
    x.free()


def test_a_module_of_a_graph_is_not_unloaded(runtime: Runtime, x: Any, word: Any) -> None:
    step = build(runtime, x, word)
    modules = [m for m in gc.get_objects() if type(m) is driver.Module and m.pins]
    assert modules
    for module in modules:
        with pytest.raises(LifetimeError, match="is used by .* close those first"):
            module.unload()
    step.launch()
    step.close()
    assert not any(m.pins for m in modules)


def test_a_buffer_is_not_freed_before_the_work_queued_on_it_is_done(runtime: Runtime) -> None:
    """Nothing but the buffer's own reference holds it: the launches are in no graph."""
    user, done = runtime.ungraphed("u"), runtime.mapped(1, np.float32, "done")
    for k in range(5):
        x = runtime.array(np.full(N, k, np.float32), "x")
        user.launch("spin", (1,), (1,), dict(ns=2_000_000))
        user.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
        user.launch("sum", (1,), (128,), dict(x=x, sum=done, n=N))
        del x
        rubble = [runtime.array(np.full(N, -1, np.float32), "rubble") for _ in range(5)]  # takes what was freed
        runtime.synchronize()
        assert done.host[0] == N * (k + 1)
        del rubble


def test_threads_that_hand_over_queue_in_the_order_of_their_calls(runtime: Runtime, x: Any) -> None:
    """No wait for the device between them: one stream orders the work, and here futures order the calls."""
    plan = runtime.plan("count")
    with plan.child("a", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
    step, seen = plan.build(), runtime.zeros((20, N), np.float32, "seen")
    x.fill(0)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for k in range(20):
            one.submit(step.launch).result()
            other.submit(driver.copy_device, runtime.context, seen[k : k + 1], x, runtime.stream).result()
    assert seen.to_numpy()[:, 0].tolist() == list(range(1, 21))
    step.close()


def test_two_builds_of_one_plan_end_each_by_itself(runtime: Runtime, x: Any) -> None:
    plan = runtime.plan("twice")
    with plan.child("a", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (1,), (N,), dict(x=x, value=1.0, n=N))
    first, second = plan.build(), plan.build()
    first.close()
    x.fill(0)
    second.launch()
    assert x.to_numpy()[0] == 1
    assert second.verify().bitwise_equal
    second.close()
    third = plan.build()
    third.launch()
    assert x.to_numpy()[0] == 2
    third.close()


def test_a_closed_graph_says_so(runtime: Runtime, x: Any, word: Any) -> None:
    step = build(runtime, x, word)
    step.close()
    step.close()
    for use in (step.launch, step.run_ungraphed, step.run_children, step.verify, step.profile, step.single,
                lambda: step.update(step.plan), lambda: step.set("a", "add_scalar", value=2.0)):  # fmt: skip
        with pytest.raises(LifetimeError, match="again is closed: build the plan again|is closed"):
            use()


@pytest.mark.hostsim
def test_a_closed_runtime_leaves_nothing(runtime: Runtime) -> None:
    """Also its streams and events, for which the driver wants a current context, and none is where close is called."""
    sim = driver.hostsim()
    assert sim is not None

    def again() -> list[int]:
        with Runtime() as other:
            y, flag = other.zeros(N, np.float32, "x"), other.zeros(1, np.uint32, "flag")
            other.stream.wait(runtime.stream)  # makes an event
            build(other, y, flag, steps_per_launch=2).launch()
        gc.collect()
        return [int(sim.fxHostsimCounter(name)) for name in LIVE]

    assert again() == again()
