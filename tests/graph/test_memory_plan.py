"""The memory plan: what is listed beforehand is what is allocated, label by label, and nothing is while it is listed."""

from __future__ import annotations

import gc
import re
from collections import Counter

import numpy as np
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import DriverError, FoxhuntError, live_allocations
from foxhunt_rt.graph.memory_plan import Item, MemoryExceeded, MemoryPlan, PlanningRuntime, require_memory
from foxhunt_rt.kernels import ArgumentError, images
from foxhunt_rt.testing import assert_calls


def program(rt):
    """Buffers, a plan and an ungraphed user; returns the built step and the buffer that it does not keep."""
    x = rt.array(np.arange(1000, dtype=np.float32), "x")
    total = rt.zeros((1,), np.float32, "total")
    records = rt.mapped(100, np.uint64, "records")
    plan = rt.plan("small")
    with plan.child("increment", reads=[], writes=[x]) as c:
        c.launch("add_scalar", (8,), (128,), dict(x=x, value=1.0, n=1000))
    with plan.child("total", reads=[x], writes=[total]) as c:
        c.launch("sum", (1,), (256,), dict(x=x, sum=total, n=1000))
    rt.ungraphed("user").launch("add_scalar", (8,), (128,), dict(x=x, value=1.0, n=1000))
    return plan.build(), records


def buffers(plan):
    return Counter((i.label, i.nbytes) for i in plan.items if i.kind != "module")


def test_what_is_listed_is_what_the_program_asks_for():
    rt = PlanningRuntime("host")
    step, _records = program(rt)
    plan = rt.memory()
    step.close()
    assert buffers(plan) == {("x", 4000): 1, ("total", 4): 1, ("records", 800): 1}
    size = len(images.find("sum", "host").read())
    assert [i for i in plan.items if i.kind == "module"] == [Item("module basic", size, "module")] * 5
    assert plan.total("device") == 4096 + 256 and plan.total("mapped") == 1024
    assert plan.device_bytes == plan.total("device") + plan.total("module")
    text = plan.text()
    assert "records" in text and "module basic" in text and f"device {plan.device_bytes:,} bytes" in text


def test_planning_makes_no_driver_call(runtime):
    gc.collect()  # of earlier tests
    with assert_calls({}, also=()):
        rt = PlanningRuntime("host")
        program(rt)
        rt.memory()


def test_what_is_given_back_counts_for_the_peak_alone():
    rt = PlanningRuntime("host")
    kept = rt.zeros(256, np.uint8, "kept")
    rt.zeros(1024, np.uint8, "dropped")
    freed = rt.zeros(512, np.uint8, "freed")
    freed.free()
    plan = rt.memory()
    assert [i.label for i in plan.items] == ["kept"] and kept.alive and not freed.alive
    assert (plan.total("device"), plan.peak_bytes) == (256, 256 + 1024)
    with pytest.raises(MemoryExceeded, match="1,280 bytes are needed"):
        plan.check(1279)


def test_mistakes_are_found_as_ever():
    rt = PlanningRuntime("host")
    x = rt.zeros(10, np.float32, "x")
    with pytest.raises(ArgumentError, match="x"):
        rt.ungraphed("u").launch("add_scalar", (1,), (32,), dict(x=x, value=1.0, n=11))
    with pytest.raises(FoxhuntError, match="holds nothing"):
        rt.zeros((3, 0), np.float32, "y")
    with pytest.raises(FoxhuntError, match="convert it first"):
        x.copy_from(np.zeros(9, np.float32))
    assert not x[2:5].to_numpy().any() and x.view((5, 2)).shape == (5, 2)


@pytest.mark.parametrize("launches", [1, 3])
def test_the_plan_of_a_learner_holds(runtime, launches):
    """The bar is 2 %; what is met is equality, label by label."""
    config = Config().with_set(["network.hidden=50,33", "network.atoms=21", "replay.capacity=1000", "replay.batch=19",
                                "loss.v_min=-3", "loss.v_max=3", f"train.steps_per_launch={launches}"])  # fmt: skip
    rt = PlanningRuntime("host")
    planned_learner = Learner(rt, config, 37, (3, 4, 2))
    planned = buffers(rt.memory())
    planned_learner.close()
    gc.collect()  # of earlier tests
    before = Counter(live_allocations())
    learner = Learner(runtime, config, 37, (3, 4, 2))
    made = Counter(live_allocations())
    made.subtract(before)
    made = Counter({item: n for item, n in made.items() if n})
    size = lambda items: sum(nbytes * n for (_, nbytes), n in items.items())  # noqa: E731
    assert size(planned) == pytest.approx(size(made), rel=0.02)
    plain = lambda items: Counter({(re.sub(r"#\d+", "", label), n): k for (label, n), k in items.items()})  # noqa: E731
    assert plain(planned) == plain(made)
    learner.close()


def test_too_large_is_refused_with_the_largest_three():
    plan = MemoryPlan((Item("replay.state", 2**40, "device"), Item("pinned", 2**39, "mapped"), Item("theta", 2**30, "device"),
                       Item("grad", 2**20, "device"), Item("small", 4, "device")))  # fmt: skip
    plan.check(2**41)
    with pytest.raises(MemoryExceeded, match=r"1,100,586,418,432 bytes are needed and 1,024 are there; the largest are "
                       r"replay.state 1,099,511,627,776, theta 1,073,741,824, grad 1,048,576: make"):  # fmt: skip
        plan.check(1024)


def test_a_planned_step_cannot_be_launched():
    step, _ = program(PlanningRuntime("host"))
    with pytest.raises((AttributeError, DriverError)):
        step.launch()


def test_the_plan_holds_on_the_device(runtime):
    """To within 2 % of what the driver's free memory says, where the driver's own granularity (2 MiB) does not dominate."""
    config = Config().with_set(["network.hidden=64", "network.atoms=11", "replay.capacity=1048576", "replay.batch=32",
                                "loss.v_min=-3", "loss.v_max=3"])  # fmt: skip
    Learner(
        runtime, config.with_set(["replay.capacity=1024"]), 64, (3, 2)
    ).close()  # what a first learner makes the driver keep
    gc.collect()
    found = []
    plan = require_memory(runtime, lambda rt: Learner(rt, config, 64, (3, 2)))
    before = runtime.context.memory_info()[0]
    learner = Learner(runtime, config, 64, (3, 2))
    found.append(before - runtime.context.memory_info()[0])
    print(f"planned {plan.device_bytes:,}, taken {found[0]:,}")
    assert plan.device_bytes > 250e6
    assert found[0] == pytest.approx(plan.device_bytes, rel=0.02)
    learner.close()


def test_an_agent_that_does_not_fit_is_refused_before_it_allocates(runtime):
    from foxhunt_rt.dqn import Agent

    config = Config().with_set(["network.hidden=32", "network.atoms=11", "loss.v_min=-3", "loss.v_max=3"])
    gc.collect()
    before = live_allocations()
    with pytest.raises(
        MemoryExceeded, match=r"bytes are needed and [\d,]+ are there; the largest are replay\.state [\d,]+, "
    ):
        Agent(16384, [2], config.with_set(["replay.capacity=16777216"]), runtime)
    gc.collect()
    assert live_allocations() == before
    with Agent(4, [2], config.with_set(["replay.capacity=4096"]), runtime) as agent:
        made = Counter(live_allocations()) - Counter(before)
        assert agent.memory.total("device", "mapped") == sum(-(-n // 256) * 256 * k for (_, n), k in made.items())
