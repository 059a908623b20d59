"""K training steps of one launch: the same bits as one a launch, every record read, and a launch that ends at a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from foxhunt_rt import Runtime, abi
from foxhunt_rt.config import Config
from foxhunt_rt.dqn.guard import GuardFault
from foxhunt_rt.dqn.learner import Learner
from foxhunt_rt.driver import counts
from foxhunt_rt.graph import State

S, BRANCHES, E = 5, (3, 2), 8


def config(k: int) -> Config:
    return Config().with_set(["network.hidden=12", "network.atoms=11", "replay.capacity=512", "replay.batch=16",
                              "optim.horizon=50", "loss.v_min=-3", "loss.v_max=3", f"train.steps_per_launch={k}"])  # fmt: skip


def fill(learner: Learner) -> None:
    random = np.random.default_rng(0)
    staging = learner.replay.staging(E)
    for _ in range(8):
        state, after = (random.normal(size=(E, S)).astype(np.float32) for _ in range(2))
        learner.replay.insert_batch(staging, random.integers(0, 6, E), random.normal(size=E), random.random(E) < 0.1,
                                    np.zeros(E, bool), state=state, next_state=after)  # fmt: skip


@pytest.fixture
def make(runtime: Runtime) -> Iterator[Callable[[int], Learner]]:
    made: list[Learner] = []

    def build(k: int) -> Learner:
        learner = Learner(runtime, config(k), S, BRANCHES)
        made.append(learner)
        fill(learner)
        return learner

    yield build
    for learner in made:
        learner.close()


def digest(learner: Learner) -> str:
    """Of everything that a step writes, but the ring of records, whose size depends on K."""
    ring = learner.records.ring.ptr
    state = State([b for b in learner.state_buffers() if b.ptr != ring], learner.graph.plan.volatile_fields)
    return state.digest(state.snapshot())


def test_four_ways_give_the_same_bits(make: Callable[[int], Learner]) -> None:
    learner = make(8)
    learner.step(3)
    learner.drain()
    found = learner.graph.verify(steps=11)
    assert found.bitwise_equal, str(found)
    assert [m.mode for m in found.modes] == ["ungraphed", "child by child", "parent", "8 per launch"]
    assert found.modes[2].launches == {"cuGraphLaunch": 11}
    assert found.modes[3].launches["cuGraphLaunch"] == 2
    planted = learner.graph.verify(steps=2, plant="adam")
    assert (planted.bitwise_equal, planted.child) == (False, "adam")


def test_k_steps_a_launch_end_where_one_does(make: Callable[[int], Learner]) -> None:
    """13 steps: no multiple of 4. A change of the learning rate falls between launches of both."""
    ends: dict[int, tuple[str, Any]] = {}
    for k in (1, 4):
        learner = make(k)
        while learner.launched < 8:
            learner.step()
        learner.set(lr=1e-3)
        while learner.launched < 13:
            learner.step(min(k, 13 - learner.launched))
        records = learner.drain()
        ends[k] = digest(learner), records
    assert ends[1][0] == ends[4][0]
    one, four = ends[1][1], ends[4][1]
    assert list(four["step"]) == list(range(13))
    for name in set(one.dtype.names) - {"started_ns", "ended_ns"}:
        np.testing.assert_array_equal(one[name], four[name], err_msg=name)


def test_a_launch_makes_one_driver_call_and_the_ring_holds_two_d_k(make: Callable[[int], Learner]) -> None:
    learner = make(16)
    assert len(learner.records.ring.host) >= 2 * 16 * learner.config.guard.launches_ahead
    learner.step()
    before = dict(counts)
    for _ in range(5):
        assert learner.step() == 16
        assert learner.launched - learner.records.next_step <= 2 * 16
    used = {name: n - before.get(name, 0) for name, n in counts.items() if n != before.get(name, 0)}
    assert used.pop("cuGraphLaunch") == 5
    assert set(used) <= {"cuStreamQuery", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}, used
    assert len(learner.drain()) == 96


def test_a_launch_ends_at_the_step_that_trips_the_guard(make: Callable[[int], Learner]) -> None:
    """The first step of the next launch finds a NaN in the parameters: the seven behind it, and the launch behind that, do not
    run."""
    learner = make(8)
    learner.step()
    learner.drain()
    theta = learner.adam.theta.to_numpy()
    theta[learner.layout.layers[-1].bias.offset] = np.nan
    learner.adam.theta.copy_from(theta)

    def two_launches() -> None:
        learner.step()
        learner.step()
        learner.drain()

    with pytest.raises(GuardFault) as caught:
        two_launches()
    assert caught.value.step == 8
    learner.runtime.synchronize()
    assert int(learner.state.to_numpy()["step"][0]) == 9
    assert learner.launched == 9
    assert list(learner.drain()["step"]) == [8]
    before = counts["cuGraphLaunch"]
    with pytest.raises(GuardFault, match="step 8"):
        learner.step()
    assert counts["cuGraphLaunch"] == before
    learner.reset(1)
    fill(learner)
    learner.step()
    assert np.isfinite(learner.drain()["loss"]).all()


def test_a_guard_that_trips_between_launches_is_reported(make: Callable[[int], Learner]) -> None:
    """Acting shares the guard: no step runs, no record comes, and the host is told why."""
    learner = make(4)
    learner.step()
    learner.drain()
    key = (abi.constant("GUARD_FORWARD") << 28 | abi.constant("CHECK_NON_FINITE") << 24 | 5) << 32
    learner.guard.copy_from(np.array([(key,)], abi.dtype("guard_block")))
    learner.step()
    with pytest.raises(GuardFault) as caught:
        learner.drain()
    assert (caught.value.child, caught.value.element, caught.value.step) == ("forward", 5, 4)
    assert len(learner.drain()) == 0
