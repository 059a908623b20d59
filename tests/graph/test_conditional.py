"""Gated children and K steps of one launch: the same bits as one by one, and the decisions a person would take by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foxhunt_rt import abi
from foxhunt_rt.driver import FoxhuntError, counts
from foxhunt_rt.graph import Flag, Runtime, StepGraph
from foxhunt_rt.graph.conditional import groups

N = 100


def add(child: Any, buffer: Any, value: float) -> None:
    n = buffer.shape[0]
    child.launch("add_scalar", ((n + 63) // 64,), (64,), dict(x=buffer, value=value, n=n))


def gated(runtime: Runtime, built: list[StepGraph], masks: tuple[int | None, ...], word: Any, **options: Any) -> Any:
    """x += 1, then a child a mask that adds 10, 100, ... when its flag is raised; then total = sum of x."""
    x, total = runtime.zeros(N, np.float32, "x"), runtime.zeros(1, np.float32, "total")
    plan = runtime.plan("gated")
    with plan.child("always", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    for i, mask in enumerate(masks):
        with plan.child(f"gated{i}", reads=[], writes=[x], when=Flag(word, mask=mask)) as c:
            add(c, x, 10.0 ** (i + 1))
    with plan.child("total", reads=[x], writes=[total]) as c:
        c.launch("sum", (1,), (64,), dict(x=x, sum=total, n=N))
    built.append(plan.build(**options))
    return built[-1], x, total


@pytest.mark.parametrize("value", [0, 1, 2, 3, 4, 0xFFFFFFFF])
def test_a_gated_child_runs_when_a_bit_of_its_mask_is_set(runtime: Runtime, built: list[StepGraph], value: int) -> None:
    word = runtime.array(np.array([value], np.uint32), "word")
    step, x, total = gated(runtime, built, (1, 2, None), word)
    step.launch()
    expected = 1 + 10 * bool(value & 1) + 100 * bool(value & 2) + 1000 * bool(value)
    assert x.to_numpy().tolist() == [expected] * N
    assert total.to_numpy()[0] == N * expected
    step.run_ungraphed()
    step.run_children()
    assert x.to_numpy().tolist() == [3 * expected] * N


def test_decisions_follow_the_word_from_launch_to_launch(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.zeros(1, np.uint32, "word")
    step, x, _ = gated(runtime, built, (1,), word)
    expected = 0
    for value in (1, 0, 0, 3, 2, 1):
        word.copy_from(np.array([value], np.uint32))
        step.launch()
        expected += 1 + 10 * (value & 1)
    assert x.to_numpy().tolist() == [expected] * N


@pytest.mark.parametrize("value", [0, 1])
def test_verification_takes_the_same_decision_in_every_mode(
    runtime: Runtime, built: list[StepGraph], value: int
) -> None:
    word = runtime.array(np.array([value], np.uint32), "word")
    step, *_ = gated(runtime, built, (1,), word, steps_per_launch=3)
    found = step.verify(steps=7)
    assert found.bitwise_equal, str(found)
    assert [m.mode for m in found.modes] == ["ungraphed", "child by child", "parent", "3 per launch"]
    assert found.modes[0].launches == {"cuLaunchKernel": 7 * (2 + value)}
    assert found.modes[2].launches == {"cuGraphLaunch": 7}
    # Three launches, the last of one step: that is latched before it.
    assert found.modes[3].launches == {"cuGraphLaunch": 3, "cuLaunchKernel": 1}
    planted = step.verify(steps=2, plant="gated0")
    assert (planted.bitwise_equal, planted.child) == (False, "gated0")


def test_a_flag_is_a_field_of_a_struct(runtime: Runtime, built: list[StepGraph]) -> None:
    block = np.zeros(1, abi.dtype("step_block"))
    block["due"] = 4
    buffer = runtime.array(block, "step")
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("struct")
    for name, mask, value in (("due", 4, 1.0), ("not due", 8, 10.0)):
        with plan.child(name, reads=[], writes=[x], when=Flag(buffer, "due", mask)) as c:
            add(c, x, value)
    built.append(plan.build())
    built[0].launch()
    assert x.to_numpy()[0] == 1
    assert built[0].info()["children"][0]["when"] == "step.due & 0x4"
    assert 'label="due when step.due & 0x4"' in built[0].dot()


@pytest.mark.parametrize("key", [2**64 - 1, 2**64 - 2, 2**63 - 1, 0])
def test_a_wide_word_with_another_clear_value(runtime: Runtime, built: list[StepGraph], key: int) -> None:
    buffer = runtime.array(np.array([(key,)], abi.dtype("guard_block")), "guard")
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("wide")
    flag = Flag(buffer, "key", clear=2**64 - 1)
    with plan.child("on fault", reads=[], writes=[x], when=flag) as c:
        add(c, x, 1.0)
    built.append(plan.build())
    built[0].launch()
    assert x.to_numpy()[0] == (key != 2**64 - 1) == flag.raised()


def test_the_decision_is_the_word_as_earlier_children_leave_it(runtime: Runtime, built: list[StepGraph]) -> None:
    """The word is raised by a child before and cleared by one behind: only the gated child between sees it raised. The word is
    declared private, which orders nothing by itself."""
    word, raise_, x = (runtime.zeros(16, np.uint32, name) for name in ("word", "raise", "x"))
    raise_.copy_from(np.full(16, 7, np.uint32))
    y = runtime.zeros(N, np.float32, "y")
    z = runtime.zeros(N, np.float32, "z")
    flag = Flag(word[3:4])
    plan = runtime.plan("order")
    with plan.child("raises", reads=[raise_], writes=[x], private=[word]) as c:
        c.copy(word, raise_)
        c.memset(x, 1)
    with plan.child("between", reads=[], writes=[y], when=flag) as c:
        add(c, y, 1.0)
    with plan.child("clears", reads=[], writes=[x], private=[word]) as c:
        c.memset(word, 0)
    with plan.child("behind", reads=[], writes=[z], when=flag) as c:
        add(c, z, 1.0)
    step = plan.build()
    built.append(step)
    assert (0, 1) in plan.dependencies() and (1, 2) in plan.dependencies() and (2, 3) in plan.dependencies()
    assert step.info()["condition_nodes"] == 2
    for _ in range(3):
        step.launch()
    assert (y.to_numpy()[0], z.to_numpy()[0]) == (3, 0)
    assert step.verify(steps=2).bitwise_equal


def test_neighbours_share_an_if_node_and_one_word_one_decision(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.zeros(1, np.uint32, "word")
    step, *_ = gated(runtime, built, (1, 1, 2), word)
    assert groups(step.children) == [[0], [1, 2], [3], [4]]
    assert (step.info()["if_nodes"], step.info()["condition_nodes"]) == (2, 1)


def test_more_decisions_than_one_node_takes(runtime: Runtime, built: list[StepGraph]) -> None:
    word = runtime.array(np.array([0b10101010101], np.uint32), "word")
    counts_ = [runtime.zeros(N, np.float32, f"x{i}") for i in range(11)]
    plan = runtime.plan("many")
    for i, x in enumerate(counts_):
        with plan.child(f"c{i}", reads=[], writes=[x], when=Flag(word, mask=1 << i)) as c:
            add(c, x, 1.0)
    step = plan.build()
    built.append(step)
    step.launch()
    assert [x.to_numpy()[0] for x in counts_] == [1, 0] * 5 + [1]
    assert step.info()["condition_nodes"] == 2


@pytest.mark.parametrize("k", [2, 8])
def test_one_launch_runs_k_steps(runtime: Runtime, built: list[StepGraph], k: int) -> None:
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("k")
    with plan.child("a", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    with plan.epilogue("tail", reads=[], writes=[x]) as c:
        add(c, x, 0.5)
    step = plan.build(steps_per_launch=k)
    built.append(step)
    before = {name: counts[name] for name in ("cuGraphLaunch", "cuLaunchKernel", "cuMemAlloc", "cuStreamSynchronize")}
    for _ in range(3):
        step.launch()
    after = {name: counts[name] - n for name, n in before.items()}
    assert after == {"cuGraphLaunch": 3, "cuLaunchKernel": 0, "cuMemAlloc": 0, "cuStreamSynchronize": 0}
    assert x.to_numpy()[0] == 1.5 * 3 * k


def test_a_shorter_launch_is_latched_in_stream_order(runtime: Runtime, built: list[StepGraph]) -> None:
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("short")
    with plan.child("a", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    step = plan.build(steps_per_launch=8)
    built.append(step)
    for steps in (8, 3, 3, None, 1):  # queued one behind the other: none sees the number of a later one
        step.launch(steps)
    assert x.to_numpy()[0] == 8 + 3 + 3 + 8 + 1
    for wrong in (0, 9, -1):
        with pytest.raises(FoxhuntError, match="it was built for 1 to 8"):
            step.launch(wrong)


@pytest.mark.parametrize("mode", ["on", "off"])
def test_a_raised_stop_flag_ends_this_launch_and_later_ones(
    runtime: Runtime, built: list[StepGraph], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """`bump` counts down from 4 in a float whose bits are the stop word: at 0 the mask of its exponent clears."""
    monkeypatch.setenv("FOXHUNT_GRAPH", mode)
    left = runtime.array(np.array([4.0], np.float32), "left")
    x = runtime.zeros(N, np.float32, "x")
    plan = runtime.plan("stop")
    with plan.child("count", reads=[], writes=[left]) as c:
        add(c, left, -1.0)
    with plan.child("work", reads=[], writes=[x]) as c:
        add(c, x, 1.0)
    # 4, 3, 2 and 1 have bits below the sign that differ from those of 0: stop when they are all clear, that is, at 1.0 whose
    # word is known.
    one = int(np.float32(1.0).view(np.uint32))
    step = plan.build(steps_per_launch=8, stop=Flag(left.view((1,), np.uint32), mask=0x40000000, clear=0x40000000))
    built.append(step)
    assert one & 0x40000000 == 0 and all(int(np.float32(v).view(np.uint32)) & 0x40000000 for v in (2.0, 3.0, 4.0))
    step.launch()
    assert (x.to_numpy()[0], left.to_numpy()[0]) == (3, 1)
    assert step.stopped()
    step.launch()
    step.launch(2)
    assert (x.to_numpy()[0], left.to_numpy()[0]) == (3, 1)
    left.copy_from(np.array([3.0], np.float32))
    step.launch()
    assert (x.to_numpy()[0], left.to_numpy()[0]) == (5, 1)


def test_verification_stops_where_the_launch_does(runtime: Runtime, built: list[StepGraph]) -> None:
    left = runtime.array(np.array([4.0], np.float32), "left")
    plan = runtime.plan("stop")
    with plan.child("count", reads=[], writes=[left]) as c:
        add(c, left, -1.0)
    step = plan.build(steps_per_launch=8, stop=Flag(left.view((1,), np.uint32), mask=0x40000000, clear=0x40000000))
    built.append(step)
    found = step.verify(steps=11)
    assert found.bitwise_equal, str(found)
    assert found.modes[0].launches == {"cuLaunchKernel": 3}
    assert found.modes[2].launches == {"cuGraphLaunch": 3}


def test_gated_children_within_k_steps(runtime: Runtime, built: list[StepGraph]) -> None:
    """Every step clears its own flag: the gated child runs in the first of them."""
    word = runtime.array(np.full(16, 1, np.uint32), "word")
    x, y = runtime.zeros(N, np.float32, "x"), runtime.zeros(N, np.float32, "y")
    plan = runtime.plan("nested")
    with plan.child("gated", reads=[], writes=[x], when=Flag(word[0:1])) as c:
        add(c, x, 1.0)
    with plan.child("clear", reads=[], writes=[word, y]) as c:
        c.memset(word, 0)
        add(c, y, 1.0)
    step = plan.build(steps_per_launch=5)
    built.append(step)
    step.launch()
    assert (x.to_numpy()[0], y.to_numpy()[0]) == (1, 5)
    assert step.verify(steps=10).bitwise_equal


def test_what_cannot_be_a_flag_says_so(runtime: Runtime) -> None:
    words = runtime.zeros(4, np.uint32, "words")
    block = runtime.zeros(1, abi.dtype("step_block"), "step")
    for make, text in (
        (lambda: Flag(words), "one 32-bit or 64-bit integer"),
        (lambda: Flag(runtime.zeros(1, np.float32, "f")), "one 32-bit or 64-bit integer"),
        (lambda: Flag(block), "one 32-bit or 64-bit integer"),
        (lambda: Flag(block, "lr"), "one 32-bit or 64-bit integer"),
        (lambda: Flag(block, "dew"), "step has no field dew"),
        (lambda: Flag(words[0:1], mask=0), "mask is not 0"),
        (lambda: Flag(words[0:1], mask=2**32), "lie in 0 to 0xffffffff"),
    ):
        with pytest.raises(FoxhuntError, match=text):
            make()
    plan = runtime.plan("none")
    with plan.child("a", reads=[], writes=[words]) as c:
        c.memset(words, 0)
    with pytest.raises(FoxhuntError, match="give at least 1"):
        plan.build(steps_per_launch=0)
