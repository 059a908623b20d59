"""Agent: what it stores, what it refuses, one launch a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.dqn import Agent, Metrics
from foxhunt_rt.driver import calls
from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import ActionError, ReplayError

from .agent_harness import CONFIG, ENVIRONMENTS, STATE, World, fill


@pytest.fixture
def agent(runtime: Runtime) -> Iterator[Agent]:
    with Agent(STATE, [3, 2], CONFIG, runtime, environments=ENVIRONMENTS) as made:
        yield made


def test_act_shapes_and_exploration(agent: Agent) -> None:
    states = np.random.default_rng(0).normal(size=(10, STATE))  # more than one launch holds
    greedy = agent.act(states, epsilon=0.0)
    assert greedy.shape == (10,) and greedy.dtype == np.int32
    one = agent.act(states[4], epsilon=0.0)
    assert one.shape == () and one == greedy[4]
    values = agent.values(states)
    assert values.shape == (10, 5) and agent.values(states[0]).shape == (5,)
    np.testing.assert_array_equal(
        agent.choices(greedy), np.stack([values[:, :3].argmax(1), values[:, 3:].argmax(1)], 1)
    )
    np.testing.assert_array_equal(agent.actions(agent.choices(greedy)), greedy)
    many = np.concatenate([agent.act(states, epsilon=1.0) for _ in range(20)])
    assert set(many.tolist()) == set(range(6))
    assert agent.act(states[:0]).shape == (0,)


def test_observations_reach_the_ring_as_they_came(agent: Agent) -> None:
    world = World()
    seen = [world.transition([1, 5, 0]) for _ in range(4)]
    for transition in seen:
        agent.observe(**transition)
    replay = agent.replay
    assert replay.inserted == replay.read_state().inserted == 12
    rows, states, finals = replay.rows.to_numpy(), replay.state.to_numpy(), replay.final_state.to_numpy()  # type: ignore[union-attr]
    for t, transition in enumerate(seen):
        for e in range(ENVIRONMENTS):
            row = rows[t * ENVIRONMENTS + e]
            ended = transition["terminated"][e] * 1 + transition["truncated"][e] * 2
            assert (row["action"], row["reward"], row["ended"]) == (
                [1, 5, 0][e],
                np.float32(transition["rewards"][e]),
                ended,
            )
            np.testing.assert_array_equal(states[t * ENVIRONMENTS + e], transition["states"][e])
            if ended:
                np.testing.assert_array_equal(finals[row["final_slot"]], transition["next_states"][e])


def test_wrong_observations_are_refused(agent: Agent) -> None:
    world = World()
    right = world.transition([0, 1, 2]) | {"terminated": [False] * 3, "truncated": [False, False, True]}
    for change, error, words in (
        ({"states": right["states"][:2]}, ReplayError, "one row per environment"),
        ({"next_states": np.full((3, STATE), np.nan)}, ReplayError, "not finite"),
        ({"rewards": [0.0, np.inf, 0.0]}, ReplayError, "not finite"),
        ({"rewards": [0.0]}, ReplayError, "reward has shape"),
        ({"actions": [0, 1, 6]}, ActionError, "0 to 5"),
        ({"actions": [0, -1, 0]}, ActionError, "0 to 5"),
        ({"terminated": [True]}, ReplayError, "terminated is bool"),
    ):
        with pytest.raises(error, match=words):
            agent.observe(**{**right, **change})
    assert agent.replay.read_state().inserted == 0
    agent.observe(**right)
    # environment 2 was truncated and may begin anywhere; the others go on from their next state
    following = {**right, "states": right["next_states"].copy()}
    following["states"][2] += 1.0
    broken = {**following, "states": following["states"].copy()}
    broken["states"][1, 0] += 1.0
    with pytest.raises(ReplayError, match="environment 1.*truncated"):
        agent.observe(**broken)
    agent.observe(**following)
    with pytest.raises(ReplayError, match="shape"):
        agent.act(np.zeros((2, STATE + 1)))
    with pytest.raises(ReplayError, match="not finite"):
        agent.act(np.full(STATE, np.nan))


def test_too_few_rows_are_refused_before_the_launch(agent: Agent) -> None:
    fill(agent, World(), 5)
    assert not agent.ready
    before = calls.counts["cuGraphLaunch"]
    with pytest.raises(ReplayError, match="too few"):
        agent.step()
    assert calls.counts["cuGraphLaunch"] == before and agent.steps == 0


def test_a_step_is_one_launch_and_reports(agent: Agent) -> None:
    fill(agent, World())
    for _ in range(4):
        agent.step()
    before = dict(calls.counts)
    agent.step()
    made = {name: n - before.get(name, 0) for name, n in calls.counts.items() if n != before.get(name, 0)}
    assert set(made) <= {"cuGraphLaunch", "cuCtxPushCurrent", "cuCtxPopCurrent"} and made["cuGraphLaunch"] == 1
    metrics = agent.drain()
    assert isinstance(metrics, Metrics) and metrics.step == 4 and metrics.replay_size == 45
    assert all(np.isfinite(getattr(metrics, name)) for name in Metrics.__dataclass_fields__)
    assert metrics.loss > 0 and metrics.td_error > 0 and metrics.grad_norm > 0


def test_schedules_of_epsilon_and_of_the_cross_entropy(agent: Agent) -> None:
    train = CONFIG.train
    fill(agent, World())
    assert agent.epsilon == train.epsilon_start
    shares = []
    for _ in range(CONFIG.horizon):
        agent.step()
        metrics = agent.drain()
        assert metrics is not None
        shares.append(metrics.alpha_c51)
    np.testing.assert_allclose(shares, np.repeat([CONFIG.alpha_c51(epoch) for epoch in range(4)], 5), rtol=1e-6)
    assert agent.epsilon == pytest.approx(train.epsilon_end)


def test_the_same_seed_gives_the_same_numbers(runtime: Runtime) -> None:
    def run() -> tuple[Any, ...]:
        with Agent(STATE, [3, 2], CONFIG, runtime, environments=ENVIRONMENTS) as agent:
            world, losses = World(3), []
            fill(agent, world)
            for _ in range(6):
                agent.step()
                metrics = agent.drain()
                assert metrics is not None
                losses.append(metrics.loss)
                fill(agent, world, 1)
            return losses, agent.learner.adam.theta.to_numpy().tobytes(), agent.replay.rows.to_numpy().tobytes()  # type: ignore[attr-defined]

    assert run() == run()
