"""It learns: a chain whose optimal values are known, CartPole and Acrobot."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from foxhunt_rt.config import Config
from foxhunt_rt.dqn import Agent
from foxhunt_rt.graph import Runtime

ROOT = Path(__file__).resolve().parents[2]
STATES, CHOICES = 20, 3
GAMMA, COST, GOAL = 0.9, 0.05, 5.0


def chain_step(
    state: npt.NDArray[np.int64], first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]
) -> tuple[Any, Any, Any]:
    """(next state, reward, terminated). The branches vote: choices 0, 1, 2 of the first mean left, stay, right, of the second
    right, stay, left. One step the way of the sum; moving costs, and leaving the last state to the right pays and ends.

    The branches have equal say on purpose: dueling branches share one V, so what is learned is right only where the mean over the
    actions is the same for each branch.
    """
    move = np.sign((first - 1) - (second - 1))
    terminated = (state == STATES - 1) & (move > 0)
    return np.clip(state + move, 0, STATES - 1), np.where(terminated, GOAL, 0.0) - COST * np.abs(move), terminated


def chain_optimum() -> npt.NDArray[np.float64]:
    """Q* of both branches side by side, by value iteration, the other branch acting at random, as in the data: the fixed
    point of a target per branch (Tavakoli 2018)."""
    following, reward, terminated = chain_step(
        *np.meshgrid(np.arange(STATES), np.arange(CHOICES), np.arange(CHOICES), indexing="ij")
    )
    q = np.zeros((2, STATES, CHOICES))
    for _ in range(500):
        for branch in range(2):
            target = reward + GAMMA * ~terminated * q[branch].max(axis=1)[following]
            q[branch] = target.mean(axis=2 - branch)
    return np.concatenate(q, axis=1)


@pytest.mark.timeout(90)
def test_chain_of_twenty_states(runtime: Runtime) -> None:
    config = Config().merged({
        "network": {"hidden": [32]},
        "replay": {"capacity": 8192, "batch": 64, "n_step": 1, "beta_start": 1.0},
        "loss": {"gamma": GAMMA, "v_min": -2.0, "v_max": 8.0, "alpha_c51_step": 0.5},
        "optim": {"lr": 3e-3, "lr_min": 1e-3, "tau_start": 0.05, "tau_end": 0.05},
        "train": {"epochs": 6, "steps_per_epoch": 300, "seed": 1},
    })  # fmt: skip
    random = np.random.default_rng(0)
    one_hot = np.eye(STATES, dtype=np.float32)
    walkers = 64
    with Agent(STATES, [CHOICES, CHOICES], config, runtime, environments=walkers) as agent:
        state, age = random.integers(0, STATES, walkers), np.zeros(walkers, int)
        for _ in range(config.replay.capacity // walkers):
            action = agent.act(one_hot[state], epsilon=1.0)
            following, reward, terminated = chain_step(state, *agent.choices(action).T)
            age += 1
            truncated = ~terminated & (age == 30)
            agent.observe(one_hot[state], action, reward, one_hot[following], terminated, truncated)
            fresh = terminated | truncated
            state, age = np.where(fresh, random.integers(0, STATES, walkers), following), np.where(fresh, 0, age)
        for _ in range(config.horizon):
            agent.step()
        metrics = agent.drain()
        error = agent.values(one_hot) - chain_optimum()
        greedy = agent.choices(agent.act(one_hot, epsilon=0.0))
    assert metrics is not None and metrics.step == config.horizon - 1 and metrics.alpha_c51 == 1.0
    atom = (config.loss.v_max - config.loss.v_min) / (config.network.atoms - 1)
    for branch in range(2):
        part = error[:, branch * CHOICES : (branch + 1) * CHOICES] / atom
        worst = np.unravel_index(np.abs(part).argmax(), part.shape)
        assert abs(part[worst]) <= 2, f"branch {branch}: Q at {worst} is off by {part[worst]:.2f} atoms"
    assert (greedy == [2, 0]).all()


# ---------------------------------------------------------------- the examples, by their command line


def example(name: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, f"examples/{name}.py", *arguments], cwd=ROOT, text=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": path}, timeout=timeout, check=False)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 1 to 2 minutes on two idle cores
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "goal"), [("cartpole", 475.0), ("acrobot", -100.0)])
def test_an_example_reaches_its_goal(name: str, goal: float, seed: int) -> None:
    """The mean return of 100 greedy episodes, three seeds of three."""
    pytest.importorskip("gymnasium")
    done = example(name, "--seed", str(seed), timeout=1700)
    assert done.returncode == 0, done.stderr
    last = re.fullmatch(
        r"mean return of 100 greedy episodes: (-?[\d.]+) \(the goal is (-?[\d.]+)\)", done.stdout.splitlines()[-1]
    )
    assert last is not None and float(last[2]) == goal
    assert float(last[1]) >= goal, done.stdout


def test_an_example_runs_and_reports() -> None:
    pytest.importorskip("gymnasium")
    done = example("cartpole", "--seed", "7", "--steps", "20")
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert "seed 7, 20 steps" in first and last.startswith("mean return of 100 greedy episodes: ")


@pytest.mark.parametrize("arguments", [["--seed", "-1"], ["--steps", "0"], ["--steps", "many"], ["--lr", "1"], ["5"]])
def test_an_example_refuses_wrong_arguments_in_one_line(arguments: list[str]) -> None:
    pytest.importorskip("gymnasium")
    done = example("cartpole", *arguments)
    assert done.returncode == 2 and not done.stdout
    assert len(done.stderr.splitlines()) == 1 and "cartpole.py: " in done.stderr and "--help" in done.stderr
