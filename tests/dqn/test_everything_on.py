"""With every feature on a step costs the host what the core does: one launch, no other driver call, the same Python."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.dqn import Learner
from foxhunt_rt.testing import assert_calls

from .everything import EVERYTHING, SMALL
from .feature_harness import learner

STEPS = 24
#: Periodic work is due three times and more in so many steps, and not in every launch.
EVERYTHING_ON = (*EVERYTHING, *SMALL, "vaccine.period=7", "causal.period=5", "optim.horizon=1000")


@pytest.fixture
def make(runtime: Runtime) -> Iterator[Callable[..., Learner]]:
    """Learners behind the steps of which each has a line in the log."""
    made: list[Learner] = []

    def build(*settings: str) -> Learner:
        made.append(learner(runtime, settings))
        while made[-1].launched < 6:
            made[-1].step()
        made[-1].drain()
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.mark.parametrize("k", [1, 3])
def test_a_step_is_one_launch_and_no_other_driver_call(runtime: Runtime, make: Callable[..., Learner], k: int) -> None:
    on = make(*EVERYTHING_ON, f"train.steps_per_launch={k}")
    with runtime.context.current(), assert_calls({"cuGraphLaunch": STEPS}, runtime=runtime):
        for _ in range(STEPS):
            on.step()
    records = on.drain()
    assert len(records) == k * STEPS
    for name, period in (("vaccine_cosine", 7), ("causal_largest", 5)):
        moved = records["step"][1:][records[name][1:] != records[name][:-1]]
        assert set(moved) == {step for step in records["step"][1:] if step % period == 0}, f"{name}: due, and only then"


def python_calls(of: Learner, steps: int) -> Counter[str]:
    """Python functions, and functions of C, that so many steps and the reading of their records call."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found[frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name] += 1
        elif event == "c_call":
            found[argument.__qualname__] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for _ in range(steps):
            of.step()
            of.drain()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.hostsim  # a GPU works while the host looks, so how often it looks differs from run to run
def test_the_hosts_work_does_not_grow(make: Callable[..., Learner]) -> None:
    """Call by call, over steps with and without periodic work."""
    core, everything = (python_calls(make(*settings), STEPS) for settings in ((), EVERYTHING_ON))
    assert core["Learner.step" if sys.version_info >= (3, 11) else "step"] == STEPS
    assert everything == core


def test_four_ways_give_the_same_bits(make: Callable[..., Learner]) -> None:
    on = make(*EVERYTHING_ON, "train.steps_per_launch=8")
    found = on.graph.verify(steps=9)
    assert found.bitwise_equal, str(found)
    assert [m.mode for m in found.modes] == ["ungraphed", "child by child", "parent", "8 per launch"]
    for child in ("adam_grad.temporal", "aux.ensemble", "maintenance.causal"):
        planted = on.graph.verify(steps=11 if child == "maintenance.causal" else 1, plant=child)
        assert (planted.bitwise_equal, planted.child) == (False, child)
