"""Gated children and K steps decided by the host: the same bits as by conditional nodes, from executables made when needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt.driver import FoxhuntError, counts
from foxhunt_rt.graph import ChildTimes, Flag, Flattened, Runtime, Slot, StepGraph, Watchdog
from foxhunt_rt.graph.host_decisions import pieces

N = 100


def add(child: Any, buffer: Any, value: Any) -> None:
    child.launch("add_scalar", (2,), (64,), dict(x=buffer, value=value, n=buffer.shape[0]))


def gated(runtime: Runtime, built: list[StepGraph], word: Any, masks: tuple[int, ...] = (1, 2), **options: Any) -> Any:
    """x += 1, then a child a mask that adds 10, 100, ... when its flag is raised; then total = sum of x."""
    x, total = runtime.zeros(N, np.float32, "x"), runtime.zeros(1, np.float32, "total")
    plan = runtime.plan("hosted")
    with plan.child("always", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    for i, mask in enumerate(masks):
        with plan.child(f"gated{i}", reads=[], writes=[x], when=Flag(word, mask=mask)) as c:
            add(c, x, Slot(10.0 ** (i + 1)))
    with plan.child("total", reads=[x], writes=[total]) as c:
        c.launch("sum", (1,), (64,), dict(x=x, sum=total, n=N))
    built.append(plan.build(**options))
    return built[-1], x, total


@pytest.mark.parametrize("value", [0, 1, 2, 3])
@pytest.mark.parametrize("k", [1, 3])
def test_the_host_gives_the_bits_that_the_device_gives(
    runtime: Runtime, built: list[StepGraph], value: int, k: int
) -> None:
    word = runtime.array(np.array([value], np.uint32), "word")
    digests = set()
    for decisions in ("device", "host"):
        step, x, total = gated(runtime, built, word, steps_per_launch=k, decisions=decisions)
        assert step.info()["decided_by"] == decisions
        found = step.verify(steps=5)
        assert found.bitwise_equal, str(found)
        digests |= {m.digest for m in found.modes}
        step.launch()
        expected = k * (1 + 10 * (value & 1) + 100 * (value >> 1))
        assert x.to_numpy().tolist() == [expected] * N
        assert total.to_numpy()[0] == N * expected
    assert len(digests) == 1


def test_an_executable_is_made_when_it_is_first_needed(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.zeros(1, np.uint32, "word")
    step, x, _ = gated(runtime, built, word, decisions="host")
    assert step.info()["executables"] == 2, "the plain and the due one"
    expected = 0
    for value, executables in ((0, 2), (3, 2), (1, 3), (0, 3), (1, 3), (2, 4)):
        word.copy_from(np.array([value], np.uint32))
        before = counts["cuGraphInstantiate"], counts["cuGraphLaunch"]
        made = step.info()["executables"]
        step.launch()
        expected += 1 + 10 * (value & 1) + 100 * (value >> 1)
        assert x.to_numpy()[0] == expected
        assert step.info()["executables"] == executables
        after = counts["cuGraphInstantiate"] - before[0], counts["cuGraphLaunch"] - before[1]
        assert after == (executables - made, 1)


def written_within(runtime: Runtime, built: list[StepGraph], decisions: str) -> Any:
    """The word is raised by a child, seen, cleared by the next, and not seen behind it."""
    word, raise_, side = (runtime.zeros(16, np.uint32, name) for name in ("word", "raise", "side"))
    raise_.copy_from(np.full(16, 7, np.uint32))
    y, z = runtime.zeros(N, np.float32, "y"), runtime.zeros(N, np.float32, "z")
    flag = Flag(word[3:4])
    plan = runtime.plan("within")
    with plan.child("early", reads=[], writes=[z], when=flag) as c:
        add(c, z, 100.0)
    with plan.child("raises", reads=[raise_], writes=[side], private=[word]) as c:
        c.copy(word, raise_)
        c.memset(side, 1)
    with plan.child("between", reads=[], writes=[y], when=flag) as c:
        add(c, y, 1.0)
    with plan.child("clears", reads=[], writes=[side], private=[word]) as c:
        c.memset(word, 0)
    with plan.child("behind", reads=[], writes=[z], when=flag) as c:
        add(c, z, 1.0)
    built.append(plan.build(decisions=decisions))
    return built[-1], y, z


def test_a_step_is_cut_where_it_writes_its_own_flag(runtime: Runtime, built: list[StepGraph]) -> None:
    step, y, z = written_within(runtime, built, "host")
    assert pieces(step.children) == [[0, 1], [2, 3], [4]]
    assert step.info()["pieces"] == 3
    for _ in range(3):
        step.launch()
    assert (y.to_numpy()[0], z.to_numpy()[0]) == (3, 0)
    found = step.verify(steps=2)
    assert found.bitwise_equal, str(found)
    other, _, _ = written_within(runtime, built, "device")
    other.launch(), other.launch(), other.launch()
    assert other.verify(steps=2).modes[0].digest == found.modes[0].digest


def test_order_goes_through_children_that_are_left_out(runtime: Runtime, built: list[StepGraph]) -> None:
    """first -> gated -> last, and no direct edge: without the gated child the last still follows the first."""
    x, y, word = (
        runtime.zeros(N, np.float32, "x"),
        runtime.zeros(N, np.float32, "y"),
        runtime.zeros(1, np.uint32, "word"),
    )
    plan = runtime.plan("order")
    with plan.child("first", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    with plan.child("gated", reads=[], writes=[x, y], when=Flag(word)) as c:
        add(c, y, 5.0)
    with plan.child("last", reads=[x], writes=[y]) as c:
        add(c, y, 1.0)
    step = plan.build(decisions="host")
    built.append(step)
    assert plan.dependencies() == [(0, 1), (1, 2)]
    ((composition, _),) = [made for made in step.host.holders(0) if made[0].nodes[1] is None]  # type: ignore[union-attr]
    assert composition.parent.edges() == [(int(composition.nodes[0]), int(composition.nodes[2]))]


def test_k_launches_end_at_the_stop_flag(runtime: Runtime, built: list[StepGraph]) -> None:
    """Counts down: the stop flag is the counter's highest bit, raised when 3 steps have run."""
    x, word = runtime.zeros(N, np.float32, "x"), runtime.zeros(1, np.uint32, "word")
    plan = runtime.plan("stop")
    with plan.child("work", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    step = plan.build(steps_per_launch=4, stop=Flag(word), decisions="host")
    built.append(step)
    step.launch()
    step.launch(2)
    assert x.to_numpy()[0] == 6
    word.copy_from(np.ones(1, np.uint32))
    assert step.stopped()
    step.launch()
    assert x.to_numpy()[0] == 6
    word.fill(0)
    step.launch(1)
    assert x.to_numpy()[0] == 7
    with pytest.raises(FoxhuntError, match="it was built for 1 to 4"):
        step.launch(5)


def test_a_stop_flag_that_a_step_raises_ends_the_launch(runtime: Runtime, built: list[StepGraph]) -> None:
    digests = set()
    for decisions in ("device", "host"):
        n = 16
        word, ones = runtime.zeros(n, np.uint32, "word"), runtime.array(np.ones(n, np.uint32), "ones")
        x = runtime.zeros(N, np.float32, "x")
        plan = runtime.plan("raises")
        with plan.child("work", reads=[ones], writes=[x, word]) as c:
            add(c, x, 1.0)
            c.copy(word, ones)
        step = plan.build(steps_per_launch=8, stop=Flag(word[0:1]), decisions=decisions)
        built.append(step)
        step.launch()
        assert x.to_numpy()[0] == 1
        word.fill(0)
        digests.add(step.verify(steps=8).modes[-1].digest)
    assert len(digests) == 1


def test_slots_reach_every_executable(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.array(np.array([1], np.uint32), "word")
    step, x, _ = gated(runtime, built, word, decisions="host")
    step.launch()
    step.set("gated0", "add_scalar", value=20.0)
    step.launch()
    word.copy_from(np.array([3], np.uint32))
    step.launch()
    assert x.to_numpy()[0] == 11 + 21 + 121
    found = step.verify(steps=2)
    assert found.bitwise_equal, str(found)


def test_an_update_takes_the_executables_along(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.array(np.array([1], np.uint32), "word")
    step, x, _ = gated(runtime, built, word, decisions="host")
    y, total = runtime.zeros(N, np.float32, "y"), runtime.zeros(1, np.float32, "total")
    plan = runtime.plan("again")
    flags = [c.when for c in step.children]
    for child, value in zip(("always", "gated0", "gated1"), (2.0, 20.0, 200.0)):
        with plan.child(child, reads=[], writes=[y], when=flags[len(plan.children)]) as c:
            add(c, y, value)
    with plan.child("total", reads=[y], writes=[total]) as c:
        c.launch("sum", (1,), (64,), dict(x=y, sum=total, n=N))
    step.update(plan)
    step.launch()
    assert (x.to_numpy()[0], y.to_numpy()[0], total.to_numpy()[0]) == (0, 22, 22 * N)
    assert step.verify(steps=2).bitwise_equal


def test_children_are_timed(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.zeros(1, np.uint32, "word")
    step, x, _ = gated(runtime, built, word, decisions="host")
    times = ChildTimes(step, capacity=8)
    assert times.names == ["always", "gated0", "gated1", "total"]
    for value in (0, 3, 1):
        word.copy_from(np.array([value], np.uint32))
        step.launch()
    assert times.counts.to_numpy().tolist() == [3, 2, 1, 3]
    assert x.to_numpy()[0] == 3 + 20 + 100
    assert (times.ring.to_numpy()[:3, 0] > 0).all()


def test_what_looks_into_one_executable_is_refused(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.zeros(1, np.uint32, "word")
    step, *_ = gated(runtime, built, word, decisions="host")
    for what in (step.single, step.profile, lambda: Watchdog(step)):
        with pytest.raises(FoxhuntError, match="needs one executable, and the host picks among 2"):
            what()
    with pytest.raises(FoxhuntError, match="stands behind an IF node"):
        Flattened(step)
    with pytest.raises(FoxhuntError, match="decisions='both' is unknown"):
        gated(runtime, built, word, decisions="both")


def test_a_plan_with_nothing_to_decide_is_as_ever(runtime: Runtime, built: list[StepGraph]) -> None:
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("plain")
    with plan.child("a", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    built.append(plan.build(decisions="host"))
    assert built[0].info()["decided_by"] == "nobody"
    before = dict(counts)
    built[0].launch()
    assert counts["cuGraphLaunch"] - before["cuGraphLaunch"] == 1
    assert counts["cuStreamSynchronize"] == before["cuStreamSynchronize"]
