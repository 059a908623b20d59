"""Trains a distributional DQN on CartPole-v1 to its limit of 500 steps an episode: python examples/cartpole.py

Runs on a GPU, or, where there is none, on the CPU through hostsim. Needs `pip install gymnasium`.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import foxhunt_rt as fx
from foxhunt_rt.dqn import Agent, Config

ENVIRONMENTS = 8
CONFIG = Config().merged({
    "network": {"hidden": [64, 64]},
    "replay": {"capacity": 32768, "batch": 128, "n_step": 3},
    # a reward of 1 a step: returns lie between 0 and 1 / (1 - gamma)
    "loss": {"gamma": 0.99, "v_min": 0.0, "v_max": 100.0, "alpha_c51_start": 1.0},
    "optim": {"lr": 1e-3, "lr_min": 1e-4, "tau_start": 0.01, "tau_end": 0.01},
    "train": {"epochs": 1, "steps_per_epoch": 6000, "epsilon_start": 0.5, "epsilon_end": 0.02},
})  # fmt: skip


def environments(count: int) -> SyncVectorEnv:
    """SAME_STEP: an episode's last observation comes with its last reward, the next episode's first one beside it."""
    return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def train(agent: Agent, seed: int = 0) -> None:
    envs = environments(ENVIRONMENTS)
    states, _ = envs.reset(seed=seed)
    while agent.steps < agent.config.horizon:
        actions = agent.act(states)
        following, rewards, terminated, truncated, info = envs.step(actions)
        ended = terminated | truncated
        next_states = following.copy()
        if ended.any():
            next_states[ended] = np.stack(info["final_obs"][ended])
        agent.observe(states, actions, rewards, next_states, terminated, truncated)
        states = following
        if agent.ready:
            metrics = agent.step()  # one graph launch
            if metrics and metrics.step % 500 == 0:
                print(
                    f"step {metrics.step:5}  loss {metrics.loss:7.4f}  Q {metrics.q_mean:6.1f}  epsilon {agent.epsilon:.2f}"
                )
    agent.drain()
    envs.close()


def evaluate(agent: Agent, episodes: int = 100, seed: int = 10_000) -> float:
    """Mean length of greedy episodes."""
    envs = environments(episodes)
    states, _ = envs.reset(seed=seed)
    lengths, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        states, _, terminated, truncated, _ = envs.step(agent.act(states, epsilon=0.0))
        lengths += running
        running &= ~(terminated | truncated)
    envs.close()
    return float(lengths.mean())


if __name__ == "__main__":
    with Agent(state_dim=4, branches=[2], config=CONFIG, environments=ENVIRONMENTS) as agent:
        print(f"driver: {agent.runtime.driver_kind}, foxhunt-rt {fx.__version__}")
        train(agent)
        print(f"100 greedy episodes last {evaluate(agent):.1f} steps on average (the limit is 500)")
