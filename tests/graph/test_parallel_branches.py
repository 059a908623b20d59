"""Branches that run side by side, each held up by another while in every replay, give the same bits: no edge is missing.

On a GPU the delays move the branches against each other; on hostsim, which runs one node after another, a new seed for every
launch shuffles the nodes that no edge orders. That the test sees a missing edge is shown by taking edges away.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import driver
from foxhunt_rt.dqn.extension import Extension
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import DeviceBuffer, GraphExec, MappedBuffer
from foxhunt_rt.graph import Runtime, StepGraph, StepPlan
from foxhunt_rt.graph.state import State

from .composed import DELAY_LABEL, buffers, composed, with_delays

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
REPLAYS = {"cuda": 1000, "hostsim": 10}
MOST_NS = {"cuda": 20_000, "hostsim": 100}


@pytest.fixture
def shuffled() -> Iterator[Callable[[int], None]]:
    """Sets the order of hostsim's next launch; does nothing on a GPU."""
    sim = driver.hostsim()

    def shuffle(seed: int) -> None:
        if sim is not None:
            assert sim.fxHostsimConfigure(b"seed", seed) == 0

    yield shuffle
    shuffle(0)


def without_delays(step: StepGraph) -> State:
    """The step's state but for the counters of the delays, which go on from replay to replay."""
    kept = [b for b in step.state.buffers if not b.label.startswith(DELAY_LABEL)]
    assert len(kept) == len(step.state.buffers) - len(step.children)
    return State(kept, step.plan.volatile_fields)


def digests(
    step: StepGraph, replays: int, shuffle: Callable[[int], None], executable: GraphExec | None = None
) -> list[str]:
    """Of the state after each of so many replays, all from the same state."""
    state, run = without_delays(step), executable or step.executable
    start, found = state.snapshot(), []
    for replay in range(replays):
        shuffle(replay + 1)
        with step.runtime.context.current():
            run.launch(step.runtime.stream)
        found.append(state.digest(state.snapshot()))
        state.restore(start)
    return found


def test_thirteen_children(runtime: Runtime, driver: str, shuffled: Callable[[int], None]) -> None:
    on = buffers(runtime)
    plain = composed(runtime, on).build(total_order=True)
    start = plain.state.snapshot()
    plain.launch()
    expected = [b.to_numpy() for b in on]
    plain.state.restore(start)
    plain.close()
    step = with_delays(runtime, composed(runtime, on), MOST_NS[driver]).build()
    assert len(step.edges) < len(step.children) * (len(step.children) - 1) // 2 and step.info()["longest_chain"] < 60
    assert len(set(digests(step, REPLAYS[driver], shuffled))) == 1
    step.launch()
    for buffer, array in zip(on, expected, strict=True):
        assert isinstance(buffer, (DeviceBuffer, MappedBuffer))
        np.testing.assert_array_equal(buffer.to_numpy(), array)
    step.close()


def test_a_missing_edge_shows(runtime: Runtime, driver: str, shuffled: Callable[[int], None],
                              monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    step = with_delays(runtime, composed(runtime, buffers(runtime)), MOST_NS[driver]).build()
    right = digests(step, 1, shuffled)
    every, seen = list(step.edges), 0
    for edge in every:
        left = [e for e in every if e != edge]
        monkeypatch.setattr(StepPlan, "dependencies", lambda plan, total_order=False, left=left: left)
        with runtime.context.current():
            made = step._composer.compose(step.graphs, step.conditions)
            executable = made.parent.instantiate(runtime.stream)
        found = digests(step, 25 if driver == "cuda" else 8, shuffled, executable)
        seen += set(found) != set(right)
        executable.close()
    print(f"{seen} of {len(every)} missing edges changed a digest")
    assert seen > len(every) // 2
    step.close()


class Delayed(Learner):
    """A learner whose children are all held up."""

    def _record_step(self, plan: StepPlan, extensions: Sequence[Extension]) -> None:
        super()._record_step(plan, extensions)
        with_delays(self.runtime, plan, MOST_NS[self.runtime.driver_kind])


def test_the_learners_step(runtime: Runtime, driver: str, shuffled: Callable[[int], None],
                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    import subjects

    def after_three(learner: Any) -> str:
        for _ in range(3):
            learner.graph.launch()
        parameters = learner.adam.theta.to_numpy()
        assert np.isfinite(parameters).all()
        return hashlib.sha256(parameters.tobytes()).hexdigest()

    plain = subjects.odd_learner(runtime)
    expected = after_three(plain)
    plain.close()
    monkeypatch.setattr(subjects, "Learner", Delayed)
    learner = subjects.odd_learner(runtime)
    assert after_three(learner) == expected
    assert len(set(digests(learner.graph, REPLAYS[driver] if driver == "cuda" else 5, shuffled))) == 1
    learner.close()
