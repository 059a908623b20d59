"""What the Gymnasium examples share: train an Agent on a vector environment, judge it greedily, read the command line.

from vector_training import main
main("CartPole-v1", CONFIG, goal=475.0)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import foxhunt_rt as fx
from foxhunt_rt.dqn import Agent, Config

ENVIRONMENTS = 8
EVALUATION_EPISODES = 100


def environments(name: str, count: int) -> SyncVectorEnv:
    """SAME_STEP: an episode's last observation comes with its last reward, the next episode's first one beside it."""
    return SyncVectorEnv([lambda: gym.make(name)] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def make_agent(name: str, config: Config) -> Agent:
    """An agent for that environment's spaces."""
    env = gym.make(name)
    assert isinstance(env.observation_space, gym.spaces.Box) and isinstance(env.action_space, gym.spaces.Discrete)
    agent = Agent(env.observation_space.shape[0], [int(env.action_space.n)], config, environments=ENVIRONMENTS)
    env.close()
    return agent


def train(agent: Agent, name: str, report_every: int = 2000) -> None:
    """One training step for each step of all environments, until the schedules of the configuration end."""
    envs = environments(name, ENVIRONMENTS)
    states, _ = envs.reset(seed=agent.config.train.seed)
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
            if metrics and agent.steps % report_every == 0:  # metrics come a step or two late
                print(f"step {agent.steps:6}  loss {metrics.loss:7.4f}  Q {metrics.q_mean:7.2f}  epsilon {agent.epsilon:.2f}",
                      flush=True)  # fmt: skip
    agent.drain()
    envs.close()


def evaluate(agent: Agent, name: str, episodes: int = EVALUATION_EPISODES, seed: int = 1_000_000) -> float:
    """Mean undiscounted return of greedy episodes that training did not see."""
    envs = environments(name, episodes)
    states, _ = envs.reset(seed=seed)
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    while running.any():
        states, rewards, terminated, truncated, _ = envs.step(agent.act(states, epsilon=0.0))
        returns += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(returns.mean())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")


def _at_least(low: int):  # type: ignore[no-untyped-def]
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {low}")
        return int(text)

    return number


def main(name: str, config: Config, goal: float, arguments: Sequence[str] | None = None) -> float:
    """Trains and judges as the command line says; prints and returns the mean return."""
    parser = _Parser(description=f"Trains a distributional double DQN on {name}.")
    parser.add_argument("--seed", type=_at_least(0), default=0, help="of every random number (default: 0)")
    parser.add_argument("--steps", type=_at_least(1), default=config.horizon,
                        help=f"training steps, and the length of every schedule (default: {config.horizon})")  # fmt: skip
    chosen = parser.parse_args(arguments)
    config = config.merged({"train": {"seed": chosen.seed, "steps_per_epoch": chosen.steps}})
    with make_agent(name, config) as agent:
        print(
            f"foxhunt-rt {fx.__version__} on {agent.runtime.driver_kind}: {name}, seed {chosen.seed}, {chosen.steps} steps"
        )
        train(agent, name)
        mean = evaluate(agent, name)
    print(f"mean return of {EVALUATION_EPISODES} greedy episodes: {mean:.1f} (the goal is {goal:g})")
    return mean
