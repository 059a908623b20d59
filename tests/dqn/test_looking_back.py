"""Acting with a network that looks back: an agent's actions follow on what it observed, windows can be given whole, and the past
is saved and copied with everything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foxhunt_rt.dqn import Agent
from foxhunt_rt.graph import Runtime
from foxhunt_rt.replay import ReplayError

from . import oracle
from .agent_harness import CONFIG, ENVIRONMENTS, STATE, World
from .mamba_oracle import mamba

WINDOW = 4
SETTINGS = (
    "temporal.enabled=true",
    f"network.window={WINDOW}",
    "temporal.heads=2",
    "temporal.head_dim=3",
    "temporal.state_dim=5",
)


@pytest.fixture
def agent(runtime: Runtime) -> Iterator[Agent]:
    with Agent(STATE, [3, 2], CONFIG.with_set(SETTINGS), runtime, environments=ENVIRONMENTS) as made:
        yield made


def expected_values(agent: Agent, windows: list[Any]) -> Any:
    """Expected returns of windows of any length, by the float64 oracle."""
    params = {k: v.astype(np.float64) for k, v in agent.learner.params().items()}
    loss = agent.config.loss
    block = lambda p, w, x: mamba(p, w, x, heads=2, head_dim=3, state_dim=5, conv=4)  # noqa: E731
    settings = oracle.Settings(agent.branches, 11, loss.v_min, loss.v_max, 0.0, 0.0, 0.0, blocks=(block,))
    states = np.zeros((len(windows), WINDOW, STATE))
    for row, window in zip(states, windows, strict=True):
        row[WINDOW - len(window) :] = window
    lengths = np.array([len(window) for window in windows])
    found = []
    for logits in oracle.forward(params, (states, lengths), settings):
        p = np.exp(logits - logits.max(-1, keepdims=True))
        found.append((p * settings.z).sum(-1) / p.sum(-1))
    return np.concatenate(found, axis=1)


def test_actions_follow_on_what_was_observed(agent: Agent) -> None:
    world, past = World(), [[] for _ in range(ENVIRONMENTS)]
    differed = 0.0
    for _ in range(9):
        windows = [[*p, s][-WINDOW:] for p, s in zip(past, world.state, strict=True)]
        values = agent.values(world.state)
        np.testing.assert_allclose(values, expected_values(agent, windows), atol=2e-5)
        np.testing.assert_array_equal(agent.values(world.state), values)  # looking changes nothing
        for e, window in enumerate(windows):
            np.testing.assert_array_equal(agent.values(np.array([window]))[0], values[e])
            differed = max(differed, np.abs(agent.values(np.array([window[-1:]]))[0] - values[e]).max())
        before = world.state
        transition = world.transition(agent.act(world.state))
        agent.observe(**transition)
        over = transition["terminated"] | transition["truncated"]
        past = [[] if o else [*p, s] for p, s, o in zip(past, before, over, strict=True)]
    assert differed > 1e-4, "the past makes no difference"


def test_the_past_is_saved_and_copied(agent: Agent, runtime: Runtime, tmp_path: Path) -> None:
    world = World(3)
    for _ in range(20):
        agent.observe(**world.transition(agent.act(world.state)))
    for _ in range(3):
        agent.step()
    agent.save(tmp_path / "agent.safetensors")
    values = agent.values(world.state)
    with agent.snapshot() as policy, Agent.from_checkpoint(tmp_path / "agent.safetensors", runtime) as other:
        np.testing.assert_array_equal(policy.values(world.state), values)
        np.testing.assert_array_equal(other.values(world.state), values)
        state = world.state
        agent.observe(**world.transition(agent.act(world.state)))
        np.testing.assert_array_equal(policy.values(state), values)  # as it was
        np.testing.assert_array_equal(other.values(state), values)
        assert (agent.values(state) != values).any()


def test_what_does_not_fit_is_refused(agent: Agent) -> None:
    for states in (
        np.zeros((ENVIRONMENTS + 1, STATE)),
        np.zeros(STATE),
        np.zeros((2, WINDOW + 1, STATE)),
        np.zeros((2, 0, STATE)),
    ):
        with pytest.raises(ReplayError, match="give"):
            agent.act(states)
    assert agent.act(np.zeros((7, WINDOW, STATE))).shape == (7,)
