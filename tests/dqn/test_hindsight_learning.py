"""Bit flipping, the example of Andrychowicz 2017 (section 3.1): with a reward of -1 until the goal is met nothing is learned
without hindsight, and the task is solved with it."""

from __future__ import annotations

import numpy as np
import pytest

from foxhunt_rt import Runtime
from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Agent

BITS, ENVIRONMENTS = 10, 8


def success(rt: Runtime, her: bool, steps: int = 3000) -> float:
    """Share of goals that the greedy policy reaches in as many flips as there are bits, after training."""
    config = Config().with_set([
        "network.hidden=64", "network.atoms=21", "replay.batch=64", "replay.capacity=16384", "replay.n_step=1", "loss.gamma=0.9",
        "loss.v_min=-10", "loss.v_max=0", "loss.alpha_c51_start=1", "loss.grad_budget=0", "optim.lr=2e-3", "optim.lr_min=2e-3",
        "optim.tau_start=0.02", "optim.tau_end=0.02", f"optim.horizon={steps}", f"her.enabled={str(her).lower()}", "her.rows=64",
        "her.reward=reach", "her.tolerance=0.5", "her.achieved_column=0", f"her.goal_column={BITS}", f"her.goal_width={BITS}",
    ])  # fmt: skip
    random = np.random.default_rng(0)
    agent = Agent(2 * BITS, [BITS], config, rt, environments=ENVIRONMENTS)
    state = random.integers(0, 2, (ENVIRONMENTS, 2 * BITS)).astype(np.float32)
    age, rows = 0, np.arange(ENVIRONMENTS)
    while agent.steps < steps:
        action = agent.act(state, epsilon=0.2)
        following = state.copy()
        following[rows, action] = 1.0 - following[rows, action]
        met = (following[:, :BITS] == following[:, BITS:]).all(axis=1)
        age += 1
        over = age == BITS  # every episode lasts as long as there are bits: all environments begin together
        ended = np.full(ENVIRONMENTS, over)
        agent.observe(state, action, met - 1.0, following, np.zeros(ENVIRONMENTS, bool), ended)
        state = random.integers(0, 2, state.shape).astype(np.float32) if over else following
        age = 0 if over else age
        if agent.ready:
            agent.step()
    agent.drain()
    n, done = 256, np.zeros(256, bool)
    state = random.integers(0, 2, (n, 2 * BITS)).astype(np.float32)
    for _ in range(BITS):
        done |= (state[:, :BITS] == state[:, BITS:]).all(axis=1)
        action = agent.act(state, epsilon=0.0)
        flipped = state.copy()
        flipped[np.arange(n), action] = 1.0 - flipped[np.arange(n), action]
        state = np.where(done[:, None], state, flipped)
    done |= (state[:, :BITS] == state[:, BITS:]).all(axis=1)
    agent.learner.close()
    return float(done.mean())


@pytest.mark.slow
def test_bit_flipping_is_learned_in_hindsight_alone(runtime: Runtime) -> None:
    with_it, without = success(runtime, True), success(runtime, False)
    print(f"\ngoals reached: {with_it:.2f} with hindsight, {without:.2f} without")
    assert with_it > 0.9 and without < 0.3
