"""Slots of a built graph, names of its nodes, and updates of a whole executable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt.config import Config, ConfigError
from foxhunt_rt.driver import FoxhuntError, LifetimeError, counts
from foxhunt_rt.graph import BakedValueError, Const, DeclarationError, Flag, Runtime, Slot, StepGraph, UpdateRefused
from foxhunt_rt.kernels import ArgumentError

N = 100


def add(child: Any, buffer: Any, value: Any, n: Any = N) -> None:
    child.launch("add_scalar", (2,), (64,), dict(x=buffer, value=value, n=n))


@pytest.fixture
def adder(runtime: Runtime, built: list[StepGraph]) -> tuple[StepGraph, Any, Any]:
    """x += slot, x += slot; y += slot over a slot of elements."""
    x, y = runtime.zeros(N, np.float32, "x"), runtime.zeros(N, np.float32, "y")
    plan = runtime.plan("slots")
    with plan.child("twice", reads=[], writes=[x]) as c:
        add(c, x, Slot(1.0))
        add(c, x, Slot(10.0, "config.step"))
    with plan.child("other", reads=[], writes=[y]) as c:
        c.memset(y, 0)
        add(c, y, Slot(5.0), n=Slot(N))
    built.append(plan.build(steps_per_launch=2))
    return built[0], x, y


def test_a_slot_changes_in_every_way_to_run(runtime: Runtime, adder: tuple[StepGraph, Any, Any]) -> None:
    step, x, _ = adder
    assert step.verify(steps=3).bitwise_equal  # makes every executable there is
    step.set("twice", "add_scalar", 0, value=2.0)
    expected = 0.0
    for run, times in ((step.launch, 2), (step.run_ungraphed, 1), (step.run_children, 1)):
        run()
        expected += 12.0 * times
        assert x.to_numpy().tolist() == [expected] * N
    assert step.verify(steps=3).bitwise_equal
    step.set("twice", "add_scalar", value=0.5)  # both
    step.launch(1)
    assert x.to_numpy()[0] == expected + 1.0


def test_executables_made_after_a_change_have_it(runtime: Runtime, adder: tuple[StepGraph, Any, Any]) -> None:
    step, x, _ = adder
    step.set("twice", "add_scalar", value=3.0)
    step.run_children()
    assert x.to_numpy()[0] == 6
    with runtime.context.current():
        step.single().launch(runtime.stream)
    assert x.to_numpy()[0] == 12


def test_queued_launches_keep_the_value_they_were_queued_with(
    runtime: Runtime, adder: tuple[StepGraph, Any, Any]
) -> None:
    step, x, _ = adder
    for value in (1.0, 2.0, 4.0):
        step.set("twice", "add_scalar", 0, value=value)
        step.launch(1)
    assert x.to_numpy()[0] == 3 * 10 + 7


def test_setting_captures_nothing_and_does_not_synchronize(adder: tuple[StepGraph, Any, Any]) -> None:
    step, *_ = adder
    step.set("twice", "add_scalar", value=1.0)
    before = dict(counts)
    step.set("twice", "add_scalar", value=2.0)
    used = {name for name, n in counts.items() if n != before.get(name, 0)}
    assert used <= {
        "cuGraphKernelNodeSetParams",
        "cuGraphExecKernelNodeSetParams",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
    }


def test_a_size_is_checked_against_its_buffers(adder: tuple[StepGraph, Any, Any]) -> None:
    step, _, y = adder
    step.set("other", "add_scalar", n=3)
    step.launch(1)
    assert y.to_numpy().tolist() == [5, 5, 5] + [0] * (N - 3)
    with pytest.raises(ArgumentError, match="the launch touches 404"):
        step.set("other", "add_scalar", n=N + 1)
    with pytest.raises(ArgumentError, match="is no integer"):
        step.set("other", "add_scalar", n=2.5)
    step.launch(1)
    assert y.to_numpy().sum() == 15, "a refused change changes nothing"


def test_a_pointer_slot_stays_within_the_declaration(runtime: Runtime, built: list[StepGraph]) -> None:
    x, other = runtime.zeros(2 * N, np.float32, "x"), runtime.zeros(N, np.float32, "other")
    plan = runtime.plan("pointer")
    with plan.child("a", reads=[], writes=[x]) as c:
        add(c, Slot(x[:N]), 1.0)
    built.append(plan.build())
    built[0].set("a", "add_scalar", x=x[N:])
    built[0].launch()
    assert (x.to_numpy()[:N].sum(), x.to_numpy()[N:].sum()) == (0, N)
    with pytest.raises(DeclarationError, match="writes other, which is not declared"):
        built[0].set("a", "add_scalar", x=other)


def test_what_was_baked_says_where_it_came_from(runtime: Runtime, built: list[StepGraph]) -> None:
    """Known failure K8: replays kept the value of capture time."""
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("baked")
    with plan.child("a", reads=[], writes=[x]) as c:
        add(c, x, Const(1.0, "config.value"), n=N)
    built.append(plan.build())
    with pytest.raises(
        BakedValueError, match=r"a\.add_scalar: value was baked by value at capture \(from config\.value\)"
    ):
        built[0].set("a", "add_scalar", value=2.0)
    with pytest.raises(BakedValueError, match="n was baked by value"):
        built[0].set("a", "add_scalar", n=2)
    for child, kernel, fields, text in (
        ("a", "add_scalar", {"valeu": 1.0}, "has no field valeu"),
        ("a", "sum", {"n": 1}, "child a launches no sum"),
        ("b", "sum", {"n": 1}, "no child 'b'"),
    ):
        with pytest.raises(FoxhuntError, match=text):
            built[0].set(child, kernel, **fields)
    with pytest.raises(FoxhuntError, match="1 times, counted from 0"):
        built[0].set("a", "add_scalar", 1, value=2.0)


def test_names_hold_through_original_and_copy(adder: tuple[StepGraph, Any, Any]) -> None:
    step, *_ = adder
    assert [str(n) for n in step.nodes] == [
        "twice/add_scalar#0",
        "twice/add_scalar#1",
        "other/memset#0",
        "other/add_scalar#0",
    ]
    handles = [int(h) for n in step.nodes for h in (n.original, n.parent)]
    assert len(set(handles)) == len(handles)
    for name in step.nodes:
        i = [c.name for c in step.children].index(name.child)
        assert int(name.original) in {int(n.handle) for n in step.graphs[i].nodes()}


def chain(
    runtime: Runtime, buffers: list[Any], value: float, launches: int = 1, kernel: str = "add_scalar", **gate: Any
) -> Any:
    plan = runtime.plan("chain")
    for i, x in enumerate(buffers):
        with plan.child(f"c{i}", reads=[], writes=[x], **gate) as c:
            for _ in range(launches if i == 1 else 1):
                add(c, x, value) if kernel == "add_scalar" or i != 1 else c.memset(x, 0)
    return plan


def test_a_whole_graph_takes_other_buffers_and_values(runtime: Runtime, built: list[StepGraph]) -> None:
    first, second = ([runtime.zeros(N, np.float32, f"{k}{i}") for i in range(2)] for k in "ab")
    step = chain(runtime, first, 1.0).build()
    built.append(step)
    modules = len(runtime.modules)
    executable = step.executable
    step.launch()
    step.update(chain(runtime, second, 3.0))
    assert step.executable is executable and len(runtime.modules) == modules
    step.launch()
    assert [b.to_numpy()[0] for b in (*first, *second)] == [1, 1, 3, 3]
    found = step.verify(steps=2)
    assert found.bitwise_equal, str(found)
    first[0].free()  # the graph holds it no longer, and does hold the others
    with pytest.raises(LifetimeError, match="used by 1 built graph"):
        second[0].free()
    assert [str(n) for n in step.nodes] == ["c0/add_scalar#0", "c1/add_scalar#0"]


def test_a_refused_update_names_what_differs_and_changes_nothing(runtime: Runtime, built: list[StepGraph]) -> None:
    x = [runtime.zeros(N, np.float32, f"x{i}") for i in range(2)]
    step = chain(runtime, x, 1.0).build()
    built.append(step)
    with pytest.raises(UpdateRefused) as caught:
        step.update(chain(runtime, x, 1.0, launches=2))
    assert (caught.value.reason, caught.value.child, caught.value.node) == ("ERROR_TOPOLOGY_CHANGED", "c1", "c1[1]")
    assert str(caught.value).endswith("launch 1 of child c1 is add_scalar, was nothing: build the plan again")
    with pytest.raises(UpdateRefused) as caught:
        step.update(chain(runtime, x, 1.0, kernel="memset"))
    assert (caught.value.child, caught.value.node, caught.value.field) == ("c1", "c1[0]", "kernel")
    with pytest.raises(UpdateRefused, match="the children are c0, were c0, c1"):
        step.update(chain(runtime, x[:1], 1.0))
    with pytest.raises(UpdateRefused, match="the edges between children differ"):
        step.update(chain(runtime, [x[0], x[0]], 1.0))
    step.launch()
    assert [b.to_numpy()[0] for b in x] == [1, 1]
    assert step.verify(steps=2).bitwise_equal


def gated(runtime: Runtime, flag: Flag, x: Any, y: Any, source: Any, values: tuple[float, float], **shape: Any) -> Any:
    """x += a; y = source and y += b behind a flag; z = 2 behind the same flag, in one IF node with it."""
    plan = runtime.plan("gated")
    with plan.child("always", reads=[], writes=[x]) as c:
        add(c, x, values[0])
    with plan.child("copies", reads=[source], writes=[y], when=flag) as c:
        c.copy(y, source)
        add(c, y, values[1])
    with plan.child("fills", reads=[], writes=[x], when=shape.get("other", flag)) as c:
        c.memset(x, values[0] * 100)
    return plan


@pytest.mark.parametrize("k", [1, 3])
def test_a_graph_with_conditional_nodes_is_updated_in_place(runtime: Runtime, built: list[StepGraph], k: int) -> None:
    word = runtime.zeros(1, np.uint32, "word")
    make = lambda name: [runtime.zeros(N, np.float32, f"{name}{i}") for i in range(2)]  # noqa: E731
    (x, y), (p, q) = make("a"), make("b")
    ones, twos = (runtime.array(np.full(N, v, np.float32), "source") for v in (1.0, 2.0))
    step = gated(runtime, Flag(word), x, y, ones, (1.0, 10.0)).build(steps_per_launch=k)
    built.append(step)
    assert step.decided_by == "device"
    executable, modules = step.executable, len(runtime.modules)
    step.launch()
    assert (x.to_numpy()[0], y.to_numpy()[0]) == (k, 0)
    step.update(gated(runtime, Flag(word), p, q, twos, (3.0, 30.0)))
    assert step.executable is executable and len(runtime.modules) == modules
    step.launch()
    assert (x.to_numpy()[0], p.to_numpy()[0], q.to_numpy()[0]) == (k, 3 * k, 0)
    word.fill(1)
    step.launch()
    assert (p.to_numpy()[0], q.to_numpy()[0], y.to_numpy()[0]) == (300, 32, 0)
    found = step.verify(steps=4)
    assert found.bitwise_equal, str(found)
    x.free()  # the graph holds it no longer


def test_behind_conditional_nodes_another_shape_is_refused(runtime: Runtime, built: list[StepGraph]) -> None:
    word, other = runtime.array(np.ones(1, np.uint32), "word"), runtime.zeros(1, np.uint32, "other")
    x, y = runtime.zeros(N, np.float32, "x"), runtime.zeros(N, np.float32, "y")
    ones = runtime.array(np.ones(N, np.float32), "source")
    step = gated(runtime, Flag(word), x, y, ones, (1.0, 10.0)).build()
    built.append(step)
    with pytest.raises(UpdateRefused, match="child copies runs when other, was word") as caught:
        step.update(gated(runtime, Flag(other), x, y, ones, (1.0, 10.0)))
    assert (caught.value.reason, caught.value.field) == ("CHILDREN_CHANGED", "when")
    with pytest.raises(UpdateRefused, match="the edges between children differ"):  # it reads what "always" writes
        step.update(gated(runtime, Flag(word), x, y, x, (1.0, 10.0)))
    step.launch()
    assert (x.to_numpy()[0], y.to_numpy()[0]) == (100, 11)
    assert step.verify(steps=2).bitwise_equal


def test_an_option_of_the_configuration_is_a_slot(runtime: Runtime, built: list[StepGraph]) -> None:
    config = Config().with_set(["iql.tau=0.25"])
    assert config.slot("tau") == config.slot("iql.tau") == Slot(0.25, "config.iql.tau")
    with pytest.raises(ConfigError, match="tua names 0 options; docs/configuration.md lists them"):
        config.slot("tua")
    with pytest.raises(ConfigError, match="names 0 options"):
        config.slot("loss.tau")
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("option")
    with plan.child("a", reads=[], writes=[x]) as c:
        add(c, x, config.slot("tau"))
    built.append(plan.build())
    built[0].launch()
    built[0].set("a", "add_scalar", value=0.5)
    built[0].launch()
    assert x.to_numpy()[0] == 0.75
